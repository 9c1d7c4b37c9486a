"""A party's table in blocks that may be on other machines: how the party asks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Blocks(Protocol):
    """Blocks of columns or of rows; a machine that dies is the implementation's to replace."""

    @property
    def bounds(self) -> NDArray[np.int64]:
        """The first column or row of each block, and last how many there are."""
        ...

    def set_up(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every block; blocks that are built again are brought to the same state."""
        ...

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> tuple[dict[int, Any], set[int]]:
        """Call a method of some blocks; returns the answers, and which blocks were lost and have been built again."""
        ...


class OwnBlock:
    """The whole table as one block, in this process.

    Parameters
    ----------
    block : object
        Whose methods are called.
    n : int
        How many columns or rows it has.

    """

    def __init__(self, block: Any, n: int) -> None:
        self._block = block
        self.bounds = np.array([0, n], np.int64)

    def set_up(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method; see `Blocks`."""
        return [getattr(self._block, method)(*arguments)]

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> tuple[dict[int, Any], set[int]]:
        """Call a method; see `Blocks`. Nothing is ever lost."""
        return {k: getattr(self._block, method)(*given) for k, given in arguments.items()}, set()
