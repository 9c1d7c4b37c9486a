"""Private forests whose clients drop out: the others go on, and the noise is enough for the fewest of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from private_runs import clients_of, plan_of

from woodlot.exceptions import ConfigError, DataError, PolicyError
from woodlot.protocols.core.message import Message
from woodlot.protocols.rows.private import PrivateClient, private_forest
from woodlot.protocols.rows.private.private_plan import Terms
from woodlot.protocols.sums import sum_messages
from woodlot.protocols.sums.sum_messages import SumOrder
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

TEN = tuple(f"client-{k}" for k in range(10))
N_TREES = 8
SPARING: dict[str, Any] = {"n_estimators": N_TREES, "spare_after": 1.0, "quorum": 7, "epsilon": 8.0}
BEFORE_SUMS = 4
"""Messages of a client before the first sum: columns, schema, and two of the agreement on keys."""


class Dropping:
    """A client that is gone from one of its messages on; it counts the sums that it is in."""

    def __init__(self, client: PrivateClient, at: int) -> None:
        self.client, self.at, self.n_sums = client, at, 0

    def handle(self, message: Message) -> Message:
        self.at -= 1
        if self.at < 0:
            raise DataError("the table is gone")
        reply = self.client.handle(message)
        self.n_sums += isinstance(reply, sum_messages.MaskedVector)
        return reply


class Mute(PrivateClient):
    """Adds zeros without noise from one of its sums on, as if it were not there."""

    stops = 0
    told = 0

    def _told(self, message: Message, order: SumOrder, numbers: NDArray[np.int64]) -> Message:
        self.told += 1
        if self.told <= self.stops:
            return super()._told(message, order, numbers)
        reply = self._sums.answer(order, np.zeros_like(numbers), self.digest_of(message))
        self._note(message)
        return reply


def grown(plan: Any, clients: Any) -> Any:
    with InProcessDriver(clients) as driver:
        return run(private_forest(plan, tuple(clients)), driver, ledger=Ledger())[0]


@pytest.mark.parametrize("seed", range(3))
def test_three_of_ten_killed_at_random_rounds_leave_the_forest_without_their_later_rounds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # how much noise is expected in an answer follows from how many clients are in a sum, and mute ones are
    monkeypatch.setattr(Terms, "deviation", lambda self, n: self.noise.deviation)
    plan, rng = plan_of(**SPARING), np.random.default_rng(seed)
    clients: dict[str, Any] = dict(clients_of(plan, names=TEN))
    victims = sorted(rng.choice(TEN, 3, replace=False).tolist())
    last = BEFORE_SUMS + 2 * (N_TREES + 1)  # a sum takes two messages or more
    for name in victims:
        clients[name] = Dropping(clients[name], int(rng.integers(BEFORE_SUMS, last)))
    forest = grown(plan, clients)
    assert forest.left == tuple(victims) == tuple(sorted(forest.left_at))
    assert forest.left_at == {name: max(0, clients[name].n_sums - 1) for name in victims}  # the first is of totals
    mute: dict[str, Any] = clients_of(plan, names=TEN, kind=Mute)
    for name in TEN:
        mute[name].stops = clients[name].n_sums if name in victims else N_TREES + 1
    expected = grown(plan, mute)
    np.testing.assert_array_equal(forest.leaves.value, expected.leaves.value)
    np.testing.assert_array_equal(forest.structure.right, expected.structure.right)
    assert expected.left == ()


def test_too_many_drop_outs_end_the_training() -> None:
    plan = plan_of(**SPARING)
    clients: dict[str, Any] = dict(clients_of(plan, names=TEN))
    for name in TEN[:4]:
        clients[name] = Dropping(clients[name], 12)
    with pytest.raises(DataError, match="6 of 10 clients are left, and sums need 7"):
        grown(plan, clients)


@pytest.mark.parametrize(("n_clients", "quorum", "colluding"), [(10, 7, 1), (50, 0.8, 3), (4, 3, 0)])
def test_the_noise_of_the_fewest_is_what_the_guarantee_needs(n_clients: int, quorum: Any, colluding: int) -> None:
    """With the noise of all clients counted, what is claimed would be broken as soon as one drops out."""
    common: dict[str, Any] = {"epsilon": 1.0, "colluding": colluding}
    fewest = 41 if n_clients == 50 else quorum
    sparing = Terms(plan_of(spare_after=1.0, quorum=quorum, **common), 2, n_clients)
    assert 0.98 < sparing.epsilon_against(colluding) <= 1.0
    assert sparing.tree_length == Terms(plan_of(**common), 2, fewest).tree_length
    whole = Terms(plan_of(**common), 2, n_clients)
    assert sparing.noise.mu_against(colluding, whole.tree_length) > sparing.noise.mu_against(
        colluding, sparing.tree_length
    )
    assert sparing.deviation(n_clients) == pytest.approx(whole.noise.deviation)
    assert math.isinf(sparing.epsilon_against(fewest))


def test_a_client_takes_no_other_quorum_than_was_ordered() -> None:
    plan = plan_of(**SPARING)
    clients: dict[str, Any] = dict(clients_of(plan, names=TEN))
    clients["client-3"] = clients_of(plan_of(**SPARING | {"quorum": 8}), names=TEN)["client-3"]
    with pytest.raises(PolicyError, match="another number of clients than was ordered"):
        grown(plan, clients)
    with pytest.raises(ConfigError, match="a quorum of 5 of 10 clients is not possible"):
        grown(plan_of(**SPARING | {"quorum": 5}), clients_of(plan, names=TEN))
