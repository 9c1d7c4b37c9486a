"""What both simulations of a revocable forest's members have in common: a driver, a ledger, and epochs that follow."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Generator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np

from woodlot.exceptions import ConfigError, PolicyError
from woodlot.protocols.core.agreement import KEY_BYTES
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.message import Message, Round
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers import Handler
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

R = TypeVar("R")
K = TypeVar("K")

HELPER, KEY_SERVICE = "helper", "key service"
"""Names of the two roles that are no parties."""


def check_roles(parties: Collection[str], allow_same_host: bool, why: str) -> None:
    """Refuse members that would be in one process without having been asked to, and a party with the name of a role.

    ``why``: what the process could read.
    """
    if not allow_same_host:
        raise ConfigError(f"{why}; for a simulation say allow_same_host=True")
    taken = {HELPER, KEY_SERVICE} & set(parties)
    if taken:
        raise ConfigError(f"no party can be named {taken.pop()!r}: that is the name of a role here")


def member_secrets(common: bytes) -> dict[str, Any]:
    """What every role is made with: a secret that all share, and one of its own."""
    own = secrets.token_bytes(KEY_BYTES)
    return {"job": "local", "entropy": lambda purpose: own + purpose.encode(), "shared_secret": common}


class LocalRing(Generic[K]):
    """All members of a forest in this process, and the epoch that they are in.

    An epoch is begun, and then all members change over to it. If that is interrupted, `finish` goes on with it.

    Parameters
    ----------
    members : mapping of str to Handler
        Parties, helper and key service.
    ledger : Ledger or None
        Where what is sent is recorded; one of its own by default.
    commit : callable
        From what the coordinator has of an epoch to the protocol by which all members change over.

    """

    keys: K

    def __init__(
        self,
        members: Mapping[str, Handler],
        ledger: Ledger | None,
        commit: Callable[[K], Generator[Round, dict[str, Message], None]],
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self._driver = InProcessDriver(members, ledger=self.ledger)
        self._commit = commit
        self._last = 1  # no number of an epoch is used twice, also if it was given up
        self._begun: K | None = None  # of an epoch that some members may be in, and others not yet

    def _run(self, protocol: Generator[Round, dict[str, Message], R]) -> R:
        return run(protocol, self._driver, ledger=self.ledger)

    def record_in(self, ledger: Ledger) -> None:
        """Record in another ledger from now on."""
        self.ledger = self._driver.ledger = ledger

    def _next_epoch(self, forest: CoordinatorForest, leaver: str | None) -> int:
        """The number of an epoch without `leaver`, whose splits must have been regrown."""
        inner = forest.owner[forest.owner >= 0]
        if leaver is not None and any(forest.parties[owner] == leaver for owner in np.unique(inner)):
            raise PolicyError(f"the forest still has splits of {leaver!r}; regrow them first")
        self.finish()
        self._last += 1
        return self._last

    def finish(self) -> None:
        """Have all members change over to an epoch that some of them may be in: where that was interrupted."""
        if self._begun is not None:
            self._run(self._commit(self._begun))
            self.keys, self._begun = self._begun, None

    def close(self) -> None:
        """Give back the threads; keys and shares are gone with the object."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
