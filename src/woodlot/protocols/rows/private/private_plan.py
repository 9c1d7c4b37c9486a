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

MOST_DEPTH = 12
"""Trees are complete, and twice as large with every level."""
CELLS = 64
"""Cells of a column's histogram, from which its knots follow."""
SKEW = 3
"""Edges of the cells are at (k / CELLS)^SKEW of the declared range: amounts lie near its low end more often."""
COUNT_WEIGHT = 0.25
"""How much a row adds to the number of rows of its leaf, beside a gradient of at most `clip`."""
CLIP_ONE, CLIP_SEVERAL = 1.0, 0.75
"""The longest gradient of a row, with one score and with several. With one no gradient is longer than 1."""
_STEPS = 2.0**13
"""Steps per standard deviation of the noise, about."""
_FEWEST_BITS = 6
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
    """

    epsilon: Annotated[float, msgspec.Meta(gt=0)]
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
        return CLIP_ONE if self.n_scores == 1 else CLIP_SEVERAL

    def depth(self, n_rows: float) -> int:
        """Levels of the trees, for about so many rows of all clients: so that leaves are more than noise."""
        if self.max_depth is not None:
            return self.max_depth
        most = 5 if self.columns_per_tree is not None else 8
        return int(min(max(math.log2(max(n_rows * min(self.epsilon, 8.0), 1.0) / 60), 3), most))


@dataclass(frozen=True)
class Terms:
    """The numbers of a training: what a row can change, and the noise on it.

    Everything is added in whole steps. A row changes the totals by ``total_steps`` in the count of its class and by
    ``cell_steps`` in one cell of each column's histogram; in each tree by a vector of at most ``clip_steps`` in one
    leaf, and ``row_steps`` in the number of its rows.

    Attributes
    ----------
    plan : PrivatePlan
        What was ordered.
    n_numeric : int
        Columns that have a histogram.
    n_clients : int
        Who adds noise.
    """

    plan: PrivatePlan
    n_numeric: int
    n_clients: int

    @cached_property
    def _mu(self) -> float:
        return mu_for(self.plan.epsilon, self.plan.delta)

    @property
    def totals_share(self) -> float:
        """Which part of the budget goes to the totals, in mu squared."""
        return _WITH_KNOTS if self.n_numeric else _WITHOUT_KNOTS

    # --- the totals ---

    @cached_property
    def cell_steps(self) -> int:
        """What a row adds to one cell of a histogram."""
        return _steps(math.sqrt(2 * max(1, self.n_numeric)) / self._totals_mu)

    @cached_property
    def total_steps(self) -> int:
        """What a row adds to the count of its class; of targets, what a whole one adds to their sum."""
        return round(self.cell_steps * math.sqrt(max(1, self.n_numeric)))

    @property
    def _totals_mu(self) -> float:
        return self._mu * math.sqrt(self.totals_share)

    @property
    def totals_sensitivity(self) -> float:
        """By how much a row can change the totals."""
        counts = 1 if self.plan.task == "classes" else 2  # of targets: the row, and its target of at most 1
        return math.sqrt(counts * self.total_steps**2 + self.n_numeric * self.cell_steps**2)

    @cached_property
    def totals_noise(self) -> SharedNoise:
        """The noise on the totals."""
        return self._noise(self._totals_mu, self.totals_sensitivity)

    # --- the trees ---

    @property
    def _tree_mu(self) -> float:
        return self._mu * math.sqrt((1 - self.totals_share) / self.plan.n_estimators)

    @cached_property
    def steps(self) -> int:
        """Steps of a gradient of length 1."""
        return _steps(math.hypot(self.plan.clip, COUNT_WEIGHT) / self._tree_mu)

    @property
    def clip_steps(self) -> float:
        """The longest gradient in steps, after rounding."""
        return self.plan.clip * self.steps

    @property
    def gradient_steps(self) -> float:
        """What a gradient of length 1 counts before rounding, which can make it longer by half a step in each score."""
        return self.steps - 0.5 * math.sqrt(self.plan.n_scores) / self.plan.clip

    @property
    def row_steps(self) -> int:
        """What a row adds to the number of rows of its leaf."""
        return max(1, round(COUNT_WEIGHT * self.steps))

    @property
    def tree_sensitivity(self) -> float:
        """By how much a row can change the sums of a tree."""
        return math.hypot(self.clip_steps, self.row_steps)

    @cached_property
    def tree_noise(self) -> SharedNoise:
        """The noise on the sums of a tree."""
        return self._noise(self._tree_mu, self.tree_sensitivity)

    def _noise(self, mu: float, sensitivity: float) -> SharedNoise:
        return SharedNoise.for_mu(mu, sensitivity, self.n_clients, self.plan.colluding)

    # --- what it is worth ---

    def mu_against(self, known: int) -> float:
        """Of the whole training, against who knows the noise of so many clients."""
        totals = self.totals_noise.mu_against(known, self.totals_sensitivity)
        tree = self.tree_noise.mu_against(known, self.tree_sensitivity)
        return math.sqrt(totals**2 + self.plan.n_estimators * tree**2)

    def epsilon_against(self, known: int) -> float:
        """Of the whole training with its delta, against who knows the noise of so many clients."""
        mu = self.mu_against(known)
        return math.inf if math.isinf(mu) else gaussian_epsilon(mu, self.plan.delta)


def _steps(deviation: float) -> int:
    """A power of two, so that noise of this deviation has about `_STEPS` steps."""
    return int(2 ** max(_FEWEST_BITS, math.floor(math.log2(_STEPS / deviation))))
