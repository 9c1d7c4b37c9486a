"""What a party's policy refuses, in which words, and that no crash or clock gives predictions away."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_jobs import PLAN

from woodlot.exceptions import JournalError, PolicyError, RemoteProtocolError
from woodlot.jobs.day_budgets import BUDGET_FILE, PredictionBudget
from woodlot.jobs.policy import Policy

NOON = datetime(2025, 3, 9, 12, tzinfo=UTC)
NAMES = st.text("abc", min_size=1, max_size=2)


class TestOrders:
    @pytest.mark.parametrize("kind", ["train", "predict", "align"])
    def test_by_default_nobody_may_and_the_line_to_add_is_told(self, kind: str) -> None:
        with pytest.raises(PolicyError) as caught:
            Policy().check_order(kind, "alice")
        line = 'predict = ["alice"]' if kind == "predict" else 'train = ["alice"]'
        assert f"allows no user to {kind}; its operator can add the line {line} to the section [policy]" in str(
            caught.value
        )

    def test_following_the_advice_helps(self) -> None:
        policy = msgspec.convert({"train": ["alice"]}, Policy)
        policy.check_order("train", "alice")
        policy.check_order("align", "alice")
        with pytest.raises(PolicyError, match="no user to predict"):
            policy.check_order("predict", "alice")

    def test_others_are_refused_without_saying_who_is_allowed(self) -> None:
        with pytest.raises(
            PolicyError, match=r"does not let 'bob' train; .* add \"bob\" to the setting train"
        ) as caught:
            Policy(train=("alice",)).check_order("train", "bob")
        assert "alice" not in str(caught.value)

    @settings(max_examples=200)
    @given(st.lists(NAMES, max_size=3), st.lists(NAMES, max_size=3), NAMES, st.booleans())
    def test_exactly_those_named_are_let_in(self, train: list[str], predict: list[str], user: str, star: bool) -> None:
        policy = Policy(train=(*train, "*") if star else tuple(train), predict=tuple(predict))
        allowed = {"train": star or user in train, "predict": user in predict}
        allowed["align"] = allowed["train"] or allowed["predict"]
        for kind, may in allowed.items():
            if may:
                policy.check_order(kind, user)
            else:
                with pytest.raises(PolicyError, match=rf"\b{kind}\b"):
                    policy.check_order(kind, user)

    def test_a_protocol_that_is_not_listed_is_refused_to_everybody(self) -> None:
        policy = Policy(protocols=("align", "predict"), train=("*",), predict=("*",))
        policy.check_order("predict", "alice")
        with pytest.raises(PolicyError, match=r"the setting protocols .* does not list 'train'"):
            policy.check_order("train", "alice")

    @pytest.mark.parametrize("kind", ["", "resign", "TRAIN", "*"])
    def test_an_unknown_order_is_refused(self, kind: str) -> None:
        with pytest.raises(PolicyError, match="this party knows no order"):
            Policy(train=("*",), predict=("*",)).check_order(kind, "alice")

    def test_a_user_who_calls_himself_everybody_is_not(self) -> None:
        with pytest.raises(PolicyError):
            Policy(train=("alice",)).check_order("train", "*")


class TestExplanations:
    @pytest.mark.parametrize(
        ("policy", "words"),
        [
            (Policy(), r'takes part in no explanations \(explains = "none"'),
            (Policy(explains="party", protection="hidden"), "hidden trainings only"),
        ],
    )
    def test_a_party_takes_part_in_none_unless_its_policy_says_so(self, policy: Policy, words: str) -> None:
        with pytest.raises(PolicyError, match=words):
            policy.check_explains()

    @pytest.mark.parametrize("explains", ["party", "columns", "values"])
    def test_it_takes_part_where_it_shows_something(self, explains: Any) -> None:
        Policy(explains=explains).check_explains()

    def test_single_rows_are_named_where_they_may_be_scored(self) -> None:
        with pytest.raises(PolicyError, match="does not list 'score'"):
            Policy().check_named_rows()
        with pytest.raises(PolicyError, match=r"takes part with 20 or more \(min_rows\)"):
            Policy(protocols=("explain", "score"), min_rows=20).check_named_rows()
        Policy(protocols=("explain", "score")).check_named_rows()

    @settings(max_examples=30)
    @given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=6), st.integers(0, 12))
    def test_no_more_rows_than_its_limit_are_explained_in_a_day(self, asked: list[tuple[str, int]], limit: int) -> None:
        """A job that comes again pays for new rows only; every explained row is a predicted one, too."""
        with TemporaryDirectory() as folder, PredictionBudget(Path(folder), 8, explanations=limit) as budget:
            paid: dict[str, int] = {}
            for job, rows in asked:
                most = max(rows, paid.get(job, 0))
                total = sum(paid.values()) - paid.get(job, 0) + most
                if total <= min(limit, 8):
                    budget.spend_explanation(job, "alice", rows, NOON)
                    paid[job] = most
                else:
                    with pytest.raises(PolicyError, match="rows per day"):
                        budget.spend_explanation(job, "alice", rows, NOON)
            with budget._db.connection() as db:
                for table in ("explained", "spent"):
                    (found,) = db.execute(f"SELECT coalesce(sum(rows), 0) FROM {table}").fetchone()  # noqa: S608
                    assert found == sum(paid.values())


class TestLimits:
    @given(st.integers(1, 1000), st.integers(0, 2000))
    def test_rows(self, least: int, n: int) -> None:
        policy = Policy(min_rows=least)
        if n >= least:
            policy.check_rows(n)
        else:
            with pytest.raises(PolicyError, match=rf"\(min_rows = {least}\)"):
                policy.check_rows(n)

    @given(st.integers(1, 1000), st.integers(1, 2000))
    def test_leaves(self, least: int, asked: int) -> None:
        policy = Policy(min_samples_leaf=least)
        if asked >= least:
            policy.check_leaf(asked)
        else:
            with pytest.raises(PolicyError, match=rf"train with min_samples_leaf={least} or more"):
                policy.check_leaf(asked)

    @given(st.integers(0, 60), st.integers(0, 60), st.sampled_from(["open", "hidden"]))
    def test_cells(self, least: int, asked: int, protection: str) -> None:
        plan = replace(PLAN, max_bins=32, min_cell=asked, protection=protection)
        needed, policy = max(least, 20) if protection == "hidden" else least, Policy(min_cell=least)
        if asked >= needed:
            policy.check_plan(plan)
            policy.check_cells(plan, 1000)
        else:
            for check in (lambda: policy.check_plan(plan), lambda: policy.check_cells(plan, 1000)):
                with pytest.raises(PolicyError, match=rf"min_cell={needed} or more"):
                    check()

    @given(st.integers(1, 2000), st.integers(20, 200))
    def test_cells_follow_from_the_rows_where_a_policy_names_none(self, n_rows: int, asked: int) -> None:
        needed = max(20, min(150, n_rows // 6))
        plan = replace(PLAN, max_bins=32, protection="hidden", min_cell="auto")
        Policy().check_plan(plan)
        Policy().check_cells(plan, n_rows)
        Policy().check_cells(replace(PLAN, max_bins=32, min_cell=0), n_rows)
        chosen = replace(plan, min_cell=asked)
        Policy().check_plan(chosen)  # rows are not known yet
        if asked >= needed:
            Policy().check_cells(chosen, n_rows)
        else:
            with pytest.raises(PolicyError, match=rf"min_cell={needed} or more"):
                Policy().check_cells(chosen, n_rows)
        if needed < 150:
            with pytest.raises(PolicyError, match=r"min_cell=150 or more"):
                Policy(min_cell=150).check_cells(plan, n_rows)

    @given(st.integers(2, 256), st.none() | st.integers(2, 256))
    def test_bins(self, most: int, asked: int | None) -> None:
        plan = replace(PLAN, max_bins=asked)
        Policy().check_plan(plan)
        if asked is not None and asked <= most:
            Policy(max_bins=most).check_plan(plan)
        else:
            with pytest.raises(PolicyError, match=rf"max_bins={most} or less"):
                Policy(max_bins=most).check_plan(plan)

    @given(st.integers(0, 2000), st.integers(1, 2000))
    def test_trees(self, most: int, asked: int) -> None:
        plan = replace(PLAN, n_estimators=asked)
        Policy().check_plan(plan)
        if asked <= most:
            Policy(trees=most).check_plan(plan)
        else:
            with pytest.raises(PolicyError, match=rf"n_estimators={most} or less"):
                Policy(trees=most).check_plan(plan)

    def test_sums(self) -> None:
        careful = Policy()
        careful.check_sums(plain=False, two=False)
        for plain, two, setting in (
            (True, False, "plain_sums"),
            (False, True, "allow_two"),
            (True, True, "plain_sums"),
        ):
            with pytest.raises(PolicyError, match=f"{setting} = true"):
                careful.check_sums(plain=plain, two=two)
        Policy(plain_sums=True).check_sums(plain=True, two=False)
        Policy(allow_two=True).check_sums(plain=False, two=True)

    @pytest.mark.parametrize("form", ["decisions", "leaves", "ranks", "classical", "encrypted-splits"])
    def test_wire_forms(self, form: str) -> None:
        Policy().check_wire_form(form)
        Policy(wire_forms=("sealed",)).check_wire_form("sealed")
        Policy(wire_forms=(form,)).check_wire_form(form)  # type: ignore[arg-type]
        with pytest.raises(PolicyError, match=f"form '{form}': the setting wire_forms .* allows sealed"):
            Policy(wire_forms=("sealed",)).check_wire_form(form)
        with pytest.raises(PolicyError, match="allows none"):
            Policy(wire_forms=()).check_wire_form(form)

    def test_defaults(self) -> None:
        policy = Policy()
        assert policy.protocols == ("align", "train", "predict", "revoke", "delete")
        assert not policy.share_model
        assert (policy.predictions_per_day, policy.trainings_per_day) == ("unlimited", "unlimited")
        assert policy.receive == ()
        policy.check_rows(1)
        policy.check_leaf(1)


class TestBudget:
    def test_up_to_the_limit_and_no_further(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, 100) as budget:
            budget.spend("a", "alice", 60, NOON)
            with pytest.raises(PolicyError) as caught:
                budget.spend("b", "bob", 41, NOON)
            assert str(caught.value) == (
                "this party predicts 100 rows per day (predictions_per_day); 40 are left until 2025-03-10 00:00 UTC"
            )
            budget.spend("b", "bob", 40, NOON)
            with pytest.raises(PolicyError, match="; 0 are left"):
                budget.spend("c", "alice", 1, NOON)

    def test_batches_come_in_order_and_are_paid_for_once(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, 10) as budget:
            for _ in range(3):  # the same again is paid for
                budget.spend_batch("a", 2, b"two", "alice", 6, NOON)
            for batch, digest in ((2, b"other"), (1, b"one")):
                with pytest.raises(RemoteProtocolError, match="there was a batch 2 already"):
                    budget.spend_batch("a", batch, digest, "alice", 1, NOON)
            with pytest.raises(PolicyError, match="4 are left"):
                budget.spend_batch("a", 3, b"three", "alice", 5, NOON)
            budget.spend_batch("a", 3, b"three", "alice", 4, NOON)

    def test_a_label_is_learnt_from_as_often_as_a_day_allows(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, "unlimited", 2) as budget:
            for job in ("a", "b", "a"):  # a job that comes again has paid
                budget.spend_training(job, "customers.late", "alice", NOON)
            with pytest.raises(PolicyError, match="2"):
                budget.spend_training("c", "customers.late", "alice", NOON)
            budget.spend_training("c", "customers.income", "alice", NOON)
            budget.spend_training("c", "customers.late", "alice", NOON + timedelta(days=1))

    def test_a_repeated_job_pays_only_for_what_is_new(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, 100) as budget:
            for rows in (70, 70, 10, 70):
                budget.spend("a", "alice", rows, NOON)
            budget.spend("a", "alice", 90, NOON)
            with pytest.raises(PolicyError, match="; 10 are left"):
                budget.spend("a", "alice", 101, NOON)
            budget.spend("b", "alice", 10, NOON)
            budget.spend("a", "alice", 90, NOON + timedelta(days=1))
            budget.spend("a", "alice", 190, NOON + timedelta(days=1))
            with pytest.raises(PolicyError, match="; 0 are left until 2025-03-11"):
                budget.spend("c", "alice", 1, NOON + timedelta(days=1))

    def test_the_day_turns_at_midnight_utc(self, tmp_path: Path) -> None:
        east = timezone(timedelta(hours=14))
        with PredictionBudget(tmp_path, 10) as budget:
            budget.spend("a", "alice", 10, datetime(2025, 3, 9, 23, 59, 59, tzinfo=UTC))
            with pytest.raises(PolicyError):
                budget.spend("b", "alice", 1, datetime(2025, 3, 10, 13, 59, tzinfo=east))
            budget.spend("b", "alice", 10, datetime(2025, 3, 10, 14, 0, tzinfo=east))

    def test_setting_the_clock_back_gives_nothing(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, 10) as budget:
            budget.spend("a", "alice", 4, NOON - timedelta(days=1))
            budget.spend("b", "alice", 7, NOON)
            for days in (1, 2, 400):
                with pytest.raises(PolicyError, match="; 3 are left until 2025-03-10"):
                    budget.spend("c", "alice", 4, NOON - timedelta(days=days))
            budget.spend("c", "alice", 3, NOON - timedelta(days=2))
            with pytest.raises(PolicyError, match="; 0 are left"):
                budget.spend("d", "alice", 1, NOON)

    def test_it_outlives_the_process(self, tmp_path: Path) -> None:
        script = (
            "import os, signal, sys\nfrom datetime import datetime, UTC\nfrom pathlib import Path\n"
            "from woodlot.jobs.day_budgets import PredictionBudget\n"
            "PredictionBudget(Path(sys.argv[1]), 100).spend('a', 'alice', 60, datetime(2025, 3, 9, 12, tzinfo=UTC))\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=False)
        assert ended.returncode == -9, ended.stderr
        with PredictionBudget(tmp_path, 100) as budget:
            budget.spend("a", "alice", 60, NOON)
            with pytest.raises(PolicyError, match="; 40 are left"):
                budget.spend("b", "alice", 41, NOON)

    def test_predictions_count_before_there_is_a_limit(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, "unlimited") as budget:
            budget.spend("a", "alice", 10**12, NOON)
        with PredictionBudget(tmp_path, 100) as budget, pytest.raises(PolicyError, match="; 0 are left"):
            budget.spend("b", "alice", 1, NOON)

    def test_a_damaged_file_is_an_error_of_ours_whatever_stands_in_it(self, tmp_path: Path) -> None:
        PredictionBudget(tmp_path, 10).close()
        path = tmp_path / BUDGET_FILE
        path.write_bytes(path.read_bytes().replace(b"TABLE spent", b"\xff" * 11, 1))
        with pytest.raises(JournalError):
            PredictionBudget(tmp_path, 10)

    def test_none_at_all(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, 0) as budget, pytest.raises(PolicyError, match="predicts 0 rows per day"):
            budget.spend("a", "alice", 1, NOON)

    def test_many_at_once_do_not_overspend(self, tmp_path: Path) -> None:
        done: list[str] = []

        def work(budget: PredictionBudget, worker: int) -> None:
            for at in range(10):
                try:
                    budget.spend(f"{worker}-{at}", "alice", 3, NOON)
                except PolicyError:
                    continue
                done.append(f"{worker}-{at}")

        with PredictionBudget(tmp_path, 50) as one, PredictionBudget(tmp_path, 50) as other:
            threads = [threading.Thread(target=work, args=(one if i % 2 else other, i)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(done) == 16

    def test_only_the_owner_may_read_it(self, tmp_path: Path) -> None:
        state = tmp_path / "deep" / "state"
        before = os.umask(0)
        try:
            with PredictionBudget(state, 5) as budget:
                budget.spend("a", "alice", 1, NOON)
                modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
        finally:
            os.umask(before)
        assert modes[BUDGET_FILE] == 0o600
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE(state.stat().st_mode) == 0o700

    def test_every_spend_is_on_disk_before_it_is_granted(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, 5) as budget, budget._db.connection() as db:
            assert db.execute("PRAGMA synchronous").fetchone() == (2,)
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)

    def test_a_record_that_cannot_be_written_grants_nothing(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, 5) as budget:
            with closing(sqlite3.connect(tmp_path / BUDGET_FILE)) as db:
                (pages,) = db.execute("PRAGMA page_count").fetchone()
            with budget._db.connection() as db:
                db.execute(f"PRAGMA max_page_count = {pages}")
            long = "a" * 100_000  # a name that needs more pages than there are
            with pytest.raises(JournalError, match="make room on the disk"):
                budget.spend(long, "alice", 5, NOON)
            with budget._db.connection() as db:
                db.execute("PRAGMA max_page_count = 10000")
            budget.spend(long, "alice", 5, NOON)  # the failed one took nothing, and can be repeated

    def test_a_damaged_record_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / BUDGET_FILE).write_bytes(b"not a database" * 1000)
        (tmp_path / BUDGET_FILE).chmod(0o600)
        with pytest.raises(JournalError, match=r"predictions\.sqlite cannot be used, so nothing may be predicted"):
            PredictionBudget(tmp_path, 5)

    def test_a_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "state").touch()
        with pytest.raises(JournalError, match="cannot be used"):
            PredictionBudget(tmp_path / "state", 5)

    def test_misuse(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, 5) as budget:
            with pytest.raises(ValueError, match="time zone"):
                budget.spend("a", "alice", 1, NOON.replace(tzinfo=None))
            with pytest.raises(ValueError, match="negative"):
                budget.spend("a", "alice", -1, NOON)
        budget.close()
        with pytest.raises(JournalError, match="is closed"):
            budget.spend("a", "alice", 1, NOON)

    @settings(max_examples=25, deadline=None)
    @given(
        st.integers(0, 20),
        st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12), st.integers(-3, 5)), max_size=20),
    )
    def test_no_sequence_of_jobs_and_clocks_overspends_a_day(
        self, limit: int, orders: list[tuple[str, int, int]]
    ) -> None:
        paid: dict[str, int] = {}
        spent: dict[int, int] = {}
        with TemporaryDirectory() as folder, PredictionBudget(Path(folder), limit) as budget:
            for job, rows, day in orders:
                today = max([day, *spent])
                due = rows - paid.get(job, 0)
                try:
                    budget.spend(job, "alice", rows, NOON + timedelta(days=day))
                except PolicyError:
                    assert spent.get(today, 0) + due > limit
                    continue
                if job not in paid or due > 0:
                    spent[today] = spent.get(today, 0) + due
                    paid[job] = rows
                assert spent.get(today, 0) <= limit


class TestTrainings:
    def test_each_label_has_its_own_count_and_a_job_pays_once(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, "unlimited", 2) as budget:
            for job in ("a", "b", "a", "b"):
                budget.spend_training(job, "customers.late", "alice", NOON)
            with pytest.raises(PolicyError) as caught:
                budget.spend_training("c", "customers.late", "bob", NOON)
            assert str(caught.value) == (
                "this party lets a label be learnt from 2 times per day (trainings_per_day), and this one has been; "
                "the next training is possible from 2025-03-10 00:00 UTC"
            )
            budget.spend_training("c", "customers.income", "bob", NOON)
            budget.spend_training("d", "customers.late", "bob", NOON + timedelta(days=1))

    def test_neither_a_restart_nor_the_clock_gives_any_back(self, tmp_path: Path) -> None:
        with PredictionBudget(tmp_path, "unlimited", "unlimited") as budget:  # counted before there is a limit
            budget.spend_training("a", "t.y", "alice", NOON)
        with PredictionBudget(tmp_path, "unlimited", 1) as budget:
            for now in (NOON, NOON - timedelta(days=3)):
                with pytest.raises(PolicyError, match="2025-03-10"):
                    budget.spend_training("b", "t.y", "alice", now)
            budget.spend("p", "alice", 5, NOON + timedelta(days=2))  # the day of predictions is that of trainings
            with pytest.raises(ValueError, match="time zone"):
                budget.spend_training("b", "t.y", "alice", datetime(2025, 3, 12))
            budget.spend_training("b", "t.y", "alice", NOON)
            with pytest.raises(PolicyError, match="2025-03-12"):
                budget.spend_training("c", "t.y", "alice", NOON)

    def test_many_at_once_do_not_overspend(self, tmp_path: Path) -> None:
        taken = []

        def work(worker: int) -> None:
            with PredictionBudget(tmp_path, "unlimited", 3) as budget, suppress(PolicyError):
                budget.spend_training(f"job {worker}", "t.y", "alice", NOON)
                taken.append(worker)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 3


class TestReceivers:
    def test_exactly_those_named(self) -> None:
        policy = Policy(receive=("alice", "bank"))
        policy.check_receivers(["alice", "bank"])
        policy.check_receivers([])
        for name in ("bob", "*", "ban"):
            with pytest.raises(PolicyError, match=r"add .* to the setting receive in the section \[policy\]"):
                policy.check_receivers(["alice", name])
        Policy(receive=("*",)).check_receivers(["bob", "shop"])
