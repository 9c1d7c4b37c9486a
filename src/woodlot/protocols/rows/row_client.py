"""A client of the horizontal forests: what all of their protocols have in common at its side.

The client holds a table and the labels of its rows. Its state says which messages it takes; any other is refused and
changes nothing. All that it does follows from its data, the messages and its secret, so that a run can be replayed.

States and messages::

    idle        DescribeRows  -> described    what columns, categories and classes it has
    described   UseSchema     -> ready        the schema of all clients; the rows are encoded by it
    ready       the messages of the protocol (of the subclass)    -> ready

There is no way back to *idle*: a client serves one job. Within *ready* each protocol has an order of its own, which its
handlers check: levels that ascend, trees that are done once (``check_trees``, ``note_trees``), sums whose round is used
once. Where the plan is known (``plan``) a message that asks for anything else than was ordered is refused.

A handler checks, computes, asks the sums for the masked answer, and only then notes what was done. So a refused
message, also one that the sums refuse, leaves the client as it was. Noise and budget: what a message costs is charged
before its answer leaves; a charge of a message that is refused afterwards is dropped by the runtime with the message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import log2, sqrt
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from woodlot.data.tables import Table
from woodlot.exceptions import RemoteProtocolError
from woodlot.privacy.accounting import Unit
from woodlot.privacy.client_budget import ClientBudget
from woodlot.protocols.core.agreement import Entropy, Signer
from woodlot.protocols.core.bits import smallest_unsigned
from woodlot.protocols.core.blocks import Blocks
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.core.target_codes import TargetCode
from woodlot.protocols.rows import row_messages as msg
from woodlot.protocols.rows.releases import digest_of
from woodlot.protocols.rows.schema import describe, map_classes, map_table
from woodlot.protocols.sums import SumClient
from woodlot.protocols.sums.sum_messages import Mode
from woodlot.trees.alone import Field, Growth
from woodlot.trees.rules import GrowthRules
from woodlot.trees.sampling import Bootstrap, derive_seed

UNLIMITED_DEPTH = 2**31 - 1
LeafAverage = msg.LeafAverage
PositiveInt: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class GrowthPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="method"):
    """What is to be grown, in scikit-learn's terms; counts of rows are of a client's own.

    Every method has a subclass with a tag, which is listed in `woodlot.protocols.rows.methods`.

    Attributes
    ----------
    task : {"classes", "targets"}
        Classification or regression.
    """

    task: msg.Task
    n_estimators: PositiveInt
    criterion: Literal["gini", "entropy", "squared_error"]
    max_depth: PositiveInt | None
    min_samples_split: PositiveInt
    min_samples_leaf: PositiveInt
    max_features: int | float | str | None
    bootstrap: bool
    max_samples: int | float | None
    max_bins: int | None
    seed: int

    # What policies ask of every plan; a method that does otherwise says so.

    @property
    def method(self) -> str:
        """The method's name."""
        return str(type(self).__struct_config__.tag)

    @property
    def fewest_rows(self) -> int:
        """The fewest rows of a client that anything it tells may be of."""
        return self.min_samples_leaf

    @property
    def shows_numbers(self) -> bool:
        """Whether numbers that only their sum is needed of are shown one by one."""
        return False

    @property
    def allows_two(self) -> bool:
        """Whether sums over two clients are allowed, who learn each other's numbers from them."""
        return False

    @property
    def protects(self) -> tuple[Unit, ...]:
        """Of what all that a client tells is differentially private: of labels, of rows, of both or of nothing."""
        return ()

    @property
    def public_classes(self) -> tuple[ClassName, ...] | None:
        """The list of classes that clients keep to: a label that is not in it must not be noticed."""
        return None

    @property
    def public_range(self) -> tuple[float, float] | None:
        """The range of targets that clients keep to: a target that is none must not be noticed."""
        return None

    def settings(self, n_features: int) -> msg.GrowthSettings:
        """What every client is told."""
        return msg.GrowthSettings(
            entropy=self.criterion == "entropy",
            max_depth=UNLIMITED_DEPTH if self.max_depth is None else self.max_depth,
            min_samples_split=self.min_samples_split,
            min_samples_leaf=self.min_samples_leaf,
            n_candidates=self._n_candidates(n_features),
            bootstrap=self.bootstrap,
            max_samples=self.max_samples,
            order_seed=derive_seed(self.seed, "order"),
            bootstrap_seed=derive_seed(self.seed, "bootstrap"),
        )

    def _n_candidates(self, n_features: int) -> int:
        m = self.max_features
        wanted: float
        if m is None:
            wanted = n_features
        elif isinstance(m, str):
            wanted = sqrt(n_features) if m == "sqrt" else log2(n_features)
        else:
            wanted = m if isinstance(m, int) else m * n_features
        return max(1, min(n_features, int(wanted)))


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Holdings:
    """What a client brings to a job: its data, its secrets and its privacy budget.

    Attributes
    ----------
    name : str
        The client.
    table : Table
        Its columns without the labels. Names and kinds are those of every other client, in any order.
    target : Target
        The labels of its rows.
    entropy : callable
        From a purpose to secret bytes, always the same for this client and this job.
    lasting : callable
        From a purpose to secret bytes, always the same for this client: what must be the same in every training, such
        as permanent randomised response.
    bootstrap_secret : bytes
        Keeps the rows that a tree draws from being guessed; the same secret gives the same forest.
    client_budget : ClientBudget or None
        Where differentially private releases are charged, before they are sent; see `woodlot.privacy.client_budget`.
    dataset : str
        What the client calls these rows and labels; randomised response is derived for it.
    row_ids : callable or None
        Returns one id per row, none twice; None where the rows have no ids.
    data_digest : bytes
        Of the rows, where it is known: no mask of a sum is used for two tables.
    job : str
        The job's name, the same at all clients.
    signer : Signer or None
        The client's identity, by which it signs its keys for secure sums.
    shared_secret : bytes or None
        From the configuration, the same at every client; needed where there is no identity.
    allow_two : bool
        Whether this client adds its numbers to those of one other alone, where the plan would have it so.
    n_jobs : int
        Threads.
    device : {"cpu", "cuda", "auto"}
        Where rows are counted, by methods that can do so on a card; nothing that is told depends on it.
    blocks : callable or None
        Spreads the rows over the client's cluster, for methods that can use that; None: they are all here.
    in_one_process : bool
        As for `SumClient`: whether all clients are in this process.
    """

    name: str
    table: Table
    target: Target
    entropy: Entropy
    lasting: Entropy
    bootstrap_secret: bytes = b""
    client_budget: ClientBudget | None = None
    dataset: str = ""
    row_ids: Callable[[], Sequence[bytes]] | None = None
    data_digest: bytes = b""
    job: str = "local"
    signer: Signer | None = None
    shared_secret: bytes | None = None
    allow_two: bool = True
    n_jobs: int = 1
    device: str = "cpu"
    blocks: Callable[[], Blocks] | None = None
    in_one_process: bool = False

    def sum_client(self, mode: Mode, allow_two: bool, quorum: int | float | None = None) -> SumClient:
        """This client's part of the sums of the job.

        Parameters
        ----------
        mode, allow_two
            As the plan says.
        quorum : int, float or None
            How many clients a sum needs, as the plan says; by default all.
        """
        return SumClient(
            self.name,
            job=self.job,
            entropy=self.entropy,
            signer=self.signer,
            shared_secret=self.shared_secret if mode == "secure" else None,
            mode=mode,
            allow_two=allow_two and self.allow_two,
            quorum=quorum,
            data_digest=self.data_digest,
            in_one_process=self.in_one_process,
        )


class RowClientState(StrEnum):
    """Where a client stands."""

    idle = "idle"
    described = "described"
    ready = "ready"


class HorizontalClient(MessageHandler):
    """One client and its rows, for one job. Each protocol has a subclass that takes its own messages.

    Parameters
    ----------
    name : str
        The client.
    table : Table
        Its columns without the labels. Names and kinds are those of every other client, in any order.
    target : Target
        The labels of its rows.
    secret : bytes
        Keeps the rows that a tree draws from being guessed; the same secret gives the same forest.
    plan : GrowthPlan, optional
        What was ordered; a request for anything else is refused.
    n_jobs : int
        Threads.
    """

    state: RowClientState

    def __init__(
        self,
        name: str,
        table: Table,
        target: Target,
        *,
        secret: bytes = b"",
        plan: GrowthPlan | None = None,
        n_jobs: int = 1,
    ) -> None:
        self.name = name
        self.table = table
        self.target = target
        self.plan = plan
        self.n_jobs = n_jobs
        self.state = RowClientState.idle
        self._secret = secret
        self._task: msg.Task = "classes"
        self._schema: msg.UseSchema | None = None
        self._whole_field: Field | None = None
        self._done: dict[type[Message], dict[int, bytes]] = {}

    def check_ordered(self, message: Message, **fields: object) -> None:
        """Refuse a request that asks for something else than the plan, where there is one.

        Parameters
        ----------
        message : Message
            The request.
        **fields
            What it asks for, by the names of the plan's fields.
        """
        if self.plan is None:
            return
        for name, value in fields.items():
            if getattr(self.plan, name) != value:
                raise RemoteProtocolError(f"{type(message).__name__} is not what was ordered: another {name}")

    def check_trees(self, message: Message, trees: range, *, once: bool = False) -> None:
        """Refuse trees beyond those of the plan, and to do something else with a tree than was done before.

        Parameters
        ----------
        message : Message
            The request.
        trees : range
            Which trees it is about, from 0 on: messages are checked for that.
        once : bool
            Refuse the same again, too: its answer would be another, and paid for.
        """
        if self.plan is None:
            return
        done, digest = self._done.get(type(message), {}), b"" if once else digest_of(message)
        if trees.stop > self.plan.n_estimators or any(done.get(tree, digest) != digest for tree in trees):
            raise RemoteProtocolError(
                f"{type(message).__name__} is not what was ordered: more trees, or another time one that is done"
            )

    def note_trees(self, message: Message, trees: range) -> None:
        """What a message has asked for was done with these trees."""
        self._done.setdefault(type(message), {}).update(dict.fromkeys(trees, digest_of(message)))

    # --- the common schema ---

    @takes(msg.DescribeRows, when=RowClientState.idle, then=RowClientState.described)
    def _on_DescribeRows(self, message: msg.DescribeRows) -> msg.RowsDescribed:
        self.check_ordered(message, task=message.task)
        labels = self.target.numbers if message.task == "classes" else self.target.values
        if len(labels) != self.table.n_rows:
            raise RemoteProtocolError("DescribeRows asks for labels of the other kind")
        described = describe(self.table, self.target)
        self._task = message.task
        return described

    @takes(msg.UseSchema, when=RowClientState.described, then=RowClientState.ready)
    def _on_UseSchema(self, message: msg.UseSchema) -> msg.SchemaInUse:
        self.check_ordered(message, max_bins=message.max_bins)
        table = map_table(self.table, message)
        labels: Any = np.zeros(table.n_rows, np.int64)
        if self._task == "classes":
            labels = smallest_unsigned(map_classes(self.target, message.classes))
        n_classes = len(message.classes) if self._task == "classes" else 0
        self._whole_field = Field.of(table, labels, n_classes, message.max_bins, self.n_jobs)
        self._schema = message
        return msg.SchemaInUse()

    @property
    def schema(self) -> msg.UseSchema:
        """The common schema."""
        if self._schema is None:
            raise RemoteProtocolError("no schema is in use here")
        return self._schema

    def digest_of(self, message: Message) -> bytes:
        """What is asked, and of which columns and classes: the same at all clients that are asked the same."""
        return digest_of(self.schema) + digest_of(message)

    @property
    def rows(self) -> Field:
        """All rows of this client, on the common schema."""
        if self._whole_field is None:
            raise RemoteProtocolError("no schema is in use here")
        return self._whole_field

    # --- growing ---

    def growth(self, settings: msg.GrowthSettings) -> tuple[Field, Growth]:
        """What this client grows trees on, and how, for settings that go together."""
        n_rows, n_features = self.table.n_rows, len(self.schema.names)
        share = settings.max_samples
        if (
            min(settings.max_depth, settings.min_samples_leaf, settings.n_candidates) < 1
            or settings.min_samples_split < 2
            or settings.n_candidates > n_features
            or (share is not None and not 0 < share < 2**31)
        ):
            raise RemoteProtocolError("the settings of growth are out of range")
        if self.plan is not None and settings != self.plan.settings(n_features):
            raise RemoteProtocolError("the settings of growth are not those that were ordered")
        weights, factor = (None, 1.0) if n_rows == 0 else self.target.integer_weights(balanced=False, class_weight=())
        n_draws = n_rows
        if settings.bootstrap and share is not None:
            total = n_rows if weights is None else float(weights.sum()) / factor
            n_draws = share if isinstance(share, int) else max(1, int(share * total))
        seed = derive_seed(settings.bootstrap_seed, f"rows of {self.name}", secret=self._secret)
        growth = Growth(
            rules=GrowthRules(
                entropy=settings.entropy,
                max_depth=settings.max_depth,
                min_samples_split=settings.min_samples_split,
                min_samples_leaf=settings.min_samples_leaf,
                min_weight=1,
                whole_tree=False,
            ),
            n_candidates=settings.n_candidates,
            bootstrap=Bootstrap(seed if settings.bootstrap else None, n_draws, weights),
            seed=settings.order_seed,
            n_jobs=self.n_jobs,
        )
        in_tree = n_rows if weights is None or settings.bootstrap else int(weights.sum())
        return self._field(max(n_draws, in_tree)), growth

    def _field(self, heaviest: int) -> Field:
        """The rows with labels as the search takes them; targets in fixed point for trees of this weight."""
        field = self.rows
        if field.n_classes or field.n_rows == 0:
            return field
        values = self.target.values
        return replace(field, labels=TargetCode.draw(values, float(heaviest), b"").encode(values))
