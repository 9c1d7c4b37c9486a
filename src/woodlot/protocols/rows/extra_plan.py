"""What a user orders of federated extra-trees, and the rounds before trees grow: columns, classes and ranges."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np

from woodlot.exceptions import RemoteProtocolError
from woodlot.privacy.accounting import UNITS, Unit
from woodlot.privacy.settings import GlobalDP, LocalDP
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.rows import extra_messages as msg
from woodlot.protocols.rows import row_messages
from woodlot.protocols.rows.declared_schema import Declared, describe_columns, use_declared
from woodlot.protocols.rows.row_client import GrowthPlan, PositiveInt
from woodlot.protocols.rows.schema import PHASE, CommonSchema, unite
from woodlot.protocols.sums import SumSession, sum_messages, sum_round
from woodlot.trees.extra import Axes

Ranges = Literal["declared", "proposals", "private-quantiles"]

QUANTILES = tuple(k / 8 for k in range(1, 8))
"""Which quantiles of a column are told, where thresholds follow them."""
MIN_PROPOSAL_ROWS = 10
"""From so many rows in a node on a client proposes thresholds there, unless told otherwise."""
LARGEST_DEPTH_BY_CHANCE = 16
"""Trees whose splits do not look at the data are complete, and twice as large with every level."""
NO_RANGE = (0.0, 1.0)
"""Stands for the range of a column whose thresholds the clients propose."""


class ExtraTreesPlan(GrowthPlan, frozen=True, tag="extra-trees"):
    """What is to be grown; counts of rows are of all clients together.

    Attributes
    ----------
    ranges : {"declared", "proposals", "private-quantiles"}
        Where thresholds come from.
    knots : dict of str to tuple of float
        The declared range of each column of numbers: its ends, and points between them that thresholds lie between
        equally often. A column whose ends are equal is not asked.
    known_categories : dict of str to tuple of str
        The declared categories of columns.
    classes : tuple or None
        The public list of classes; None: those that occur, which clients then tell.
    privacy : LocalDP, GlobalDP or None
        How labels or counts are protected.
    quantile_epsilon : float
        Of the private quantiles of all columns together, where they are used.
    min_proposal_rows : int
        A client proposes a threshold only where it has as many rows.
    sums, allow_two
        As for the collaborative forest.
    """

    ranges: Ranges = "declared"
    knots: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    known_categories: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    classes: tuple[ClassName, ...] | None = None
    privacy: LocalDP | GlobalDP | None = None
    quantile_epsilon: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    min_proposal_rows: PositiveInt = MIN_PROPOSAL_ROWS
    sums: sum_messages.Mode = "secure"
    allow_two: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be kept, with the reason."""
        if self.privacy is None:
            return
        if self.task == "targets":
            raise ValueError("targets cannot be told under differential privacy: privacy must be None for regression")
        if self.classes is None:
            raise ValueError(
                "under differential privacy the list of classes must be public: name them with classes=[...]; a list "
                "that is found in the data would tell who has which"
            )
        if isinstance(self.privacy, GlobalDP):
            if self.max_depth is None:
                raise ValueError("GlobalDP needs max_depth: what a row costs must be known before the first answer")
            if self.privacy.leaves_only and self.max_depth > LARGEST_DEPTH_BY_CHANCE:
                raise ValueError(
                    f"with leaves_only max_depth is at most {LARGEST_DEPTH_BY_CHANCE}, not {self.max_depth}: the trees "
                    "are complete"
                )
            if self.ranges == "proposals":
                raise ValueError(
                    "ranges='proposals' tells values of rows, which GlobalDP is to protect; use 'declared' or "
                    "'private-quantiles'"
                )

    @property
    def fewest_rows(self) -> int:
        return 1 if self.shows_numbers and self.privacy is None else self.min_samples_leaf

    @property
    def shows_numbers(self) -> bool:
        return self.sums == "plain"

    @property
    def allows_two(self) -> bool:
        return self.allow_two

    @property
    def protects(self) -> tuple[Unit, ...]:
        if self.privacy is None:
            return ()
        return UNITS if isinstance(self.privacy, GlobalDP) else ("labels",)

    @property
    def public_classes(self) -> tuple[ClassName, ...] | None:
        return None if self.privacy is None else self.classes

    def width(self, n_features: int) -> int:
        """Candidates at a node."""
        if isinstance(self.privacy, GlobalDP) and self.privacy.leaves_only:
            return 1
        return self.settings(n_features).n_candidates

    def queries(self, n_features: int) -> int:
        """How many histograms a row is counted in at most, under GlobalDP: one per candidate, level and tree."""
        if not isinstance(self.privacy, GlobalDP) or self.max_depth is None:
            raise ValueError("queries are counted under GlobalDP")
        levels = 0 if self.privacy.leaves_only else self.max_depth
        return self.n_estimators * (levels * self.width(n_features) + 1)


def agree(plan: ExtraTreesPlan, clients: Sequence[str]) -> Generator[Round, dict[str, Message], CommonSchema]:
    """Compare the clients' columns, and tell all of them what they have together, and what was declared."""
    if plan.privacy is None:
        replies = yield Round(PHASE, {client: row_messages.DescribeRows(task=plan.task) for client in clients})
        told = {client: reply_of(reply, row_messages.RowsDescribed, client) for client, reply in replies.items()}
        schema = unite(told, plan.task)
    else:
        schema = yield from describe_columns(clients, plan.task, hide_rows=isinstance(plan.privacy, GlobalDP))
    declared = Declared(
        plan.knots,
        plan.known_categories,
        needs_ranges=plan.ranges != "proposals",
        needs_categories=isinstance(plan.privacy, GlobalDP),
    )
    schema = yield from use_declared(clients, schema, declared, plan.classes, plan.max_bins)
    return schema


def find_axes(
    plan: ExtraTreesPlan, clients: Sequence[str], schema: CommonSchema
) -> Generator[Round, dict[str, Message], Axes]:
    """Where thresholds are drawn."""
    declared = {} if plan.ranges == "proposals" else plan.knots
    knots = [
        np.unique(declared.get(name, NO_RANGE)) if categories is None else np.empty(0)
        for name, categories in zip(schema.names, schema.categories, strict=True)
    ]
    if plan.ranges == "private-quantiles":
        replies = yield Round(PHASE, dict.fromkeys(clients, msg.TellQuantiles()))
        told = [reply_of(reply, msg.QuantilesTold, client).values for client, reply in replies.items()]
        numeric = [f for f, some in enumerate(knots) if len(some) > 1]
        for values in told:
            if values.shape != (len(numeric), len(QUANTILES)) or not np.isfinite(values).all():
                raise RemoteProtocolError("a client told other quantiles than it was asked for")
        for row, f in enumerate(numeric):
            low, high = knots[f][0], knots[f][-1]
            inner = np.mean([np.clip(np.sort(values[row]), low, high) for values in told], axis=0)
            knots[f] = np.unique([low, *inner, high])
    return Axes(schema.names, tuple(knots), schema.categories)


def count_outside(
    plan: ExtraTreesPlan, session: SumSession, schema: CommonSchema
) -> Generator[Round, dict[str, Message], dict[str, int]]:
    """How many values of each column were clipped; not asked where it would tell of rows that are protected."""
    if plan.ranges == "proposals" or isinstance(plan.privacy, GlobalDP):
        return {}
    n = len(schema.names)
    sums = yield from sum_round(session, PHASE, lambda order: msg.CountOutside(order=order), length=n)
    return {name: int(count) for name, count in zip(schema.names, sums, strict=True) if count}
