"""What a user orders of a private forest, and what follows from it: how much of the budget goes where, and the noise.

Coordinator and clients compute the same terms of the same plan, so that no client has to believe what it is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import msgspec

from woodlot.privacy.accounting import UNITS, Spend, Unit
from woodlot.privacy.gaussian import SharedNoise, gaussian_epsilon, mu_for
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.rows.row_client import GrowthPlan
from woodlot.protocols.sums import minimum_clients, quorum_of, wanted_quorum
from woodlot.protocols.sums.sum_messages import Quorum, WaitSeconds

MOST_EPSILON = 1000
"""Beyond it there is no protection to speak of, and no use in more."""
MOST_DEPTH = 12
"""Trees are complete, and twice as large with every level."""
CELLS = 64
"""Cells of a column's histogram, from which its knots follow."""
SKEW = 3
"""Edges of the cells are at (k / CELLS)^SKEW of the declared range: amounts lie near its low end more often."""
COUNT_WEIGHT = 0.25
"""How much a row adds to the number of rows of its leaf, beside a gradient of at most `clip`."""
CLIP_TWO, CLIP_SEVERAL, CLIP_TARGETS = 1.0, 0.75, 0.25
"""The longest gradient of a row: of two classes (none is longer), of several, and of targets between -1 and 1."""
_ROWS_OF_CLASSES, _ROWS_OF_TARGETS = 60, 2000
"""Rows, times epsilon, that a leaf has at least on average where the depth is not given."""
FEWEST_STEPS = 16
"""The fewest steps that a row is counted in: with fewer, rounding is more than a detail."""
_WITH_KNOTS, _WITHOUT_KNOTS = 0.05, 0.02
"""Which share of the budget, in mu squared, goes to the totals."""

Probability = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class PrivatePlan(GrowthPlan, frozen=True, tag="private"):
    """Boosted random trees under differential privacy of rows.

    Attributes
    ----------
    epsilon, delta : float
        What the whole training costs a row.
    colluding : int
        How many clients may tell their noise to others, and the guarantee still holds.
    knots : dict of str to tuple of float
        The declared range of each column of numbers: its ends.
    known_categories : dict of str to tuple of str
        The declared categories of columns.
    classes : tuple or None
        The public list of classes; None for targets.
    target_range : (float, float) or None
        The public range of the targets; None for classes.
    learning_rate : float
        How far each tree goes.
    private_knots : bool
        Whether thresholds follow histograms of the columns, which cost a part of the budget; else the declared ranges.
    columns_per_tree : int or None
        How many columns a tree asks about; None: all.
    allow_two : bool
        Allow secure sums over two clients.
    spare_after, quorum
        As for the lossless forest. The noise of the fewest clients that a sum may have is enough for the guarantee.
    """

    epsilon: Annotated[float, msgspec.Meta(gt=0, le=MOST_EPSILON)]
    delta: Probability
    colluding: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 1
    knots: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    known_categories: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    classes: tuple[ClassName, ...] | None = None
    target_range: tuple[float, float] | None = None
    learning_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.3
    private_knots: bool = True
    columns_per_tree: Annotated[int, msgspec.Meta(ge=1)] | None = None
    allow_two: bool = False
    spare_after: WaitSeconds | None = None
    quorum: Quorum | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be kept, with the reason."""
        if self.task == "classes" and (self.classes is None or len(self.classes) < 2):
            raise ValueError(
                "a private forest needs the public list of classes, two or more: name them with classes=[...]; a list "
                "that is found in the data would tell who has which"
            )
        if self.task == "targets":
            if self.target_range is None:
                raise ValueError(
                    "a private forest needs the public range of the targets: target_range=(low, high); one that is "
                    "found in the data would tell of rows"
                )
            low, high = self.target_range
            if not (math.isfinite(low) and math.isfinite(high - low) and low < high):
                raise ValueError(f"target_range needs finite ends with low < high, not {low!r} and {high!r}")
        if self.max_depth is not None and self.max_depth > MOST_DEPTH:
            raise ValueError(f"max_depth is at most {MOST_DEPTH}, not {self.max_depth}: the trees are complete")
        mu_for(self.epsilon, self.delta)

    @property
    def allows_two(self) -> bool:
        return self.allow_two

    @property
    def needed(self) -> int | float | None:
        """How many clients a sum needs; None for all."""
        return wanted_quorum(self.spare_after, self.quorum)

    def fewest(self, n_clients: int) -> int:
        """How many of so many clients a sum has at least.

        Raises
        ------
        ConfigError
            If the quorum is not possible.
        """
        return quorum_of(self.needed, n_clients, minimum_clients("secure", self.allow_two)) or n_clients

    @property
    def protects(self) -> tuple[Unit, ...]:
        return UNITS

    @property
    def public_classes(self) -> tuple[ClassName, ...] | None:
        return self.classes

    @property
    def public_range(self) -> tuple[float, float] | None:
        return self.target_range

    @property
    def spend(self) -> Spend:
        """What the training costs a row."""
        return Spend(self.epsilon, 1, self.delta)

    @property
    def n_scores(self) -> int:
        """Numbers that trees add up: one for two classes or for targets, else one for each class."""
        n = len(self.classes or ())
        return n if n > 2 else 1

    @property
    def clip(self) -> float:
        """The longest gradient of a row."""
        if self.task == "targets":
            return CLIP_TARGETS
        return CLIP_TWO if self.n_scores == 1 else CLIP_SEVERAL

    def depth(self, n_rows: float) -> int:
        """Levels of the trees, for about so many rows of all clients: so that leaves are more than noise."""
        if self.max_depth is not None:
            return self.max_depth
        most = 5 if self.columns_per_tree is not None else 8
        rows = _ROWS_OF_CLASSES if self.task == "classes" else _ROWS_OF_TARGETS
        return int(min(max(math.log2(max(n_rows * min(self.epsilon, 8.0), 1.0) / rows), 3), most))


@dataclass(frozen=True)
class Terms:
    """The numbers of a training: what a row can change, in steps of the noise.

    A row changes the totals by ``total_steps`` in the count of its class and by ``cell_steps`` in one cell of each
    column's histogram; in each tree by a vector of at most ``clip_steps`` in one leaf, and ``row_steps`` in the number
    of its rows.

    Attributes
    ----------
    plan : PrivatePlan
        What was ordered.
    n_numeric : int
        Columns that have a histogram.
    n_clients : int
        Who adds noise, as long as none drops out.

    Raises
    ------
    ValueError
        If a row would be nothing beside the noise, all clients may collude, or the quorum is not possible.
    """

    plan: PrivatePlan
    n_numeric: int
    n_clients: int

    def __post_init__(self) -> None:
        if min(self.clip_steps, self.cell_steps) < FEWEST_STEPS:
            raise ValueError(
                f"epsilon {self.plan.epsilon:g} is too small for {self.plan.n_estimators} trees: their answers would "
                "be nothing but noise; raise epsilon or lower n_estimators"
            )
        # worked out now: a client that refuses a message is what it was before, to its last attribute
        _ = self.total_steps, self.gradient_steps

    @cached_property
    def noise(self) -> SharedNoise:
        """The noise of a sum of the fewest clients: what the guarantee rests on."""
        return SharedNoise(self.plan.fewest(self.n_clients), self.plan.colluding)

    def deviation(self, n_summed: int) -> float:
        """Standard deviation of the noise of a sum of so many clients, in steps."""
        return SharedNoise(n_summed).deviation

    @cached_property
    def _mu(self) -> float:
        return mu_for(self.plan.epsilon, self.plan.delta)

    @property
    def totals_share(self) -> float:
        """Which part of the budget goes to the totals, in mu squared."""
        return _WITH_KNOTS if self.n_numeric else _WITHOUT_KNOTS

    # --- the totals ---

    @cached_property
    def _totals_length(self) -> float:
        return self.noise.longest(self._mu * math.sqrt(self.totals_share))

    @cached_property
    def cell_steps(self) -> int:
        """What a row adds to one cell of a histogram: half of the budget of the totals is for histograms."""
        return math.floor(self._totals_length / math.sqrt(2 * max(1, self.n_numeric)))

    @cached_property
    def total_steps(self) -> int:
        """What a row adds to the count of its class, or of rows; and what a target of 1 adds to their sum."""
        counts = 1 if self.plan.task == "classes" else 2
        return math.floor(math.sqrt((self._totals_length**2 - self.n_numeric * self.cell_steps**2) / counts))

    @property
    def totals_length(self) -> float:
        """By how much a row can change the totals."""
        counts = 1 if self.plan.task == "classes" else 2
        return math.sqrt(counts * self.total_steps**2 + self.n_numeric * self.cell_steps**2)

    # --- the trees ---

    @cached_property
    def _tree_length(self) -> float:
        return self.noise.longest(self._mu * math.sqrt((1 - self.totals_share) / self.plan.n_estimators))

    @cached_property
    def row_steps(self) -> int:
        """What a row adds to the number of rows of its leaf."""
        return max(1, math.floor(self._tree_length * COUNT_WEIGHT / math.hypot(self.plan.clip, COUNT_WEIGHT)))

    @cached_property
    def clip_steps(self) -> int:
        """The longest gradient, after rounding."""
        return math.floor(math.sqrt(max(0.0, self._tree_length**2 - self.row_steps**2)))

    @cached_property
    def gradient_steps(self) -> float:
        """What a gradient of length 1 counts before rounding, which can make it longer by half a step in each score."""
        return (self.clip_steps - 0.5 * math.sqrt(self.plan.n_scores)) / self.plan.clip

    @property
    def tree_length(self) -> float:
        """By how much a row can change the sums of a tree."""
        return math.hypot(self.clip_steps, self.row_steps)

    # --- what it is worth ---

    def mu_against(self, known: int) -> float:
        """Of the whole training, against who knows the noise of so many clients: where all sums are of the fewest."""
        totals = self.noise.mu_against(known, self.totals_length)
        return math.hypot(totals, math.sqrt(self.plan.n_estimators) * self.noise.mu_against(known, self.tree_length))

    def epsilon_against(self, known: int) -> float:
        """Of the whole training with its delta, against who knows the noise of so many clients."""
        mu = self.mu_against(known)
        return math.inf if math.isinf(mu) else gaussian_epsilon(mu, self.plan.delta)
