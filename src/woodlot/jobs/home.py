"""What all jobs of a party have in common: the party itself, an order that it has taken, and errors that stay there."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.labels import check_classes, check_targets
from woodlot.data.sources import LoadedTable, Stamp, TableSource
from woodlot.data.spool import Spool
from woodlot.exceptions import ConfigError, DataError, ModelFileError, RemoteProtocolError, WoodlotError
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.orders import Order, Part
from woodlot.jobs.party_store import PartyStore
from woodlot.jobs.policy import Policy
from woodlot.jobs.privacy_rules import PrivacyConfig
from woodlot.jobs.tally import JobTally
from woodlot.privacy.accounting import Unit
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.runtime.cluster import Cluster
from woodlot.runtime.faults import wordless
from woodlot.runtime.pending_charges import PendingCharges
from woodlot.trees.room import WorkingMemory

if TYPE_CHECKING:
    from woodlot.jobs.approvals import Approvals
    from woodlot.jobs.hosting import JobHost

logger = logging.getLogger(__name__)

O = TypeVar("O", bound=Order, covariant=True)


class HeldTables:
    """Tables that jobs share for as long as one of them holds on to it, and the file is as it was."""

    def __init__(self) -> None:
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._held: WeakValueDictionary[tuple[TableSource, Stamp], LoadedTable] = WeakValueDictionary()

    def read(self, source: TableSource, spool: Spool | None) -> LoadedTable:
        """The table of a source, read only where nobody holds it."""
        with self._turns[source.name]:  # who comes while it is being read gets the same
            stamp = source.stamp()
            found = None if stamp is None else self._held.get((source, stamp))
            if found is None:
                found = source.read(spool)
                if found.stamp is not None:
                    self._held[source, found.stamp] = found
            return found


@dataclass(frozen=True, eq=False)
class PartyHome:
    """What all jobs of a party have in common.

    Attributes
    ----------
    identity, trust
        Who the party is, and whom it believes.
    tables, policy
        What it has, and who may do what with it.
    store : PartyStore
        What stays behind when a job has ended.
    shared_secret : bytes or None
        The configured secret of the alignment.
    end_job : callable
        Lets go of an ended job.
    pending_charges : callable
        From a job's name to where it pays for what it releases under differential privacy.
    n_jobs : int
        Threads.
    privacy : PrivacyConfig
        What differentially private releases may cost.
    room : WorkingMemory or None
        Where tables are kept that may be larger than memory; None: in memory.
    cluster : callable or None
        Connects the cluster that columns or rows are spread over; None: they are all here.
    replays : callable
        Whether a job is being rebuilt after a restart, from messages that were good when they came: it may go on for
        any time, whatever has expired since.
    held : HeldTables
        The tables that some job has in its hands.
    lead : JobHost or None
        The party as the host of jobs that it leads; None: it cannot lead.
    device : {"cpu", "cuda", "auto"}
        Where its trees grow.
    tally : JobTally
        Counts its jobs.
    approvals : Approvals or None
        Orders that wait for the owner; None: nobody can be asked, and what needs approval is refused.

    """

    identity: Identity
    trust: Trust
    tables: dict[str, TableSource]
    policy: Policy
    store: PartyStore
    shared_secret: bytes | None = field(repr=False)
    end_job: Callable[[str], None]
    pending_charges: Callable[[str], PendingCharges]
    n_jobs: int
    privacy: PrivacyConfig
    room: WorkingMemory | None = None
    cluster: Callable[[], Cluster] | None = None
    replays: Callable[[str], bool] = lambda job: False
    held: HeldTables = field(default_factory=lambda: HeldTables())
    lead: JobHost | None = None
    device: str = "cpu"
    tally: JobTally = field(default_factory=JobTally)
    approvals: Approvals | None = None

    def signer(self, job: str) -> JobSigner:
        """This party in the agreements of one job."""
        return JobSigner(self.identity, self.trust, lambda: self.replays(job))


@dataclass(frozen=True, eq=False)
class JobSigner:
    """A member in one job's agreements on keys; see `woodlot.protocols.core.agreement.Signer`."""

    identity: Identity
    trust: Trust
    replays: Callable[[], bool]

    @property
    def certificate(self) -> bytes:
        """This member's certificate."""
        return self.identity.certificate

    def sign(self, purpose: str, data: bytes) -> bytes:
        """Sign as this member."""
        return self.identity.sign(data, purpose)

    def verify(self, name: str, certificate: bytes, purpose: str, data: bytes, signature: bytes) -> None:
        """Check that another member has signed."""
        peer = self.trust.verify(certificate, purpose, data, signature, role="party", again=self.replays())
        if peer.name != name:
            raise RemoteProtocolError(f"what {peer.name!r} has signed was passed on as from {name!r}")


@dataclass(frozen=True, eq=False, repr=False)
class AskedOrder(Generic[O]):
    """An order that the party has checked.

    Attributes
    ----------
    home : PartyHome
        The party.
    order : Order
        What was ordered.
    user : str
        Who has signed it.
    certificate : bytes
        The user's.
    part : Part
        What was sealed to this party.

    """

    home: PartyHome
    order: O
    user: str
    certificate: bytes
    part: Part


@dataclass(frozen=True, eq=False, repr=False)
class TakenOrder(AskedOrder[O]):
    """An order that the party has checked, and its table.

    Attributes
    ----------
    loaded : LoadedTable
        The table that the part names.

    """

    loaded: LoadedTable

    @property
    def job(self) -> str:
        """The job's name."""
        return self.order.job

    @property
    def features(self) -> list[str]:
        """The columns to learn from: the table's features that are asked for, but neither its label nor its weight."""
        part = self.part
        asked = self.loaded.features if isinstance(part.features, msgspec.UnsetType) else part.features
        without = {part.label, part.weight, *(() if isinstance(part.exclude, msgspec.UnsetType) else part.exclude)}
        return [name for name in self.loaded.features if name in asked and name not in without]

    def pay_training(self) -> None:
        """Count a training from the label that the order names; a job that comes again has paid."""
        if self.part.label is None:
            raise DataError("the order names no column of labels")
        label = f"{self.loaded.name}.{self.part.label}"
        self.home.store.spend_training(self.job, label, self.user, datetime.now(UTC))


class Work(Protocol):
    """What a party does for one order; one class for each kind of job; see `woodlot.jobs.kinds`.

    It is made when the order is opened: what its making raises refuses the order. Its state follows from the messages
    it has answered, so that a job goes on after a restart; a message that it refuses has changed nothing.
    """

    @property
    def n_aligned(self) -> int | None:
        """Rows that were aligned before and are used now, where there are such."""
        ...

    @property
    def uncovered(self) -> tuple[Unit, ...]:
        """Of what the job tells something without differential privacy: of labels, of rows, of both or of nothing."""
        ...

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        ...


@runtime_checkable
class LedWork(Work, Protocol):
    """`Work` for jobs that a party can lead: its answers are padded, so that their lengths tell nothing of rows."""

    def most_bytes(self, reply: Message) -> int:
        """Bytes of arrays that an answer like this one has at most for as many rows; 0 where no bound is known."""
        ...


@contextmanager
def private_errors(job: str, told: str) -> Iterator[None]:
    """Errors that may name columns or files go to the party's own log; the other side is told less."""
    try:
        yield
    except (DataError, ConfigError, ModelFileError, ValueError, TypeError) as error:
        ours = isinstance(error, WoodlotError)
        words, trace = (str(error), None) if ours else ("an error that may quote values", wordless(error))
        logger.error("job %s: %s", job, words, exc_info=trace, extra={"job": job})
        raise DataError(f"{told}; its own log says why") from None


def score_of(labels: NDArray[Any], outputs: NDArray[np.float64], classes: Sequence[Any]) -> float:
    """Accuracy of answers, or R2 where there are no classes."""
    if not classes:
        everything = np.ones(len(labels), bool)
        return Target.of_values(check_targets(labels)).score(outputs[:, 0], everything)[0]
    said = np.array(classes, dtype=object)[outputs.argmax(axis=1)]
    return float((said == check_classes(labels).astype(object)).mean())
