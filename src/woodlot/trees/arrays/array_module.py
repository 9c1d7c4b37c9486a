"""Which arrays are used: NumPy's, or those of CuPy on a graphics card; and what can be wrong with the card."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.data.extras import need
from woodlot.exceptions import DeviceError, MissingExtraError

Device = Literal["cpu", "cuda", "auto"]
"""Where a party computes. "auto": on the card if there is one and the table is large enough."""
DEVICES = ("cpu", "cuda", "auto")
AUTO_ROWS = 20_000
"""With "auto", tables of fewer rows stay on the CPU: the card would wait for the next round most of the time."""
SHARE = 0.4
"""Part of a card's memory that one party works in: a second party in the same process may use the card too."""
THREADS = 256
"""Threads of a block."""


@dataclass(frozen=True)
class ArrayModule:
    """Arrays, and the kernels that work on them.

    Attributes
    ----------
    xp : module
        NumPy or CuPy.
    on_card : bool
        Whether the arrays are on a graphics card.
    memory : int
        Bytes of memory of the card.
    name : str
        What the card is called.
    """

    xp: Any
    on_card: bool
    memory: int
    name: str

    def put(self, values: Any) -> Any:
        """The same array where this module computes."""
        return self.xp.asarray(values)

    def get(self, values: Any) -> NDArray[Any]:
        """The same array in this process's memory."""
        return np.asarray(self.xp.asnumpy(values) if self.on_card else values)

    def launch(self, source: str, name: str, n_threads: int, *arguments: Any) -> None:
        """Run a CUDA kernel on at least so many threads."""
        if n_threads > 0:
            blocks = (n_threads + THREADS - 1) // THREADS
            _kernel(self.xp, source, name)((blocks,), (THREADS,), arguments)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn what CuPy raises into a `DeviceError`; and let one thread at a time use the card.

        Two parties in one process would wait for each other at every call otherwise, since both need the interpreter.
        """
        if not self.on_card:
            yield
            return
        with _one_at_a_time:
            yield from self._guarded()

    def _guarded(self) -> Iterator[None]:
        errors = (
            self.xp.cuda.memory.OutOfMemoryError,
            self.xp.cuda.runtime.CUDARuntimeError,
            self.xp.cuda.driver.CUDADriverError,
            self.xp.cuda.compiler.CompileException,
        )
        try:
            yield
        except errors as error:
            self.xp.get_default_memory_pool().free_all_blocks()
            too_small = isinstance(error, errors[0])
            raise DeviceError(
                f"The card {self.name} has too little memory ({self.memory / 2**30:.0f} GiB) for this table: "
                "grow fewer trees together, or set device='cpu'."
                if too_small
                else f"The card {self.name} failed: {error}. Set device='cpu' to do without it."
            ) from error


_one_at_a_time = threading.RLock()
HOST = ArrayModule(np, False, 0, "cpu")
"""NumPy: the reference."""


@cache
def _kernel(xp: Any, source: str, name: str) -> Callable[..., None]:
    # no fused multiply-add: it rounds once where the CPU rounds twice
    kernel: Callable[..., None] = xp.RawKernel(source, name, options=("--fmad=false", "-std=c++17"))
    return kernel


@cache
def card() -> ArrayModule:
    """The graphics card of this machine, through CuPy.

    Raises
    ------
    MissingExtraError
        CuPy is not installed.
    DeviceError
        There is no card, or its driver does not answer.
    """
    cupy = need("cupy", "gpu")
    try:
        n_cards = int(cupy.cuda.runtime.getDeviceCount())
        if n_cards:
            properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
            return ArrayModule(cupy, True, int(properties["totalGlobalMem"]), properties["name"].decode())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"No CUDA card can be used on this machine: {error}. Set device='cpu'.") from error
    raise DeviceError("This machine has no CUDA card. Set device='cpu'.")


def uses_card(device: str, n_rows: int) -> bool:
    """Whether a table of so many rows goes to a card; what is wrong with a card is told where it is asked for."""
    try:
        return choose(device, n_rows, lambda line: None) is not None
    except (MissingExtraError, DeviceError):
        return False


def choose(device: str, n_rows: int, say: Callable[[str], None]) -> ArrayModule | None:
    """The card to use, or None for the CPU kernels.

    Parameters
    ----------
    device : {"cpu", "cuda", "auto"}
        What was asked for. With "cuda" a missing card is an error; with "auto" ``say`` gets a line about it.
    n_rows : int
        Rows of the table.
    say : callable
        Takes a line for the log.
    """
    if device == "cpu" or (device == "auto" and n_rows < AUTO_ROWS):
        return None
    if device == "cuda":
        return card()
    try:
        return card()
    except (MissingExtraError, DeviceError) as error:
        say(f"device=auto: computing on the CPU. {error}")
        return None
