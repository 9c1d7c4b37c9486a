"""A user's orders: what is to be done, with a part for each party that only it can read; see `order_seal`."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs.hidden_roles import check_hidden_roles, without_dealer
from woodlot.jobs.model_names import check_model_name
from woodlot.protocols.core.forest_plan import ForestPlan, Task
from woodlot.protocols.core.message import Role
from woodlot.protocols.vertical.forest_messages import Wire
from woodlot.trees.predict import Vote

MAX_SETTINGS_BYTES = 1 << 16
"""The longest settings of an estimator: they are kept with the model, and listed."""

MAX_BOOTSTRAP = 5_000
"""The most bootstrap samples of an evaluation: the label holder computes them."""

MAX_PARTIES = 256
"""Parties of one job: what is told of it names them all, some of them several times."""

MAX_POINT = 2**64 - 1
"""The largest number of a point, and of a seed, in a `RowSubset`."""

MAX_SUBSETS = 16
"""How often a part of the rows can be divided in one order, under different seeds."""

JOB_ID = re.compile(r"[0-9a-f]{32}")

# \Z, not $: that would let a line end through behind the digits
JobId: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^{JOB_ID.pattern}\Z")]

KeysName: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^({JOB_ID.pattern})?\Z")]
"""The name under which members keep keys: the job that has begun their first epoch; empty where it is not named."""


WholeForestId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
"""The fingerprint of a whole forest; empty in orders of earlier versions, which parties refuse."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What only one party is told: its table, and its columns with labels and weights, where it has them.

    In an encrypted prediction there is no table; `columns` names, for each column of the request, the party's own, or
    is empty where it is another party's. To the helper it names the party that each column is of. With shares, helper
    and key service have in `key` a secret of the request, and in `other` the user's word on the secret of the other. A
    scoring has the key with which the user seals ids to this party. A prediction by encrypted splits has in `keys` the
    name under which the party keeps the keys of the model. In a job that a party leads, `relay` is a secret of all its
    parties, drawn by the user: it enters the keys of their frames. Weights by class name classes, so `class_weight`,
    and the `settings` in which they are, are in the leader's part in place of the order that all read. In a training
    `features` names the columns to learn from, and `exclude` columns not to; unset, all that the party offers. An
    evaluation has in the label holder's part the key to which the report is sealed, an explanation in the leader's.
    Where an explanation names its rows, every part has their `ids`, in the form of `woodlot.data.ids`.
    """

    table: str = ""
    label: str | None = None
    weight: str | None = None
    columns: tuple[str, ...] = ()
    key: bytes = b""
    keys: KeysName = ""
    other: bytes | msgspec.UnsetType = msgspec.UNSET
    relay: bytes | msgspec.UnsetType = msgspec.UNSET
    class_weight: tuple[tuple[str, float], ...] | msgspec.UnsetType = msgspec.UNSET
    settings: str | msgspec.UnsetType = msgspec.UNSET
    features: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    exclude: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    ids: tuple[bytes, ...] | msgspec.UnsetType = msgspec.UNSET


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """What all orders say.

    Attributes
    ----------
    job : str
        The job's name, drawn by the user: 32 hexadecimal digits.
    created : float
        When it was ordered, in seconds since 1970.
    federation : str
        For which federation: the fingerprint of its authority's key.
    coordinator : str
        For which coordinator of it: the name in its certificate.
    parties : tuple of str
        Who takes part.
    sealed : dict of str to bytes
        A part for each of them; see `Part`.

    """

    job: JobId
    created: float
    federation: str
    coordinator: str
    parties: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_PARTIES)]
    sealed: dict[str, bytes]

    naming: ClassVar[tuple[str, ...]] = ()
    """The fields that name parties of the order, or are None."""

    def __post_init__(self) -> None:
        name, settings = getattr(self, "name", ""), getattr(self, "settings", "")
        try:
            if name:
                check_model_name(name)
        except ValueError as error:
            raise DataError(str(error)) from None
        if (n_bytes := len(settings.encode())) > MAX_SETTINGS_BYTES:
            raise DataError(f"the settings have {n_bytes:,} bytes, and {MAX_SETTINGS_BYTES:,} are taken at most")

    def check(self) -> None:
        """Refuse an order whose parts do not go together, which no client of ours makes."""
        if set(self.sealed) != set(self.parties) or len(set(self.parties)) != len(self.parties):
            raise RemoteProtocolError("an order must have one sealed part for each of its parties")
        for field in self.naming:
            if (party := getattr(self, field)) is not None and party not in self.parties:
                raise RemoteProtocolError(f"the order names {party!r}, who is not among its parties")

    @property
    def kind(self) -> str:
        """What is ordered, such as "train"; policies speak of it by this name."""
        return str(type(self).__struct_config__.tag)

    @property
    def leader(self) -> str | None:
        """The party that runs the protocol; None: the coordinator does."""
        return None

    @property
    def answers_to(self) -> tuple[str, ...]:
        """The parties that are sent predictions of others, to keep or to score them."""
        return ()

    @property
    def answers_user(self) -> bool:
        """Whether the user is given predictions."""
        return False


class LedOrder(Order, frozen=True, kw_only=True):
    """What orders say that a party may lead.

    Attributes
    ----------
    led_by : str, unset by default
        The party that runs the protocol in place of the coordinator: of a training its label holder, of later jobs the
        leader of their model.

    """

    led_by: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def leader(self) -> str | None:
        """The party that runs the protocol; None: the coordinator does."""
        return None if isinstance(self.led_by, msgspec.UnsetType) else self.led_by

    def check(self) -> None:
        """Refuse what cannot be; see `Order`."""
        super().check()
        if self.leader is not None:
            holder = getattr(self, "holder", self.leader)
            if self.leader not in self.parties or holder != self.leader:
                raise RemoteProtocolError("the leader of a training is its label holder, of any job one of its parties")
            if Role.dealer in self.parties:
                raise RemoteProtocolError(
                    f"no party of a job that a party leads may have the name {Role.dealer.value!r}: leaders call the "
                    "coordinator by it; give this party an identity with another name"
                )


class RowSubset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows whose points lie in an interval; see `woodlot.data.row_rules.RowRule`.

    Attributes
    ----------
    seed : int
        Decides the points.
    start, stop : int
        The first point, and the first one beyond; 0 after the last point of all.
    by_class : bool, unset by default
        Whether a party divides the rows of each class of its label; over rows only.
    """

    seed: Annotated[int, msgspec.Meta(ge=0)]
    start: Annotated[int, msgspec.Meta(ge=0)]
    stop: Annotated[int, msgspec.Meta(ge=0)]
    by_class: bool | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if max(self.seed, self.start, self.stop) > MAX_POINT:
            raise ValueError("seeds and points of a part of the rows have 64 bits")


RowSubsets: TypeAlias = Annotated[tuple[RowSubset, ...], msgspec.Meta(max_length=MAX_SUBSETS)] | msgspec.UnsetType
"""Rows that are in all of these parts; unset: all rows."""


def subsets_of(subset: tuple[RowSubset, ...] | msgspec.UnsetType) -> tuple[RowSubset, ...]:
    """Which rows are used; empty: all."""
    return () if isinstance(subset, msgspec.UnsetType) else subset


class AlignedOrder(LedOrder, frozen=True, kw_only=True):
    """What orders to parties with different columns say besides.

    Attributes
    ----------
    method, join
        How the common rows are found; see `woodlot.protocols.align`.
    alignment : str or None
        The job that has found them already.
    subset : tuple of RowSubset, unset by default
        Which of them are used: those in all of these. Every party finds them itself, by a key of the parties.

    """

    method: Literal["keyed-hash", "psi"] = "keyed-hash"
    join: Literal["inner", "outer"] = "inner"
    alignment: JobId | None = None
    subset: RowSubsets = msgspec.UNSET

    every_row: ClassVar[bool] = False
    """Whether every party must have every row."""
    any_rows: ClassVar[bool] = True
    """Whether it can be for some of the common rows only."""

    @property
    def subsets(self) -> tuple[RowSubset, ...]:
        """Which of the common rows are used; empty: all."""
        return subsets_of(self.subset)

    def check(self) -> None:
        """Refuse what cannot be; see `Order`."""
        super().check()
        if self.subsets and not self.any_rows:
            raise RemoteProtocolError(f"an order of the kind {self.kind!r} is for all rows that it names")
        if self.subsets and self.alignment is None and len(self.row_parties) > 1:
            raise RemoteProtocolError("a part of the rows is selected from an alignment that was kept; align first")
        if self.subsets and self.join != "inner":
            raise RemoteProtocolError("a part of the rows is selected at every party: join must be 'inner'")
        if self.every_row and self.join != "inner":
            raise RemoteProtocolError("training needs every row at every party: join must be 'inner'")

    @property
    def row_parties(self) -> tuple[str, ...]:
        """Those of the parties that have rows."""
        return self.parties

    @property
    def names_rows(self) -> bool:
        """Whether every party is told the ids of the rows, so that none are aligned."""
        return False


class AlignOrder(AlignedOrder, frozen=True, tag="align"):
    """Find the common rows, and keep them for later jobs."""

    any_rows: ClassVar[bool] = False


class TrainOrder(AlignedOrder, frozen=True, tag="train"):
    """Grow a forest.

    Attributes
    ----------
    holder : str
        The party with the labels.
    plan : ForestPlan
        What to grow.
    settings : str
        The estimator and its parameters, as JSON: kept with the model for the user.
    name : str
        What the user calls the model.
    server : str, unset by default
        Of a hidden training, the party that is the second server. The first one is the label holder, which leads.
    dealer : str, unset by default
        Of a hidden training, the helper that deals. It is among the parties and has no rows. Unset: the coordinator.

    """

    naming: ClassVar[tuple[str, ...]] = ("holder",)
    every_row: ClassVar[bool] = True

    holder: str
    plan: ForestPlan
    settings: str
    name: str = ""
    server: str | msgspec.UnsetType = msgspec.UNSET
    dealer: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def row_parties(self) -> tuple[str, ...]:
        """Those of the parties that have rows: all but a helper that deals."""
        return without_dealer(self.parties, self.dealer)

    @property
    def is_hidden(self) -> bool:
        """Whether it is to grow on secret shares, so that no message tells which row goes where."""
        return self.plan.protection == "hidden"

    @property
    def second_server(self) -> str:
        """The second server of a hidden training."""
        if isinstance(self.server, msgspec.UnsetType):
            raise RemoteProtocolError("the order names no second server; only one with protection='hidden' has one")
        return self.server

    def check(self) -> None:
        """As every order; and a hidden training has three different parties that must not work together."""
        super().check()
        if not self.is_hidden:
            if (self.server, self.dealer) != (msgspec.UNSET, msgspec.UNSET):
                raise RemoteProtocolError("a second server or a dealer is named for protection='hidden' only")
            return
        if self.leader is None:
            raise RemoteProtocolError("with protection='hidden' the label holder leads; order with lead='holder'")
        check_hidden_roles(self.holder, self.second_server, self.dealer, self.parties)
        try:
            self.plan.check_hidden()
        except DataError as error:
            raise RemoteProtocolError(str(error)) from None


class AnsweredOrder(AlignedOrder, frozen=True, kw_only=True):
    """What orders to predict say of where the answers go.

    Attributes
    ----------
    model : str
        The job that has made the model.
    score_at : str or None
        The party that scores the answers with its labels.
    deliver_to : str or None
        The party that keeps the answers with its ids.
    give_answers : bool
        Whether the user gets the answers.

    """

    naming: ClassVar[tuple[str, ...]] = ("score_at", "deliver_to")

    model: JobId
    score_at: str | None = None
    deliver_to: str | None = None
    give_answers: bool = True

    @property
    def answers_to(self) -> tuple[str, ...]:
        """The parties that are sent the answers."""
        return tuple(dict.fromkeys(party for party in (self.deliver_to, self.score_at) if party is not None))

    @property
    def answers_user(self) -> bool:
        """Whether the user is given the answers."""
        return self.give_answers


class PredictOrder(AnsweredOrder, frozen=True, tag="predict"):
    """Predict with a forest that was grown before.

    Attributes
    ----------
    model, score_at, deliver_to, give_answers
        See `AnsweredOrder`.
    how : {"one-round", "classical", "sealed", "encrypted-splits"}
        How the parties are asked; "encrypted-splits" is FRF-Test, for forests with keys.
    shuffled : (feature, seed), optional
        For permutation importance.
    absent : tuple of str
        Parties whose part of the forest is left out, as if they were away: to measure what they contribute.

    """

    how: Literal["one-round", "classical", "sealed", "encrypted-splits"] = "one-round"
    wire: Wire = "decisions"
    vote: Vote = "soft"
    shuffled: tuple[int, int] | None = None
    absent: tuple[str, ...] = ()

    @property
    def form(self) -> str:
        """How the parties' answers travel, as policies name it."""
        return self.wire if self.how == "one-round" else self.how


class BootstrapPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How confidence intervals are found; see `woodlot.metrics.resampling.Resampling`."""

    n: Annotated[int, msgspec.Meta(ge=0, le=MAX_BOOTSTRAP)] = 0
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0


class EvaluateOrder(PredictOrder, frozen=True, tag="evaluate"):
    """Have the label holder compare a forest's answers with its labels, and tell the user alone how good they are.

    Attributes
    ----------
    bootstrap : BootstrapPlan
        How the report's confidence intervals are found.
    model, score_at, how, wire, vote
        As for `PredictOrder`; ``score_at`` is the label holder.

    """

    give_answers: bool = False
    bootstrap: BootstrapPlan = BootstrapPlan()

    def check(self) -> None:
        """As every order; and answers go to the label holder alone."""
        super().check()
        check_evaluation(self)
        if self.shuffled is not None or self.absent:
            raise RemoteProtocolError("an evaluation is of the whole forest, with nothing shuffled")


class RevokeOrder(AlignedOrder, frozen=True, tag="revoke"):
    """Take a party out of a forest; the parties of the order are those that stay.

    Attributes
    ----------
    model : str
        The job that has grown it.
    leaver : str
        Who leaves.
    level : {1, 3}
        Its nodes only, or exact.
    task : {"classes", "targets"}
        What the label holder's labels are.
    server : str, unset by default
        Of a forest that was grown hidden: the second server of growing it again; see `TrainOrder`.
    dealer : str, unset by default
        Of a forest for which a helper has dealt: this helper, which knows the draws of the training.

    """

    every_row: ClassVar[bool] = True
    any_rows: ClassVar[bool] = False

    model: JobId
    leaver: str
    task: Task
    level: Literal[1, 3] = 1
    server: str | msgspec.UnsetType = msgspec.UNSET
    dealer: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def row_parties(self) -> tuple[str, ...]:
        """Those of the parties that have rows: all but a helper that deals."""
        return without_dealer(self.parties, self.dealer)

    def check(self) -> None:
        """Refuse what cannot be; see `Order`."""
        super().check()
        check_left(self.leaver, self.parties)
        if isinstance(self.server, msgspec.UnsetType):
            if not isinstance(self.dealer, msgspec.UnsetType):
                raise RemoteProtocolError("the order names a dealer and no second server")
            return
        if self.leader is None or self.level != 3:
            raise RemoteProtocolError(
                "a second server is named where a hidden forest is grown again: its label holder leads, at level 3"
            )
        check_hidden_roles(self.leader, self.server, self.dealer, self.parties)


class ScoreOrder(LedOrder, frozen=True, kw_only=True, tag="score"):
    """Open a scoring: rows that the user names by their ids, a few at a time, until it is closed.

    Attributes
    ----------
    model : str
        The job that has grown the forest.
    vote : {"soft", "majority"}
        What a tree answers.

    """

    model: JobId
    vote: Vote = "soft"

    @property
    def answers_user(self) -> bool:
        """The user is given the scores."""
        return True


def check_evaluation(order: AnsweredOrder) -> None:
    if order.score_at is None or order.deliver_to is not None or order.give_answers:
        raise RemoteProtocolError("an evaluation names the label holder, and gives the answers to it alone")


def check_left(leaver: str, parties: tuple[str, ...]) -> None:
    if leaver in parties:
        raise RemoteProtocolError(f"{leaver!r} leaves: it takes no part in growing the forest without it")
