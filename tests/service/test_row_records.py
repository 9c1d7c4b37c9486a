"""What parties keep of trainings over rows goes when it is of no use: a former model's, and that of a failed job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from party_bench import PARTIES, ROWS, Bench, clinics, forget_rows_order, play, rows_order

from woodlot.exceptions import DataError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.forget.forget_messages import EndForgetting
from woodlot.jobs.forget.forget_rows_work import ForgetRowsWork
from woodlot.jobs.order_seal import housekeeping_job
from woodlot.protocols.core.message import Message
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.rows.row_messages import DescribeRows

PLAN = LocalPlan(**ROWS)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with clinics(tmp_path) as made:
        for party in PARTIES:
            listed = (*made.homes[party].policy.protocols, "forget")
            made.change_policy(party, protocols=listed, allow_two=True)
        yield made


def records(bench: Bench, party: str) -> set[str]:
    """The models of which a party has any record beside its parts."""
    folder = Path(bench.homes[party].store.folder) / "alignments"
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def end(bench: Bench, job: str, party: str = "bank", **how: bool) -> None:
    """Tell a party that a job has ended; a kill before it has answered has the coordinator say so again."""
    for _ in range(2):
        bench.job(party, housekeeping_job(job)).handle(msg.ForgetJob(job=job, **how))


def test_who_stays_keeps_nothing_of_the_former_model(bench: Bench) -> None:
    """Also where the policy lists no forgetting, so that only the rows of the training are kept, for evaluations."""
    policy = bench.homes["bank"].policy
    for listed in (policy.protocols, tuple(kind for kind in policy.protocols if kind != "forget")):
        bench.change_policy("bank", protocols=listed)
        before = records(bench, "bank")
        trained = play(bench, rows_order(bench, PLAN)).job
        end(bench, trained, done=True)
        left = play(bench, rows_order(bench, PLAN, ("bank",), model=trained, leaver="shop")).job
        assert records(bench, "bank") == before | {trained, left}
        end(bench, left)  # by a coordinator of a former version, which does not say whether it is done
        assert records(bench, "bank") == before | {trained, left}
        end(bench, left, done=True)
        assert records(bench, "bank") == before | {left}
        assert not (Path(bench.homes["bank"].store.folder) / "alignments" / left / "former").exists()


def test_a_job_that_has_failed_leaves_nothing_and_the_model_stays_in_use(bench: Bench) -> None:
    trained = play(bench, rows_order(bench, PLAN)).job
    end(bench, trained, done=True)
    orders = [rows_order(bench, PLAN), rows_order(bench, PLAN, ("bank",), model=trained, leaver="shop")]
    for order in orders:
        job = bench.job("bank", order.job)
        job.handle(bench.opening(order))
        job.handle(DescribeRows(task="classes"))
        assert records(bench, "bank") == {trained, order.job}
        end(bench, order.job, done=False)
        assert records(bench, "bank") == {trained}


def test_a_forgetting_that_fails_after_a_party_has_signed_can_be_ordered_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = play(bench, rows_order(bench, PLAN)).job
    real = ForgetRowsWork.handle

    def handle(self: ForgetRowsWork, message: Message) -> Message:
        if isinstance(message, EndForgetting) and self._taken.home.identity.name == "shop":
            raise DataError("its disk is full")
        return real(self, message)

    first, second = (forget_rows_order(bench, trained) for _ in range(2))
    with monkeypatch.context() as patched:
        patched.setattr(ForgetRowsWork, "handle", handle)
        with pytest.raises(DataError, match="disk is full"):
            play(bench, first)
    mark = Path(bench.homes["bank"].store.folder) / "alignments" / trained / "dropped"
    assert mark.read_text() == first.job
    for party in PARTIES:
        end(bench, first.job, party, done=False)
        assert records(bench, party) == {trained}
    play(bench, second)
    for party in PARTIES:
        end(bench, second.job, party, done=True)
        assert records(bench, party) == {second.job}


def test_the_end_of_a_job_over_rows_touches_nothing_else(bench: Bench) -> None:
    """A coordinator that tells lies ends no record of a model over columns, and nothing outside the folder."""
    store = bench.homes["bank"].store
    folder = Path(store.folder) / "alignments" / ("c" * 32)
    folder.mkdir(parents=True)
    (folder / "facts.json").write_text("{}")
    outside: list[Any] = [Path(store.folder) / "models", Path(store.folder) / "answers"]
    for path in outside:
        path.mkdir(exist_ok=True)
    for job in ("c" * 32, "../models", "../answers", ""):
        store.end_row_training(job, done=False)
    store.keep_former("d" * 32, "c" * 32)
    store.end_row_training("d" * 32, done=True)
    assert (folder / "facts.json").is_file()
    assert all(path.is_dir() for path in outside)
