"""Attacks on private forests, against the whole protocol: who attacks best learns no more than epsilon allows.

The attacker knows everything but one thing: whether a row is there, its label included. It sees all sums, and knows the
noise of as many clients as may collude. The likelihood ratio of Gaussian noise is then the best test there is. Its
answers are normal with mean 0 or mu, so that a mean over runs gives a lower bound on mu, and so on epsilon. All secrets
are derived from the number of a run: the runs are always the same.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from private_runs import holdings, plan_of, play

from woodlot.privacy.gaussian import SHARE, draw_gaussian, gaussian_epsilon
from woodlot.protocols.core.message import Message
from woodlot.protocols.rows.private import PrivateClient, PrivatePlan
from woodlot.protocols.rows.private.private_plan import Terms
from woodlot.protocols.sums.sum_messages import SumOrder

RUNS = 150
SURE = 3.5
"""Standard errors."""
EMPTY = np.empty((0, 2)), np.empty(0, np.int64)


class Target(PrivateClient):
    """Has the attacked row; keeps what is known of it, and what is sent of it."""

    there = True
    known: list[NDArray[np.int64]]

    def _told(self, message: Message, order: SumOrder, numbers: NDArray[np.int64]) -> Message:
        self.__dict__.setdefault("known", []).append(numbers)
        return super()._told(message, order, numbers if self.there else np.zeros_like(numbers))


class Colluder(PrivateClient):
    """Tells its noise to the attacker, who takes it off: the same as to add none."""

    def _told(self, message: Message, order: SumOrder, numbers: NDArray[np.int64]) -> Message:
        return self._sums.answer(order, numbers, self.digest_of(message))


def statistic(plan: PrivatePlan, trial: int, there: bool) -> float:
    """How much the sums look as if the row were there: 0 on average where it is not."""
    target = Target(holdings("anna", np.array([[0.9, 4.0]]), np.array([1]), trial), plan)
    target.there = there
    others = PrivateClient(holdings("bern", *EMPTY, trial), plan)
    clients: dict[str, PrivateClient] = {
        "anna": target, "bern": others, "chur": Colluder(holdings("chur", *EMPTY, trial), plan)
    }  # fmt: skip
    released: dict[str, list[NDArray[np.int64]]] = {"anna": [], "bern": []}
    for name, told in released.items():
        answer = clients[name]._sums.answer

        def tapped(
            order: SumOrder, values: NDArray[Any], *rest: Any, told: Any = told, answer: Any = answer
        ) -> Message:
            told.append(values)
            reply: Message = answer(order, values, *rest)
            return reply

        clients[name]._sums.answer = tapped  # type: ignore[method-assign]
    play(plan, clients)
    row = np.concatenate(target.known).astype(np.float64)
    sums = np.concatenate(released["anna"]) + np.concatenate(released["bern"])
    return float(sums @ row / np.linalg.norm(row))


def bounds(plan: PrivatePlan) -> tuple[float, float]:
    """Epsilon as the attack finds it: at least, and at most if the attack is as good as can be."""
    found = [[statistic(plan, 2 * run + there, bool(there)) for run in range(RUNS)] for there in (0, 1)]
    deviation = math.sqrt((np.var(found[0]) + np.var(found[1])) / 2)  # measured: the attacker believes nobody
    mu = float(np.mean(found[1]) - np.mean(found[0])) / deviation
    error = SURE * math.sqrt((2 + mu**2 / 4) / RUNS)
    return gaussian_epsilon(max(0.0, mu - error), plan.delta), gaussian_epsilon(mu + error, plan.delta)


@pytest.mark.slow
def test_membership_is_told_no_better_than_epsilon_allows_and_half_the_noise_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # of five classes, of which nothing is known, every gradient is as long as it may be
    plan = plan_of(epsilon=8.0, n_estimators=2, max_depth=1, classes=(0, 1, 2, 3, 4))
    low, high = bounds(plan)
    assert low <= Terms(plan, 2, 3).epsilon_against(1) <= 8.0
    assert high > 0.6 * 8.0  # the attack is a good one
    broken = partial(draw_gaussian, SHARE // 4)
    monkeypatch.setattr("woodlot.protocols.rows.private.private_client.draw_share", broken)
    assert bounds(plan)[0] > 8.0
