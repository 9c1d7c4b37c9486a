"""What the tests of a module share, until one of them fails: then the next gets a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Generic, Self, TypeVar

import pytest

T = TypeVar("T")


class Shared(Generic[T]):
    """Makes a federation when it is first needed, and again after a failure, which may have left anything behind.

    Parameters
    ----------
    make : callable
        Returns a context manager that starts one and ends it.

    """

    def __init__(self, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._make = make
        self._made: tuple[ExitStack, T] | None = None

    def lend(self, request: pytest.FixtureRequest) -> Iterator[T]:
        """Lend it to one test; this is the body of a fixture."""
        if self._made is None:
            stack = ExitStack()
            self._made = stack, stack.enter_context(self._make())
        failures = request.session.testsfailed
        yield self._made[1]
        if request.session.testsfailed > failures:
            self.close()

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made[0].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
