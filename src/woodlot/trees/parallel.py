"""One pool of threads for the whole process.

Parties that share a process share the pool, so that a party with little to do lends its core to the others. Kernels
release the GIL; which thread runs which chunk never changes a result.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_pool: ThreadPoolExecutor | None = None
_pool_pid = 0
_lock = threading.Lock()


def _shared_pool() -> ThreadPoolExecutor:
    global _pool, _pool_pid
    with _lock:
        if _pool is None or _pool_pid != os.getpid():  # a forked child inherits no threads
            _pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="woodlot")
            _pool_pid = os.getpid()
        return _pool


def effective_jobs(n_jobs: int | None) -> int:
    """Resolve scikit-learn's ``n_jobs``: None is 1, negative counts back from the number of cores."""
    if n_jobs is None:
        return 1
    cores = os.cpu_count() or 1
    return n_jobs if n_jobs > 0 else max(1, cores + 1 + n_jobs)


def run_chunks(work: Callable[[T], None], items: Sequence[T], n_jobs: int) -> None:
    """Call ``work(item)`` for every item on up to ``n_jobs`` threads; the first exception is raised after all ended."""
    if n_jobs <= 1 or len(items) <= 1:
        for item in items:
            work(item)
        return
    queue = iter(items)
    guard = threading.Lock()

    def drain() -> None:
        while True:
            with guard:
                item = next(queue, _END)
            if item is _END:
                return
            work(item)  # type: ignore[arg-type]

    helpers: list[Future[None]] = [_shared_pool().submit(drain) for _ in range(min(n_jobs, len(items)) - 1)]
    try:
        drain()
    finally:
        errors = [helper.exception() for helper in helpers]
    for error in errors:
        if error is not None:
            raise error


_END = object()
