"""An attacker who tries: what can be told from the answers is never more than the epsilon that is claimed.

An attack guesses from the reports of one row which of two labels it has. If a guess is right with probability p and
wrong with probability q, then epsilon is at least ln(p / q); bounds of Clopper and Pearson at 99% make that a test.
The guess is chosen on one half of the trials and judged on the other.
"""

from __future__ import annotations

import numpy as np
import pytest
from audits import audited_epsilon
from parts import sum_parts

from woodlot.privacy.label_code import LabelCode
from woodlot.privacy.noise import CountNoise
from woodlot.privacy.randomised_response import RandomisedResponse

REPORTS = 5
UNLUCKY = 1e-6
"""For noise that no seed can fix: how often a test may fail by chance."""


def attack(response: RandomisedResponse, trials: int, *, memoised: bool) -> float:
    """Ask for each row's report several times, for rows that all have one label, and again for the other."""
    rows = [number.to_bytes(4, "big") for number in range(trials)]
    each = np.arange(trials)
    leaning = response.code.bits[1].astype(int) - response.code.bits[0].astype(int)
    scores = []
    for label in (1, 0):
        score = np.zeros(trials, np.int64)
        for report in range(REPORTS):
            secret = (b"one secret" if memoised else b"lost, and drawn again %d" % report).ljust(32)
            if report == 0 or not memoised:
                bits = response.permanent(secret, "d", rows, np.full(trials, label))
            score += response.instant(secret, "d", b"query %d" % report, *sum_parts(bits, each, trials)) @ leaning
        scores.append(score)
    return audited_epsilon(*scores)


@pytest.mark.parametrize(
    ("code", "pr", "xi", "zeta"),
    [
        (LabelCode.one_hot(["no", "yes"]), 0.75, 0.9, 0.1),  # ldp-paper
        (LabelCode.one_hot(["no", "yes"]), 0.75, 1, 0),  # label-dp
        (LabelCode.one_bit(["no", "yes"]), 0.905, 1, 0),  # label-dp-weak
        (LabelCode.bloom(["no", "yes"], length=8, hashes=2), 0.46, 0.75, 0.25),
    ],
    ids=["one-hot-instant", "one-hot", "one-bit", "bloom"],
)
def test_memoised_reports_tell_no_more_than_claimed(code: LabelCode, pr: float, xi: float, zeta: float) -> None:
    response = RandomisedResponse.from_paper(code, pr=pr, xi=xi, zeta=zeta)
    found = attack(response, 25_000, memoised=True)
    assert found <= response.epsilon(REPORTS) <= response.epsilon()
    assert found >= 0.6 * response.epsilon(REPORTS), "the attack itself is broken"


def test_without_memoisation_the_claim_is_broken() -> None:
    response = RandomisedResponse.from_paper(LabelCode.one_hot(["no", "yes"]), pr=0.75, xi=0.9, zeta=0.1)
    assert attack(response, 8_000, memoised=False) > 1.3 * response.epsilon()


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_noisy_counts_tell_no_more_than_claimed(epsilon: float) -> None:
    noise = CountNoise(epsilon)
    with_row = noise.release(np.full(20_000, 8)).released
    without = noise.release(np.full(20_000, 7)).released
    found = audited_epsilon(with_row, without, alpha=UNLUCKY)
    assert 0.6 * epsilon <= found <= epsilon


def test_noise_for_half_the_sensitivity_is_found_out() -> None:
    noise = CountNoise(1.0)  # for rows that come and go; here a row of weight 2 does
    found = audited_epsilon(noise.release(np.full(20_000, 9)).released, noise.release(np.full(20_000, 7)).released)
    assert found > noise.epsilon
    right = CountNoise(1.0, max_weight=2)
    drawn = [right.release(np.full(20_000, count)).released for count in (9, 7)]
    found = audited_epsilon(*drawn, alpha=UNLUCKY)
    assert found <= right.epsilon
