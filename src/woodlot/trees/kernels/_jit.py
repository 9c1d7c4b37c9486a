"""The one way to compile a kernel: without the GIL, cached on disk, with a message before the first compilation.

Threads of `woodlot.trees.parallel` run kernels side by side. Numba's own ``prange`` is not used: its workqueue layer
aborts when two Python threads enter it, and its OpenMP layer ends forked children. Floating point is IEEE:
``fastmath`` would let machines and strategies differ in the last bit.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile

_SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).digest()


class _SayOnce(event.Listener):  # type: ignore[misc]
    """Tell the user once per process why the first call takes seconds; silent when the disk cache has everything."""

    said = False
    compiled = 0

    def on_start(self, event: Any) -> None:
        self.compiled += 1
        if not self.said:
            self.said = True
            sys.stderr.write(
                "woodlot: compiling numerical kernels for their first use on this machine (some seconds, then cached)\n"
            )

    def on_end(self, event: Any) -> None:
        return


_listener = _SayOnce()
event.register("numba:compile", _listener)


def compilations() -> int:
    """How many kernels this process has compiled, each for some types of its arguments."""
    return _listener.compiled


class _Index(IndexDataCacheFile):  # type: ignore[misc]
    """The list of what is cached for a kernel.

    Numba reads all of a list before it looks at its stamp. One that another version of Woodlot has left can name
    classes that are gone, and is then as good as none: what it listed is compiled again, and the list is replaced.
    """

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:  # noqa: BLE001 - what a file from elsewhere raises when it is read is not ours to know
            return {}


class _SharedCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache on disk, valid for exactly these sources, and written by one process at a time.

    A kernel contains the machine code of the kernels that it calls, but Numba only checks whether the kernel's own
    file has changed. So the stamp of every cache file is the hash of all kernel sources. The lock is there because two
    processes that number new cache files at the same time would mix them.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Index(self._cache_path, self._impl.filename_base, _SOURCES)

    def save_overload(self, signature: Any, compiled: Any) -> None:
        with _alone(Path(self.cache_path)):
            super().save_overload(signature, compiled)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, where the system and the disk support locks."""
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "woodlot.lock").open("ab")
    except (ImportError, OSError):  # the system has no file locks, or there is no folder to write a cache to
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile lazily, once per signature, and keep the machine code on disk beside the source."""
    compiled: Any = numba.njit(nogil=True, boundscheck=False, error_model="numpy")(function)
    compiled._cache = _SharedCache(function)
    typed: Callable[..., Any] = compiled
    return typed
