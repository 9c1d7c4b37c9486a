"""Composition: against the exact formula, and in words."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from woodlot.privacy.accounting import Spend, in_plain_words, plain_epsilon, posterior, total_epsilon
from woodlot.privacy.noise import CountNoise


def exact_delta(total: float, epsilon: float, count: int) -> float:
    """Delta of so many randomised responses of one bit at a total epsilon (Kairouz, Oh and Viswanath)."""
    kept = np.arange(count + 1)
    with_label = stats.binom.pmf(kept, count, 1 / (1 + math.exp(-epsilon)))
    loss = (2 * kept - count) * epsilon
    return float((with_label * np.maximum(0, -np.expm1(total - loss)))[loss > total].sum())


@pytest.mark.parametrize(
    ("epsilon", "count"), [(0.01, 1620), (0.1, 100), (0.5, 40), (1.0, 30), (0.0003, 500), (0.0123457, 1000)]
)
def test_composition_is_that_of_the_exact_formula(epsilon: float, count: int) -> None:
    total = total_epsilon([Spend(epsilon, count)], 1e-6)
    assert exact_delta(total, epsilon, count) <= 1e-6 * (1 + 1e-6)
    assert exact_delta(total * 0.999, epsilon, count) > 1e-6


def test_known_totals() -> None:
    assert total_epsilon([Spend(0.01, 1620)], 1e-6) == pytest.approx(1.776, abs=0.001)
    assert total_epsilon([Spend(0.1, 1620)], 1e-6) == pytest.approx(26.493, abs=0.001)
    assert total_epsilon([Spend(0.1, 1620)]) == pytest.approx(162)


def test_parts_may_come_in_any_order_and_differ() -> None:
    spends = [Spend(0.05, 100), Spend(0.2, 10), Spend(0.05, 100)]
    total = total_epsilon(spends, 1e-6)
    assert total == pytest.approx(total_epsilon(spends[::-1], 1e-6))
    assert total_epsilon([Spend(0.05, 200)], 1e-6) < total < plain_epsilon(spends)


def test_integer_noise_is_as_bad_as_randomised_response() -> None:
    """Why no kind of noise is recorded: a count that changes by 1 has losses of plus or minus epsilon, and no other."""
    chances = np.exp(-0.7 * np.abs(np.arange(-50, 51)))
    losses = np.log(chances[1:] / chances[:-1])
    assert np.abs(losses) == pytest.approx(0.7)


@given(st.lists(st.tuples(st.floats(1e-4, 5), st.integers(1, 50)), max_size=5))
@settings(max_examples=50, deadline=None)
def test_plain_sum_is_never_too_small(spends: list[tuple[float, int]]) -> None:
    total = plain_epsilon([Spend(*spend) for spend in spends])
    exact = math.fsum(epsilon for epsilon, count in spends for _ in range(count))
    assert exact <= total <= math.nextafter(math.nextafter(exact, math.inf), math.inf)


def test_replacing_a_row_is_cheaper_cell_by_cell() -> None:
    noise = CountNoise(0.1, neighbours="replace")
    assert total_epsilon([noise.spend(100)], 1e-6) < total_epsilon([Spend(noise.epsilon, 100)], 1e-6)


@pytest.mark.parametrize(
    ("epsilon", "percent"),
    [(1.0, "74"), (math.log(9), "90"), (3.0, "95.3"), (2 * math.log(7), "98"), (10.6, "99.9976")],
)
def test_plain_words(epsilon: float, percent: str) -> None:
    assert in_plain_words(epsilon) == f"an attacker who is 50% sure becomes at most {percent}% sure"
    assert float(percent) / 100 >= posterior(epsilon) - 1e-12


def test_plain_words_of_nothing_and_of_everything() -> None:
    assert "at most 50% sure" in in_plain_words(0)
    assert "protects nobody" in in_plain_words(749)
    assert "chance of 1e-06" in in_plain_words(1, 1e-6)
    assert posterior(math.log(3), prior=0.1) == pytest.approx(0.25)


def test_bad_input_is_refused() -> None:
    for epsilon in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon"):
            Spend(epsilon)
    for count in (-1, 1.5, True):
        with pytest.raises(ValueError, match="count"):
            Spend(1.0, count)  # type: ignore[arg-type]
    for delta in (-0.1, 1, math.nan):
        with pytest.raises(ValueError, match="delta"):
            total_epsilon([Spend(1.0)], delta)
    with pytest.raises(ValueError, match="epsilon"):
        in_plain_words(-1)
    with pytest.raises(ValueError, match="prior"):
        posterior(1, prior=1)
    assert total_epsilon([], 1e-6) == 0


def test_without_the_extra_the_remedy_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['opendp'] = sys.modules['dp_accounting'] = None\n"
        "from woodlot.privacy.accounting import Spend, total_epsilon\n"
        "from woodlot.privacy.quantiles import private_quantiles\n"
        "ends = {'lower': 0, 'upper': 1, 'epsilon': 1.0}\n"
        "for use in (lambda: private_quantiles([0.5], [0.5], **ends), lambda: total_epsilon([Spend(1.0)], 1e-6)):\n"
        "    try: use()\n"
        "    except ModuleNotFoundError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout
    assert said.count("pip install 'woodlot[dp]'") == 2
