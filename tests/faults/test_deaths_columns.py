"""Kill -9 and SIGSTOP of any process at the steps of every protocol over columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from frame_proxy import Seen
from small_jobs import COORDINATOR, PLAN, train_order
from sweep import Fault, Protocol, named, play, stand_still, sweep, tried
from tally import Tally
from vertical_jobs import PROTOCOLS, TRIO, Columns, companies, rows_spent

from woodlot.exceptions import DataError
from woodlot.jobs.orders import Order
from woodlot.runtime.frames import FrameKind

pytestmark = pytest.mark.faults

IDS = list(range(987_654_321_070_000, 987_654_321_070_060))
SCORED = "same answers bit for bit; rows counted once"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Columns]:
    with companies(tmp_path_factory.mktemp("deaths")) as made:
        yield made


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_faults_at_the_steps_of_a_protocol_change_nothing(stage: Columns, protocol: Protocol, tally: Tally) -> None:
    sweep(stage, protocol, tally)


@pytest.mark.parametrize("victim", ["helper", "keys"])
def test_a_key_member_stands_still_until_it_is_missed(stage: Columns, victim: str, tally: Tally) -> None:
    stand_still(stage, named(PROTOCOLS, "revoke revocable, level 2"), victim, tally)


def test_a_coordinator_that_dies_again_and_again_while_its_parties_live(stage: Columns, tally: Tally) -> None:
    """They wait longer and longer between attempts to connect, and come back all the same."""
    protocol = named(PROTOCOLS, "train")
    steps, expected = tried(stage, protocol)
    with tally.checking(protocol.proved, protocol.name) as noted:
        order = protocol.order(stage)

        def die() -> None:
            stage.kill((COORDINATOR,), order.job)
            stage.running.restart(COORDINATOR)
            noted["kill -9 of the coordinator"] += 1

        play(stage, order, dict.fromkeys(steps[2 :: len(steps) // 6], die))
        assert protocol.outcome(stage, order.job) == expected


def larger_forest(stage: Columns) -> Order:
    """Has splits of every party: in the small forest one may have none, since rows come in a secret order."""
    return train_order(stage.user, replace(PLAN, n_estimators=12))


def test_deaths_while_a_scoring_is_open(stage: Columns, tally: Tally) -> None:
    """A party that dies with a request before it, or with its answer on the way, answers the same, and counts once."""
    states = {party: stage.running.world.root / party / "state" / "predictions.sqlite" for party in TRIO}
    with stage.user.scoring(stage.once("larger forest", larger_forest)) as scoring:
        expected = [array.tobytes() for array in scoring.outputs(IDS)]
        once = {party: rows_spent(path, scoring.job) for party, path in states.items()}
        places = [(party, kind) for party in TRIO for kind in (FrameKind.request, FrameKind.reply)]
        for calls, (victim, kind) in enumerate(places, 2):
            due = [Fault("kill -9", victim)]

            def act(seen: Seen, due: list[Fault] = due, place: tuple[str, FrameKind] = (victim, kind)) -> None:
                if due and place == (seen.member, seen.kind):
                    stage.inflict(due.pop(), scoring.job)

            with tally.checking(SCORED, "score") as noted:
                noted["kill -9 of a party"] += 1
                with stage.watched(scoring.job, act):
                    assert [array.tobytes() for array in scoring.outputs(IDS)] == expected
                assert not due
                spent = {party: rows_spent(path, scoring.job) for party, path in states.items()}
                assert spent == {party: calls * rows for party, rows in once.items()}


def test_a_coordinator_that_dies_ends_its_scorings(stage: Columns, tally: Tally) -> None:
    """The user is told to open another, which answers the same; nobody counts rows that were not asked for."""
    states = {party: stage.running.world.root / party / "state" / "predictions.sqlite" for party in TRIO}
    scoring = stage.user.scoring(stage.undisturbed)
    expected = [array.tobytes() for array in scoring.outputs(IDS)]
    once = {party: rows_spent(path, scoring.job) for party, path in states.items()}
    due = [Fault("kill -9", COORDINATOR)]

    def act(seen: Seen) -> None:
        if due and seen.kind is FrameKind.reply:
            stage.inflict(due.pop(), scoring.job)

    with tally.checking("its scorings end, and the user hears it; another has the same answers", "score") as noted:
        noted["kill -9 of the coordinator"] += 1
        with stage.watched(scoring.job, act), pytest.raises(DataError, match="open another"):
            scoring.outputs(IDS)
        assert not due
        for party, path in states.items():
            assert rows_spent(path, scoring.job) in (once[party], 2 * once[party])
        with stage.user.scoring(stage.undisturbed) as another:
            assert [array.tobytes() for array in another.outputs(IDS)] == expected
