"""The collaborative forest of the slides: trees go round all clients and grow at each; then all fill the leaves.

::

    round 1, 2    every client   the common schema
    round 3, 4    every client   agreement on keys for secure sums
    k rounds      every client   *grow*: grows its present subset of the trees on at their leaves; with k clients there
                                 are k subsets, each with another client in every round, so nobody waits
    some rounds   every client   *adjust*: what its rows leave in the leaves of all trees, as vectors of a sum

No leaf leaves a client while trees grow. In *adjust* the coordinator learns the sum over the clients only, and each
client merges what fewer than ``min_leaf_rows`` of its rows have left in a leaf with its neighbours, up to the first
node where enough come together. A leaf that no client reports answers as its deepest ancestor at or below which any
does. Where no client has enough rows at all, trees give every class the same share, or 0 as a target.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.privacy.client_budget import ClientBudget
from woodlot.privacy.noise import CountNoise
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import row_messages as msg
from woodlot.protocols.rows.grid import check_grid, snap_table
from woodlot.protocols.rows.local_forests import deal_trees, tree_chunks
from woodlot.protocols.rows.makers import Made, grown_on, nobody
from woodlot.protocols.rows.releases import digest_of, needed, noise_charge, release_name, tell_noisy
from woodlot.protocols.rows.row_client import GrowthPlan, HorizontalClient, LeafAverage, PositiveInt, RowClientState
from woodlot.protocols.rows.schema import NO_MAGNITUDE, CommonSchema, Rounds, agree_on_schema, map_table
from woodlot.protocols.rows.whole_forest import fields_of, trees_of, whole_forest
from woodlot.protocols.sums import SumClient, SumSession, from_fixed, open_sums, sum_messages, sum_round, to_fixed
from woodlot.trees.alone import WholeTrees, grow_on, join_trees
from woodlot.trees.encoding import encode
from woodlot.trees.fill import Levels, fill_leaves
from woodlot.trees.forest import Leaves, Structure, depth_of, join_leaves
from woodlot.trees.parallel import run_chunks

SHARE_BITS = 20
"""Class probabilities are added as multiples of 2^-20."""
_MOST_BITS = 52


class CollaborativePlan(GrowthPlan, frozen=True, tag="collaborative"):
    """Every tree grows at every client, and all clients fill its leaves.

    Attributes
    ----------
    min_leaf_rows : int
        A client keeps to itself what fewer of its rows have left in a leaf.
    leaf_average : {"rows", "plain"}
        Whether a client's answer counts by its rows in the leaf, or as any other's.
    sums : {"secure", "plain"}
        Whether the coordinator sees the sum of what the clients leave in the leaves, or (for debugging) each client's.
    allow_two : bool
        Allow secure sums over two clients, who then know each other's numbers.
    dp_leaf_epsilon : float or None
        Every client adds integer Laplace noise to its counts in the leaves: this is what a tree costs a row.
    grid : dict of str to (float, float), or None
        Public ranges of the columns of numbers: thresholds are then points of a grid in them, not of clients' values.
    """

    min_leaf_rows: PositiveInt = 1
    leaf_average: LeafAverage = "plain"
    sums: sum_messages.Mode = "secure"
    allow_two: bool = False
    dp_leaf_epsilon: Annotated[float, msgspec.Meta(gt=0)] | None = None
    grid: dict[str, tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        """Refuse noise that would not be what it says."""
        if self.dp_leaf_epsilon is None:
            return
        if self.task == "targets":
            raise ValueError("dp_leaf_epsilon is for counts of classes, not for targets")
        if self.leaf_average != "rows":
            raise ValueError("dp_leaf_epsilon needs leaf_average='rows': one row can change a whole share of classes")
        if self.min_leaf_rows != 1:
            raise ValueError(
                "dp_leaf_epsilon takes the place of min_leaf_rows, which must be 1: what is kept back depends on "
                "single rows, and noise for one row would not cover it"
            )

    @property
    def fewest_rows(self) -> int:
        return self.min_samples_leaf if self.dp_leaf_epsilon else min(self.min_samples_leaf, self.min_leaf_rows)

    @property
    def shows_numbers(self) -> bool:
        return self.sums == "plain"

    @property
    def allows_two(self) -> bool:
        return self.allow_two


def collaborative_forest(plan: CollaborativePlan, clients: Sequence[str]) -> Rounds:
    """Coordinator: grow a forest over all clients' rows; returns the parts of the whole model.

    Parameters
    ----------
    plan : CollaborativePlan
        What to grow.
    clients : sequence of str
        Everybody who takes part.
    """
    schema = yield from agree_on_schema(clients, plan.task, plan.max_bins)
    check_grid(plan.grid, schema)
    session = yield from open_sums(clients, mode=plan.sums, allow_two=plan.allow_two)
    start = WholeTrees.single_leaves(plan.n_estimators)
    trees, makers = yield from pass_round(plan, clients, schema, start, nobody(start))
    leaves, gain = yield from adjust(plan, session, schema, trees)
    return whole_forest(trees, leaves, gain, schema, makers)


def pass_round(
    plan: CollaborativePlan, clients: Sequence[str], schema: CommonSchema, start: WholeTrees, makers: Made
) -> Generator[Round, dict[str, Message], tuple[WholeTrees, Made]]:
    """Pass the subsets of the trees round until every client has grown every tree; returns also who has split what."""
    settings = plan.settings(len(schema.names))
    subsets = deal_trees(plan.n_estimators, len(clients))
    grown = [start.take(subset.start, subset.stop) for subset in subsets]
    offset = start.structure.offset
    made = [makers[offset[subset.start] : offset[subset.stop]] for subset in subsets]
    for turn in range(len(clients)):
        at = {clients[(i + turn) % len(clients)]: i for i, subset in enumerate(subsets) if len(subset)}
        requests: dict[str, Message] = {
            client: msg.GrowOn(settings=settings, **fields_of(grown[i], subsets[i].start)) for client, i in at.items()
        }
        done = plan.n_estimators * turn // len(clients)
        replies = yield Round("grow", requests, Progress(done, plan.n_estimators, f"turn {turn + 1}/{len(clients)}"))
        for client, i in at.items():
            reply = reply_of(replies[client], msg.GrownTrees, client)
            trees = trees_of(reply, schema.categories, client)
            if trees.structure.n_trees != len(subsets[i]):
                raise RemoteProtocolError(f"{client} did not return the trees that it was sent")
            made[i] = grown_on(grown[i], made[i], trees, clients.index(client), client)
            grown[i] = trees
    return join_trees([trees for trees, subset in zip(grown, subsets, strict=True) if len(subset)]), np.concatenate(
        made
    )


def adjust(
    plan: CollaborativePlan, session: SumSession, schema: CommonSchema, trees: WholeTrees
) -> Generator[Round, dict[str, Message], tuple[Leaves, NDArray[np.float64]]]:
    """Sum what all clients leave in the leaves, some trees at a time."""
    width = tally_width(schema.classes, plan.leaf_average)
    fraction_bits = _fraction_bits(schema)
    leaves, gains = [], []
    for some in tree_chunks(trees.structure, width):
        part = trees.take(some.start, some.stop)
        cells = tally_nodes(part.structure, plan.min_leaf_rows)

        def request(order: sum_messages.SumOrder, part: WholeTrees = part, first: int = some.start) -> Message:
            return msg.FillLeaves(
                **fields_of(part, first),
                order=order,
                average=plan.leaf_average,
                min_rows=plan.min_leaf_rows,
                fraction_bits=fraction_bits,
            )

        sums = yield from sum_round(
            session,
            "adjust",
            request,
            length=len(cells) * width,
            bound=_bound(plan, schema),
            progress=Progress(plan.n_estimators, plan.n_estimators, f"leaves of {some.start}/{plan.n_estimators}"),
        )
        tally = np.zeros((part.structure.n_nodes, width), np.int64)
        tally[cells] = sums.reshape(len(cells), width)
        filled, gain = _fill(part.structure, tally, plan, schema, fraction_bits)
        leaves.append(filled)
        gains.append(gain)
    return join_leaves(leaves), np.concatenate(gains)


def _fill(
    structure: Structure, tally: NDArray[np.int64], plan: CollaborativePlan, schema: CommonSchema, fraction_bits: int
) -> tuple[Leaves, NDArray[np.float64]]:
    """From the sum of all tallies to the leaves' answers."""
    if plan.dp_leaf_epsilon is not None:
        tally = np.maximum(tally, 0)
    if (tally[:, : None if schema.classes else -1] < 0).any():
        raise RemoteProtocolError("clients reported fewer than 0 rows in a leaf")
    if schema.classes:
        counts = tally if plan.leaf_average == "rows" else tally[:, 1:]
        sums = counts.astype(np.float64)
        votes = sums.sum(axis=1)
        rows = votes if plan.leaf_average == "rows" else tally[:, 0].astype(np.float64)
    else:
        rows, votes = tally[:, 0].astype(np.float64), tally[:, -2].astype(np.float64)
        scaled = from_fixed(tally[:, -1:], fraction_bits)
        sums = np.ldexp(scaled, _exponent(schema.magnitude))
    return fill_leaves(structure, rows, votes, sums, plan.criterion)


# --- the tally of the leaves: its layout, and the numbers of one client ---


def tally_width(classes: Sequence[object], average: msg.LeafAverage) -> int:
    """How many numbers there are for a node.

    ::

        classes, by rows     rows of each class
        classes, plain       rows, shares of each class
        targets, by rows     rows, sum of targets
        targets, plain       rows, clients, mean target
    """
    if classes:
        return len(classes) + (average == "plain")
    return 2 + (average == "plain")


def tally_nodes(structure: Structure, min_rows: int) -> NDArray[np.int64]:
    """The nodes that a tally is of: the leaves, and all others if what is too little may be moved up."""
    return np.flatnonzero(structure.right < 0) if min_rows <= 1 else np.arange(structure.n_nodes)


def _bound(plan: CollaborativePlan, schema: CommonSchema) -> int | None:
    """The largest number of one client, where it is small enough to save bytes: a bound that tells nothing."""
    if not schema.classes or plan.dp_leaf_epsilon is not None:
        return None
    return schema.count_bound(1 << SHARE_BITS)


def _fraction_bits(schema: CommonSchema) -> int:
    """As many as the sum of all targets leaves room for."""
    rows, clients = max(schema.n_rows.values()), len(schema.n_rows)
    return 0 if schema.classes else min(_MOST_BITS, 61 - rows.bit_length() - clients.bit_length())


def _exponent(magnitude: int) -> int:
    return 0 if magnitude == NO_MAGNITUDE else magnitude


class CollaborativeClient(HorizontalClient):
    """A client that grows trees on and fills their leaves.

    States are those of `HorizontalClient`. In *ready*, GrowOn and FillLeaves come for some trees at a time. A tree is
    grown on once at this client, and its leaves are filled once; the same message again gives the same answer (with
    noise it is refused), another one for the same tree is refused. Leaves are filled only of trees that contain what
    this client has grown (``_grown``). A refused message changes nothing.

    Parameters
    ----------
    name, table, target, secret, plan, n_jobs
        As for `HorizontalClient`.
    sums : SumClient
        Its part of the sums.
    min_leaf_rows : int
        Policy: it refuses to report what fewer rows have left in a leaf.
    client_budget : ClientBudget, optional
        Where noise on counts is charged; needed only for a plan that orders it.
    job : str
        The job's name, for the record of charges.
    dataset : str
        What the client calls these rows and labels.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        target: Target,
        *,
        sums: SumClient,
        min_leaf_rows: int = 1,
        secret: bytes = b"",
        plan: CollaborativePlan | None = None,
        n_jobs: int = 1,
        client_budget: ClientBudget | None = None,
        job: str = "",
        dataset: str = "",
    ) -> None:
        super().__init__(name, table, target, secret=secret, plan=plan, n_jobs=n_jobs)
        self._sums = sums
        self._min_leaf_rows = min_leaf_rows
        self._epsilon = None if plan is None else plan.dp_leaf_epsilon
        self._grid = None if plan is None else plan.grid
        self._client_budget, self._job, self._dataset = client_budget, job, dataset
        self._grown: dict[int, WholeTrees] = {}

    def _on_UseSchema(self, message: msg.UseSchema) -> msg.SchemaInUse:
        ready = super()._on_UseSchema(message)
        if self._grid is not None and self._whole_field is not None:
            # splits are searched on the grid, and rows are sent down trees by their own values
            snapped = snap_table(map_table(self.table, message), self._grid)
            codes = encode(snapped, max_bins=message.max_bins, n_jobs=self.n_jobs)
            self._whole_field = replace(self._whole_field, codes=codes)
        return ready

    @takes(sum_messages.OpenSums, sum_messages.StartSums, when=RowClientState.ready)
    def _set_up_sums(self, message: Message) -> Message:
        return self._sums.handle(message)

    @takes(msg.GrowOn, when=RowClientState.ready)
    def _on_GrowOn(self, message: msg.GrowOn) -> msg.GrownTrees:
        given = trees_of(message, self.schema.categories, "the coordinator")
        field, growth = self.growth(message.settings)
        trees = range(message.first_tree, message.first_tree + given.structure.n_trees)
        self.check_trees(message, trees)
        self._check_depth(message, given)
        grown = grow_on(field, growth, trees, given)
        self.note_trees(message, trees)
        self._grown |= {tree: grown.take(k, k + 1) for k, tree in enumerate(trees)}
        return msg.GrownTrees(**fields_of(grown, message.first_tree))

    def _check_depth(self, message: Message, trees: WholeTrees) -> None:
        limit = None if self.plan is None else self.plan.max_depth
        if limit is not None and depth_of(trees.structure) > limit:
            raise RemoteProtocolError(f"{type(message).__name__} carries a tree that is deeper than max_depth={limit}")

    def _check_own_splits(self, trees: WholeTrees, numbers: range) -> None:
        """Leaves are filled of trees that have grown here: others could be made up to single out rows."""
        if self.plan is None:
            return
        for k, tree in enumerate(numbers):
            if tree not in self._grown:
                raise RemoteProtocolError("FillLeaves carries a tree that has not grown at this client")
            own = self._grown[tree]
            grown_on(own, nobody(own), trees.take(k, k + 1), 0, "the coordinator")

    @takes(msg.FillLeaves, when=RowClientState.ready)
    def _on_FillLeaves(self, message: msg.FillLeaves) -> Message:
        trees = trees_of(message, self.schema.categories, "the coordinator")
        classes = self.schema.classes
        cells = tally_nodes(trees.structure, message.min_rows)
        self.check_ordered(message, leaf_average=message.average, min_leaf_rows=message.min_rows)
        if message.order.length != len(cells) * tally_width(classes, message.average):
            raise RemoteProtocolError("FillLeaves asks for numbers that do not fit its trees")
        if message.min_rows < self._min_leaf_rows:
            raise PolicyError(
                f"this client reports what {self._min_leaf_rows} or more of its rows leave in a leaf, and was asked "
                f"about {message.min_rows}"
            )
        if not 0 <= message.fraction_bits <= _MOST_BITS:
            raise RemoteProtocolError(f"FillLeaves asks for {message.fraction_bits} bits after the point")
        numbers = range(message.first_tree, message.first_tree + trees.structure.n_trees)
        self.check_trees(message, numbers)
        self._check_depth(message, trees)
        self._check_own_splits(trees, numbers)
        self._sums.check(message.order, fresh=self._epsilon is not None)  # before any noise is paid for
        tally = self.tally(trees, message.average, message.min_rows, message.fraction_bits)[cells]
        if self._epsilon is not None:
            tally = self._noisy(message, tally, trees.structure.n_trees)
        reply = self._sums.answer(message.order, tally.ravel(), self.digest_of(message))
        self.note_trees(message, numbers)
        return reply

    def _noisy(self, message: msg.FillLeaves, tally: NDArray[np.int64], n_trees: int) -> NDArray[np.int64]:
        """Counts with noise: a row is counted in one leaf of every tree."""
        if self._epsilon is None or not isinstance(self.plan, CollaborativePlan):
            raise RemoteProtocolError("no noise was ordered")
        noise, client_budget, job = CountNoise(self._epsilon), needed(self._client_budget), self._job
        if message.first_tree == 0:  # rather than to run out of it in the middle
            client_budget.check(noise_charge(f"{job} leaves", noise.spend(self.plan.n_estimators), job))
        release = release_name(job, "leaves", self._dataset.encode(), digest_of(message))
        return tell_noisy(tally, noise, client_budget, release=release, job=job, queries=n_trees)

    def tally(
        self, trees: WholeTrees, average: msg.LeafAverage, min_rows: int, fraction_bits: int
    ) -> NDArray[np.int64]:
        """What this client's rows leave at every node, in the layout of `tally_width`: all that goes into the sum."""
        rows, amounts = self._count(trees, fraction_bits)
        if min_rows > 1:
            Levels(trees.structure).merge_small(rows, amounts, min_rows)
        some = np.maximum(rows, 1)[:, None]
        if self.schema.classes:
            return amounts if average == "rows" else np.column_stack([rows, to_fixed(amounts / some, SHARE_BITS)])
        if average == "rows":
            return np.column_stack([rows, amounts])
        return np.column_stack([rows, rows > 0, np.rint(amounts / some).astype(np.int64)])

    def _count(self, trees: WholeTrees, fraction_bits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows at each leaf, and rows of each class or sums of targets in fixed point."""
        field, offset = self.rows, trees.structure.offset
        ends = trees.leaves_of(field.columns, field.n_rows, self.n_jobs)
        n_classes = field.n_classes
        labels = field.labels.astype(np.int64)
        values = to_fixed(np.ldexp(self.target.values, -_exponent(self.schema.magnitude)), fraction_bits)
        rows = np.zeros(trees.structure.n_nodes, np.int64)
        amounts = np.zeros((trees.structure.n_nodes, max(1, n_classes)), np.int64)

        def count(tree: int) -> None:
            low, high = int(offset[tree]), int(offset[tree + 1])
            at = ends[:, tree] - np.int64(low)
            rows[low:high] = np.bincount(at, minlength=high - low)
            if n_classes:
                flat = np.bincount(at * n_classes + labels, minlength=(high - low) * n_classes)
                amounts[low:high] = flat.reshape(high - low, n_classes)
            else:
                np.add.at(amounts[low:high, 0], at, values)

        run_chunks(count, range(trees.structure.n_trees), self.n_jobs)
        return rows, amounts
