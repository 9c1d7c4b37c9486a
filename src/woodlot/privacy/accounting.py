"""What several releases cost together, and what that means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any, Literal, get_args

from woodlot.privacy._libraries import pld
from woodlot.privacy.exact import float_up

_STEP = 1e-4
_ROUNDING = 1e-6  # more than the arithmetic of the composition can be wrong by, in parts of the result
_CERTAIN = 25.0

Unit = Literal["labels", "rows"]
"""What an epsilon is for: the label of one row, or a whole row. Epsilons of different units are never added."""

UNITS: tuple[Unit, ...] = get_args(Unit)


@dataclass(frozen=True)
class Spend:
    """Some releases that each cost the same.

    Attributes
    ----------
    epsilon : float
        Of one of them.
    count : int
        How many of them one row takes part in. 0 where none of the rows is in more than was charged before: the parts
        of one query are told of different rows.
    delta : float
        Of one of them: the chance that more than its epsilon is lost. 0 for noise that keeps to its epsilon always.

    """

    epsilon: float
    count: int = 1
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 0:
            raise ValueError(f"count must be a whole number from 0 on, not {self.count!r}")
        check_delta(self.delta)


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that promises nothing or cannot be kept."""
    if not (isinstance(epsilon, int | float) and math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon must be a positive number, not {epsilon!r}")


def check_delta(delta: float) -> None:
    """Refuse a delta that is no probability, or certain."""
    if not (isinstance(delta, int | float) and 0 <= delta < 1):
        raise ValueError(f"delta must be from 0 to below 1, not {delta!r}")


def plain_epsilon(spends: Iterable[Spend]) -> float:
    """The sum of all epsilons, rounded up: true whatever the mechanisms are, and however each was chosen."""
    return float_up(sum((Fraction(spend.epsilon) * spend.count for spend in spends), Fraction(0)))


def least_delta(spends: Iterable[Spend]) -> float:
    """The sum of all deltas: what several releases can be claimed for has this delta at least."""
    return math.fsum(spend.delta * spend.count for spend in spends)


def total_epsilon(spends: Iterable[Spend], delta: float = 0.0) -> float:
    """The smallest epsilon that can be claimed for all releases together.

    Each release is counted as the worst that its epsilon allows, which is randomised response of one bit. Integer
    Laplace noise on a count that one row changes by 1 is exactly as bad, so nothing is lost for it; the continuous
    Laplace noise that papers account for would look better than what is drawn.

    Parameters
    ----------
    spends : iterable of Spend
        All releases that one row takes part in.
    delta : float
        Probability with which the claim may fail. With 0 the epsilons are added; else they are composed by
        dp-accounting as privacy loss distributions, rounded to the safe side. This assumes that the epsilons, not
        the questions, were fixed before the first answer. Releases with a delta of their own take it from this one,
        and their epsilons are added.

    Returns
    -------
    float
        Infinite where the releases have more delta of their own than this.

    """
    check_delta(delta)
    spends = [spend for spend in spends if spend.count]
    plain = plain_epsilon(spends)
    own, strict = least_delta(spends), [spend for spend in spends if spend.delta == 0]
    if own > delta * (1 + _ROUNDING):
        return math.inf
    if delta <= own or not strict:
        return plain
    if len(strict) < len(spends):
        loose = [spend for spend in spends if spend.delta > 0]
        return min(plain, plain_epsilon(loose) + total_epsilon(strict, delta - own))
    counts: dict[float, int] = {}
    for spend in spends:
        counts[spend.epsilon] = counts.get(spend.epsilon, 0) + spend.count
    parts = [_loss(epsilon).self_compose(count) for epsilon, count in sorted(counts.items())]
    whole = reduce(lambda one, other: one.compose(other), parts)
    return min(plain, float(whole.get_epsilon_for_delta(delta)) * (1 + _ROUNDING))


def _loss(epsilon: float) -> Any:
    """The privacy loss of integer Laplace noise on a count that changes by 1: always epsilon, up or down."""
    return pld().from_discrete_laplace_mechanism(epsilon, 1, value_discretization_interval=_STEP, use_connect_dots=True)


def posterior(epsilon: float, prior: float = 0.5) -> float:
    """How sure an attacker can be at most who was so sure before, knows everything else, and sees all releases."""
    if not 0 < prior < 1:
        raise ValueError(f"prior must be between 0 and 1, not {prior}")
    return prior / (prior + (1 - prior) * math.exp(-epsilon))


def in_plain_words(epsilon: float, delta: float = 0.0) -> str:
    """What an epsilon means, in one line: "an attacker who is 50% sure becomes at most 90% sure"."""
    check_delta(delta)
    if epsilon < 0 or math.isnan(epsilon):
        raise ValueError(f"epsilon must not be negative, not {epsilon!r}")
    if epsilon > _CERTAIN:
        return f"an attacker who is 50% sure can become certain: an epsilon of {epsilon:.4g} protects nobody"
    words = f"an attacker who is 50% sure becomes at most {_percent(epsilon)}% sure"
    return f"{words}, but for a chance of {delta:g} that more is lost" if delta else words


def _percent(epsilon: float) -> str:
    """The posterior in percent, rounded up so that two digits are left of what is missing to certainty."""
    missing = 100 / (1 + math.exp(epsilon))
    digits = max(0, 1 - math.floor(math.log10(missing)))
    scale = 10**digits
    shown = math.floor(missing * scale * (1 + 1e-12)) / scale
    text = f"{100 - shown:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text
