"""A kind of job: what is ordered, what the coordinator and the parties do for it, and what stays.

A kind is declared once, and every host runs it: one process, services, MPI, NVFlare. Woodlot's own are in
`woodlot.jobs.kinds`. Another package adds one with an entry point of the group ``woodlot.kinds`` that names its `Kind`;
it must be installed wherever the job runs. See docs/how-to/add-a-kind.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Union

from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.identity.identity import Identity
    from woodlot.jobs.columns.common_rows import CommonRowCounts
    from woodlot.jobs.home import Work
    from woodlot.jobs.job_messages import JobFacts, OpenJob
    from woodlot.jobs.job_store import JobStore
    from woodlot.jobs.led.dealing import DealerSeat
    from woodlot.jobs.orders import Order
    from woodlot.protocols.core.message import Message, Round
    from woodlot.runtime.drivers import Handler

Rounds: TypeAlias = "Generator[Round, dict[str, Message], Any]"

Outcome: TypeAlias = Literal["model", "rows", "answers", "own answers", "explanation", "receipt", "erasure", ""]

GROUP = "woodlot.kinds"
"""The entry points by which other packages add kinds."""


class CoordinatorHost(NamedTuple):
    """What the host of the coordinator's work supplies.

    Attributes
    ----------
    store : JobStore
        Models and jobs that were before.
    n_jobs : int
        Threads.
    rows : CommonRowCounts or None
        The common rows, where the job has been opened and its rows found before: a party leads it. None: the protocol
        does both.
    own : Work or None
        The work of the party that leads, in whose process the protocol runs: for what it does with its own data.

    """

    store: JobStore
    n_jobs: int
    rows: CommonRowCounts | None = None
    own: Work | None = None


class Kept(NamedTuple):
    """What the coordinator knows when a job has reached its end.

    Attributes
    ----------
    store : JobStore
        Where the outcome is to stay.
    order : Order
        What was ordered.
    facts : JobFacts
        How the job stands.
    account : dict of str to str
        Who saw what and what it cost, as `Account.to_json` has it.
    identity : Identity
        The coordinator's, to sign what others rely on.

    """

    store: JobStore
    order: Any
    facts: JobFacts
    account: dict[str, str]
    identity: Identity


def _keep_nothing(kept: Kept, outcome: Any) -> dict[str, Any]:
    return {}


def _check_nothing(store: JobStore, order: Any) -> None:
    """Take any order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """What is done for one kind of order.

    Attributes
    ----------
    order : type
        What a user signs; the tag of the class is the name of the kind.
    right : {"align", "train", "predict"}
        Who may order it: whom the setting of this name in a party's policy lists; "align": who may do one of the two.
    protocol : callable
        The coordinator's work: from the order, its opening and the host to the generator that is run.
    work : callable
        A party's work: from the order that it has taken, a `TakenOrder`, to its `Work`.
    keep : callable
        Stores what the generator returns; gives back the fields of `JobFacts` that tell of it.
    check : callable
        Refuses an order when it is submitted.
    listed_as : str
        The kind by whose name a party's policy allows it; by default its own, and always its own where another package
        has added it.
    deed : str
        Where only the user who has ordered the model may order it: what it does to the model.
    party_orders : bool
        Whether a party of the model may order it though no policy lists it, to leave or to have rows forgotten: only
        where the others find in their own records that it has a part in the model, and by which plan the model was
        grown.
    needs_table : bool
        Whether each party's part of the order names a table; else `work` gets an `AskedOrder`.
    private : bool
        Whether a form of it is differentially private: parties that ask for that take no other kind.
    outcome : {"model", "rows", "answers", "own answers", "explanation", "receipt", "erasure", ""}
        What comes of it: a model; the common rows, which parties keep; answers that the user can have; answers that
        each party keeps for its own rows; an explanation, sealed to the user; the receipt of a revocation, or of rows
        that were forgotten. Empty: what `JobFacts.told` says.
    keeps_order : {"done", "ended", ""}
        Until when the coordinator keeps the order: after a job that is done, since what was ordered is looked at later;
        after any that has ended; or until the end, after which a digest takes its place.
    erases : bool
        Whether it only erases a model: then the coordinator runs it, whoever leads the other jobs of the model.
    with_members : bool
        Whether helpers and key services take part.
    tells_done : bool
        Whether parties are told at the end if it is done: they keep records of it, and no other message is the last.
    led : bool
        Whether its order may name a party that leads: its protocol then begins with `open_rows`, can spare no party,
        and keeps nothing but what `keep` stores.
    dealer : callable, optional
        Where the protocol of a led job asks a dealer: from the order and a `DealerSeat` to what answers at the
        coordinator, or None for an order without one; see `woodlot.jobs.led.dealing`.

    """

    order: type[Order]
    right: Literal["align", "train", "predict"]
    protocol: Callable[[Any, OpenJob, CoordinatorHost], Rounds]
    work: Callable[[Any], Work]
    keep: Callable[[Kept, Any], dict[str, Any]] = _keep_nothing
    check: Callable[[JobStore, Any], None] = _check_nothing
    listed_as: str = ""
    deed: str = ""
    party_orders: bool = False
    needs_table: bool = True
    private: bool = False
    outcome: Outcome = ""
    keeps_order: Literal["done", "ended", ""] = ""
    erases: bool = False
    with_members: bool = False
    tells_done: bool = False
    led: bool = False
    dealer: Callable[[Any, DealerSeat], Handler | None] | None = None

    @property
    def name(self) -> str:
        """What orders, policies and lists of jobs call it."""
        return str(self.order.__struct_config__.tag)

    @property
    def listed(self) -> str:
        """The name by which policies allow it."""
        return self.listed_as or self.name


@cache
def known() -> Mapping[str, Kind]:
    """Every kind, by its name: Woodlot's own first, then those of other packages."""
    from woodlot.jobs.kinds import KINDS  # here: what kinds do refers to kinds

    kinds = {kind.name: kind for kind in KINDS}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        kind = entry.load()
        if not isinstance(kind, Kind):
            raise ConfigError(f"the entry point {entry.name!r} of {GROUP} names {entry.value}, which is no Kind")
        if kind.name in kinds:
            raise ConfigError(f"the entry point {entry.name!r} of {GROUP} adds the kind {kind.name!r}, which exists")
        if kind.listed_as:  # a policy that was written before would allow it without a word
            raise ConfigError(
                f"the entry point {entry.name!r} of {GROUP} adds the kind {kind.name!r} under the name of another, for "
                f"policies that list {kind.listed_as!r}; leave out listed_as, so that parties allow it by its own name"
            )
        kinds[kind.name] = kind
    return kinds


def outcome_of(kind: str) -> Outcome:
    """What comes of jobs of a kind; of one that is not installed here nothing is known."""
    return known()[kind].outcome if kind in known() else ""


def tells_done(kind: str) -> bool:
    """Whether parties of jobs of a kind are told at the end if they are done."""
    return kind in known() and known()[kind].tells_done


@cache
def any_order() -> Any:
    """The type of all orders that there are kinds for."""
    return Union[tuple(kind.order for kind in known().values())]  # noqa: UP007 - made when the program runs


def kind_of(order: Order) -> Kind:
    """What is done for an order."""
    return known()[order.kind]
