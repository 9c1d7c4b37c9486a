"""The one way to compile a kernel: without the GIL, cached on disk, and never in silence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event


class _SayOnce(event.Listener):  # type: ignore[misc]
    """Tells the user once per process why the first call takes seconds; silent when the disk cache has everything."""

    said = False

    def on_start(self, event: Any) -> None:
        if not self.said:
            self.said = True
            sys.stderr.write(
                "woodlot: compiling numerical kernels for their first use on this machine (some seconds, then cached)\n"
            )

    def on_end(self, event: Any) -> None:
        return


event.register("numba:compile", _SayOnce())


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile lazily, once per signature, and keep the machine code on disk beside the source."""
    compiled: Callable[..., Any] = numba.njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")(function)
    return compiled
