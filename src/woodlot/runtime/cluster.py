"""A party on several machines: blocks of its table as actors of a Dask cluster (extra ``dask``).

The cluster belongs to the party: its workers read the party's source, hold their blocks in memory between the rounds,
and see what the party sees. What Dask sends between them is pickled, and stays inside the party.

A worker that dies takes its blocks with it. They are built again on another one from the source, and brought to the
same state; whoever asked is told which they were.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import ConfigError, DataError, WoodlotError

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10
WAIT_FOR_WORKERS = 60
"""Seconds that a job waits for a first worker, and for another one when the last has died."""
LOOK_SECONDS = 2
"""How often to look whether a worker that has not answered is still there."""
MOST_REBUILDS = 5
"""How often a block is built again for one question before the job gives up."""


class BlockActor:
    """Lives on a worker and holds one block.

    Dask may run an actor again after its worker was lost, without what the actor had been told. So each one has a
    token, and answers only to those who know it.
    """

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)
        self._block: Any = None

    def introduce(self) -> tuple[str, bool]:
        """The actor's token, and whether its worker gives memory back at every chance, which is slow."""
        return self._token, "MALLOC_TRIM_THRESHOLD_" in os.environ

    def build(self, token: str, kind: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Make the block, with as many threads as the worker has."""
        from distributed import get_worker

        return self._guarded(token, lambda: self._make(kind, arguments, get_worker().state.nthreads))

    def _make(self, kind: Callable[..., Any], arguments: tuple[Any, ...], n_jobs: int) -> None:
        self._block = kind(*arguments, n_jobs)

    def call(self, token: str, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Call a method of the block."""
        return self._guarded(token, lambda: getattr(self._block, method)(*arguments))

    def _guarded(self, token: str, work: Callable[[], Any]) -> tuple[str, Any]:
        if token != self._token:
            return "stranger", None
        try:
            return "done", work()
        except WoodlotError as error:  # what the block says itself, unlike what befalls its worker
            return "refused", error


class _LostError(Exception):
    """The worker of a block has died."""


class Cluster:
    """A connection to a Dask scheduler.

    Parameters
    ----------
    address : str
        ``"tcp://host:8786"`` or ``"tls://host:8786"``; for TLS, Dask's own settings name keys and certificates.

    Raises
    ------
    ConfigError
        Dask is not installed, or there is no scheduler at the address.

    """

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise ConfigError("the setting cluster needs Dask; run: pip install 'woodlot[dask]'") from None
        try:
            self._client = Client(
                address, timeout=CONNECT_SECONDS, set_as_default=False, direct_to_workers=True, name="woodlot"
            )
        except (OSError, TimeoutError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the scheduler of the cluster, {address}, cannot be reached ({error}); check the setting cluster"
            ) from None

    def close(self) -> None:
        """Let go of the cluster."""
        self._client.close()

    def workers(self) -> list[str]:
        """Addresses of the workers that there are; waits for a first one."""
        deadline = time.monotonic() + WAIT_FOR_WORKERS
        while not (addresses := sorted(self._client.nthreads())):  # Dask's own wait counts workers that have just died
            if time.monotonic() > deadline:
                raise ConfigError("the cluster has no worker; start at least one and order the job again")
            time.sleep(LOOK_SECONDS / 10)
        return addresses

    def is_there(self, worker: str) -> bool:
        """Whether a worker is connected."""
        return worker in self._client.nthreads()

    def actor(self, worker: str) -> Any:
        """A new actor on a worker."""
        future = self._client.submit(BlockActor, actor=True, workers=[worker], pure=False)
        with self._client.as_current():  # an actor belongs to the client that is current when it arrives
            return self.result(future, worker)

    def result(self, future: Any, worker: str) -> Any:
        """What a worker gives back; `_LostError` when it is gone, for which Dask itself would wait for ever."""
        while True:
            try:
                return future.result(timeout=LOOK_SECONDS)
            except TimeoutError:
                if not self.is_there(worker):
                    raise _LostError from None
            except (OSError, RuntimeError):
                raise _LostError from None


class _Block:
    """A block as the party sees it: where it is, and how it was made."""

    def __init__(self, cluster: Cluster, worker: str, kind: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.worker = worker
        self._cluster = cluster
        self._actor = cluster.actor(worker)
        self._token, trims = cluster.result(self._start("introduce"), worker)
        if trims:
            logger.warning("worker %s has MALLOC_TRIM_THRESHOLD_ set, which makes it slow: unset it", worker)
        self._result(self._start("build", self._token, kind, arguments))

    def start(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Begin a call; the answer comes from `finish`."""
        return self._start("call", self._token, method, arguments)

    def finish(self, future: Any) -> Any:
        """The answer to a call, or the error that the block has raised."""
        return self._result(future)

    def _start(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._actor, method)(*arguments)
        except RuntimeError:  # known to be lost
            raise _LostError from None

    def _result(self, future: Any) -> Any:
        kind, answer = self._cluster.result(future, self.worker)
        if kind == "stranger":
            raise _LostError
        if kind == "refused":
            raise answer
        return answer


class ClusterBlocks:
    """A party's columns or rows in blocks on a cluster; see `woodlot.protocols.core.blocks.Blocks`.

    Parameters
    ----------
    cluster : Cluster
        Where they are.
    kind : callable
        Makes a block from its arguments and a number of threads. It is imported on the workers.
    n : int
        Number of columns or rows.
    arguments : callable
        From the range of a block to what it is made of.

    """

    def __init__(
        self, cluster: Cluster, kind: Callable[..., Any], n: int, arguments: Callable[[range], tuple[Any, ...]]
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._arguments = arguments
        self._set_up: dict[str, tuple[tuple[Any, ...], list[Any]]] = {}
        workers = cluster.workers()
        n_blocks = max(1, min(len(workers), n))
        self._bounds = np.linspace(0, n, n_blocks + 1).astype(np.int64)
        self._blocks: dict[int, _Block] = {}
        for k in range(n_blocks):
            self._place(k, workers[k])

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Where each block begins, and last where all end."""
        return self._bounds

    def set_up(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every block; blocks that are built again are brought to the same state."""
        answers: dict[int, Any] = {}
        while missing := [k for k in self._blocks if k not in answers]:
            told, _ = self.ask(method, dict.fromkeys(missing, arguments))
            answers |= told
        ordered = [answers[k] for k in self._blocks]
        self._set_up.pop(method, None)  # what was told last comes last
        self._set_up[method] = (arguments, ordered)
        return ordered

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> tuple[dict[int, Any], set[int]]:
        """Call a method of some blocks; returns the answers, and which blocks were lost and have been built again."""
        started: dict[int, Any] = {}
        answers: dict[int, Any] = {}
        lost: set[int] = set()
        for k, given in arguments.items():
            try:
                started[k] = self._blocks[k].start(method, given)
            except _LostError:
                lost.add(k)
        for k, future in started.items():
            try:
                answers[k] = self._blocks[k].finish(future)
            except _LostError:
                lost.add(k)
        for k in lost:
            gone = self._blocks[k].worker
            logger.warning("worker %s is gone; its block is built again from the table", gone)
            self._place(k, self._another(k, gone))
        return answers, lost

    def _place(self, k: int, worker: str) -> None:
        """Build a block on a worker, or on another one if that one dies."""
        for _ in range(MOST_REBUILDS):
            try:
                self._build(k, worker)
                return
            except _LostError:
                worker = self._another(k, worker)
        raise ConfigError(f"{MOST_REBUILDS} workers of the cluster have died at the same work; look at their logs")

    def _another(self, k: int, gone: str) -> str:
        """The worker with the fewest blocks that is not the one that is gone, if there is one."""
        busy = Counter(block.worker for j, block in self._blocks.items() if j != k)
        workers = self._cluster.workers()
        return min((w for w in workers if w != gone), key=lambda w: busy[w], default=workers[0])

    def _build(self, k: int, worker: str) -> None:
        columns = range(int(self._bounds[k]), int(self._bounds[k + 1]))
        block = _Block(self._cluster, worker, self._kind, self._arguments(columns))
        for method, (arguments, told) in self._set_up.items():
            if block.finish(block.start(method, arguments)) != told[k]:
                raise DataError("the table has changed since the job began; order the job again")
        self._blocks[k] = block


class Connection:
    """A cluster that is connected when a job first needs it, and then stays so until it is closed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._cluster: Cluster | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Cluster:
        """The cluster; ConfigError as for `Cluster`."""
        with self._lock:
            if self._cluster is None:
                self._cluster = Cluster(self._address)
            return self._cluster

    def close(self) -> None:
        """Let go of the cluster, if there ever was one."""
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()
                self._cluster = None
