"""Kill -9 and SIGSTOP of any process at the steps of every protocol over columns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from frame_proxy import Seen
from sweep import PROVED, Fault, Protocol, sweep
from tally import Tally
from vertical_jobs import PROTOCOLS, TRIO, Columns, companies, rows_spent

from woodlot.runtime.frames import Kind

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Columns]:
    with companies(tmp_path_factory.mktemp("deaths")) as made:
        yield made


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_faults_at_the_steps_of_a_protocol_change_nothing(stage: Columns, protocol: Protocol, tally: Tally) -> None:
    sweep(stage, protocol, tally)


def test_deaths_while_a_scoring_is_open(stage: Columns, tally: Tally) -> None:
    """A party that dies with a request before it, or with its answer on the way, answers the same, and counts once."""
    ids = list(range(70_000, 70_060))
    states = {party: stage.running.world.root / party / "state" / "predictions.sqlite" for party in TRIO}
    with stage.user.scoring(stage.undisturbed) as scoring:
        expected = [array.tobytes() for array in scoring.outputs(ids)]
        once = {party: rows_spent(path, scoring.job) for party, path in states.items()}
        places = [(party, kind) for party in TRIO for kind in (Kind.request, Kind.reply)]
        for calls, (victim, kind) in enumerate(places, 2):
            due = [Fault("kill -9", victim)]

            def act(seen: Seen, due: list[Fault] = due, place: tuple[str, Kind] = (victim, kind)) -> None:
                if due and place == (seen.member, seen.kind):
                    stage.inflict(due.pop(), scoring.job)

            with tally.checking(PROVED, "score") as noted:
                noted["kill -9 of a party"] += 1
                with stage.watched(scoring.job, act):
                    assert [array.tobytes() for array in scoring.outputs(ids)] == expected
                assert not due
                spent = {party: rows_spent(path, scoring.job) for party, path in states.items()}
                assert spent == {party: calls * rows for party, rows in once.items()}
