"""The ledger: never over the budget, never twice for the same, never forgotten."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.exceptions import JournalError, LocalProtocolError, PolicyError
from woodlot.foundation.database import Database
from woodlot.privacy.accounting import Spend, total_epsilon
from woodlot.privacy.budget import Budget, BudgetFile, BudgetRecord, Budgets, Charge, Use
from woodlot.privacy.client_budget import LocalBudget
from woodlot.privacy.label_code import LabelCode
from woodlot.privacy.randomised_response import RandomisedResponse
from woodlot.runtime.journal import Entry, Journal
from woodlot.runtime.journal_file import JOURNAL_SCHEMA

HERE = Path(__file__).parent


def release(name: str, epsilon: float = 0.1, count: int = 1, answer: bytes | None = None) -> Charge:
    return Charge(unit="rows", release=name, mechanism="noise", spend=Spend(epsilon, count), answer=answer)


def charge(file: BudgetFile, one: Charge, budget: Budget, dataset: str = "loans") -> Charge:
    with file.transaction() as ledger:
        return ledger.charge("bank", dataset, budget, one)


def test_ten_tenths_fit_and_no_eleventh(tmp_path: Path) -> None:
    with BudgetFile(tmp_path / "ledger") as file:
        for number in range(10):
            charge(file, release(f"r{number}"), Budget(1.0))
        with pytest.raises(PolicyError, match=r"of epsilon 1 .* 1 is spent, .* 1\.1; the request is refused"):
            charge(file, release("r10"), Budget(1.0))
        with file.transaction() as ledger:
            assert ledger.spent("bank", "loans", "rows") == pytest.approx(1.0)
            assert [one.release for one in ledger.charges("bank", "loans")] == [f"r{number}" for number in range(10)]
            assert ledger.accounts() == [("bank", "loans")]
        with pytest.raises(PolicyError):  # what is left is nothing, however little is asked
            charge(file, release("r11", 1e-6), Budget(1.0))


def test_a_local_budget_is_charged_once_in_a_file_or_in_memory(tmp_path: Path) -> None:
    with BudgetFile(tmp_path / "ledger") as file:
        for client_budget in (
            LocalBudget("bank", "loans", Budget(1.0), file),
            LocalBudget("bank", "loans", Budget(1.0)),
        ):
            client_budget.check(release("r", 0.6, answer=b"first"))
            assert client_budget.charge(release("r", 0.6, answer=b"first")).answer == b"first"
            assert client_budget.charge(release("r", 0.6, answer=b"second")).answer == b"first"
            client_budget.check(release("r", 0.6), release("s", 0.4))  # what was paid is not counted again
            with pytest.raises(PolicyError):
                client_budget.check(release("s", 0.4), release("t", 0.4))
            with pytest.raises(PolicyError):
                client_budget.charge(release("s", 0.6))
            assert total_epsilon(client_budget.spends("rows")) == pytest.approx(0.6)
        assert LocalBudget("bank", "loans", file=file).charge(release("s", 40.0)).spend == Spend(40.0)
        with file.transaction() as ledger:
            assert ledger.spent("bank", "loans", "rows") == pytest.approx(40.6)


def test_accounts_are_apart(tmp_path: Path) -> None:
    with BudgetFile(tmp_path / "ledger") as file:
        charge(file, release("r", 1.0), Budget(1.0))
        charge(file, release("r", 1.0), Budget(1.0), dataset="cards")
        with file.transaction() as ledger:
            ledger.charge("shop", "loans", Budget(1.0), release("r", 1.0))
            assert ledger.accounts() == [("bank", "cards"), ("bank", "loans"), ("shop", "loans")]
            assert ledger.spent("shop", "cards", "rows") == 0


def test_same_release_is_charged_once_and_keeps_its_first_answer(tmp_path: Path) -> None:
    with BudgetFile(tmp_path / "ledger") as file:
        charge(file, release("r", 0.6, answer=b"first"), Budget(1.0))
        for budget in (Budget(1.0), Budget(0.1)):  # what was released may be sent again, whatever is left
            assert charge(file, release("r", 0.6, answer=b"second"), budget).answer == b"first"
        with file.transaction() as ledger:
            assert len(ledger.charges("bank", "loans")) == 1
        for other in (release("r", 0.5), release("r", 0.6, 2)):
            with pytest.raises(LocalProtocolError, match="other terms"):
                charge(file, other, Budget(9.0))


def test_permanent_response_is_charged_once_unless_the_secret_is_lost(tmp_path: Path) -> None:
    response = RandomisedResponse.from_paper(LabelCode.one_hot(["no", "yes"]), pr=0.75, xi=0.9, zeta=0.1)
    budget = Budget(response.epsilon())

    def train(secret: bytes) -> None:
        one = Charge(
            unit="labels",
            release=response.release(secret, "loans"),
            mechanism="labels",
            spend=Spend(response.epsilon()),
        )
        charge(file, one, budget)

    with BudgetFile(tmp_path / "ledger") as file:
        for _ in range(3):
            train(bytes(32))
        with pytest.raises(PolicyError, match=r"it would become 7\.78"):
            train(bytes(31) + b"x")


def test_composed_budget_allows_more_and_still_ends(tmp_path: Path) -> None:
    budget = Budget(1.0, 1e-6)
    with BudgetFile(tmp_path / "ledger") as file:
        charge(file, release("level 0", 0.01, 100), budget)  # 1.0 as a sum
        charge(file, release("level 1", 0.01, 300), budget)  # 4.0 as a sum, 0.85 composed
        with pytest.raises(PolicyError, match="the request is refused"):
            charge(file, release("level 2", 0.01, 300), budget)
        with file.transaction() as ledger:
            assert ledger.spent("bank", "loans", "rows", 1e-6) == pytest.approx(total_epsilon([Spend(0.01, 400)], 1e-6))
            assert ledger.spent("bank", "loans", "rows") == pytest.approx(4.0)
        with pytest.raises(PolicyError):
            charge(file, release("level 2", 0.01), Budget(1.0))


def test_check_records_nothing(tmp_path: Path) -> None:
    with BudgetFile(tmp_path / "ledger") as file, file.transaction() as ledger:
        ledger.check("bank", "loans", Budget(1.0), release("a", 0.5), release("b", 0.1, 5))
        with pytest.raises(PolicyError):
            ledger.check("bank", "loans", Budget(1.0), release("a", 0.5), release("b", 0.1, 6))
        assert ledger.charges("bank", "loans") == []


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(0.01, 0.7)), max_size=20))
@settings(max_examples=30, deadline=None)
def test_budget_is_never_exceeded(asked: list[tuple[int, float]]) -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    ledger, granted = BudgetRecord(db), dict[str, float]()
    for number, epsilon in asked:
        db.execute("BEGIN IMMEDIATE")
        name = f"r{number}"
        fits = math.fsum([*granted.values(), epsilon]) <= 1.0
        try:
            ledger.charge("c", "d", Budget(1.0), release(name, epsilon))
        except PolicyError:
            assert name not in granted
            assert not fits
        except LocalProtocolError:
            assert granted[name] != epsilon
        else:
            granted.setdefault(name, epsilon)
        db.execute("COMMIT")
        assert math.fsum(granted.values()) <= 1.0 + 1e-9
        assert ledger.spent("c", "d", "rows") == pytest.approx(math.fsum(granted.values()), abs=1e-9)
    db.close()


def test_charge_and_message_are_stored_together_or_not_at_all(tmp_path: Path) -> None:
    """In a party's journal: one transaction holds the message and its charge."""
    path = tmp_path / "journal.sqlite"
    with Journal(path, durable=True) as journal:
        entry = Entry("bank", "coordinator", 1, "Counts", 3, b"x" * 32, None)
        journal.job("job").append([entry])
    with closing(Database(path, JOURNAL_SCHEMA)) as database, database.connection() as db:
        ledger = BudgetRecord(db)
        assert ledger.spent("bank", "loans", "rows") == 0  # a journal without a ledger is one where nothing was spent
        with pytest.raises(LocalProtocolError, match="transaction"):
            ledger.charge("bank", "loans", Budget(1.0), release("r"))
        for end in ("ROLLBACK", "COMMIT"):
            db.execute("BEGIN IMMEDIATE")
            ledger.charge("bank", "loans", Budget(1.0), release("r"))
            db.execute("UPDATE jobs SET count = count WHERE job = 'job'")
            db.execute(end)
            assert ledger.spent("bank", "loans", "rows") == pytest.approx(0.1 if end == "COMMIT" else 0)
    with Journal(path, durable=True) as journal:
        journal.verify()


def test_error_in_a_transaction_undoes_its_charges(tmp_path: Path) -> None:
    with BudgetFile(tmp_path / "ledger") as file:

        def charge_and_fail() -> None:
            with file.transaction() as ledger:
                ledger.charge("bank", "loans", Budget(1.0), release("r"))
                raise OSError("the line broke")

        with pytest.raises(OSError, match="the line broke"):
            charge_and_fail()
        with file.transaction() as ledger:
            assert ledger.find("bank", "loans", "r") is None


def test_threads_and_files_share_one_budget(tmp_path: Path) -> None:
    granted: list[str] = []

    def client(name: str) -> None:
        with BudgetFile(tmp_path / "ledger") as file:
            for number in range(10):
                try:
                    charge(file, release(f"{name}{number}"), Budget(1.0))
                except PolicyError:
                    continue
                granted.append(name)

    BudgetFile(tmp_path / "ledger").close()
    threads = [threading.Thread(target=client, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 10


def test_killed_client_forgets_nothing_and_pays_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    sent: dict[str, str] = {}
    for lines in (1, 4, 9, 30):
        process = subprocess.Popen(
            [sys.executable, str(HERE / "budget_process.py"), str(path), "100"], stdout=subprocess.PIPE, text=True
        )
        with process:
            assert process.stdout is not None
            for _ in range(lines):
                name, answer = process.stdout.readline().split()
                assert sent.setdefault(name, answer) == answer
            process.kill()
            for line in process.stdout:  # what it had sent before it died
                if line.endswith("\n"):
                    name, answer = line.split()
                    assert sent.setdefault(name, answer) == answer
        with BudgetFile(path) as file, file.transaction() as ledger:
            recorded = {one.release: (one.answer or b"").hex() for one in ledger.charges("bank", "loans")}
            assert sent.items() <= recorded.items()
            assert ledger.spent("bank", "loans", "rows") == pytest.approx(0.01 * len(recorded))
    assert 30 <= len(sent) <= 100


def test_file_is_private_and_must_be_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with BudgetFile(path) as file:
        charge(file, release("r"), Budget(1.0))
        assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}
    path.chmod(0o644)
    with pytest.raises(JournalError, match="chmod 600"):
        BudgetFile(path)
    text = tmp_path / "text"
    text.write_text("not a database at all, but a longer text")
    text.chmod(0o600)
    with pytest.raises(JournalError, match="nothing may be released"):
        BudgetFile(text)
    Database(tmp_path / "journal", JOURNAL_SCHEMA).close()
    with pytest.raises(JournalError, match="another program's database"):
        BudgetFile(tmp_path / "journal")
    with pytest.raises(JournalError, match="nothing may be released"):
        BudgetFile(tmp_path / "no" / "folder")
    with pytest.raises(JournalError, match="is closed"), file.transaction():
        pass


def test_damaged_ledger_releases_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with BudgetFile(path) as file:
        charge(file, release("r"), Budget(1.0))
    data = bytearray(path.read_bytes())
    data[100:] = b"\xff" * (len(data) - 100)
    path.write_bytes(data)
    with pytest.raises(JournalError, match="nothing may be released"), BudgetFile(path) as file:
        charge(file, release("s"), Budget(1.0))


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 0), (-1, 0), (math.inf, 0), (math.nan, 0), (1, 1), (1, -0.1)])
def test_bad_budgets_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon|delta"):
        Budget(epsilon, delta)


def test_epsilons_beyond_counting_are_refused(tmp_path: Path) -> None:
    with BudgetFile(tmp_path / "ledger") as file, pytest.raises(PolicyError, match="too large"):
        charge(file, release("r", 1e9), Budget(1e12))


def test_labels_and_rows_have_an_account_each(tmp_path: Path) -> None:
    """The two are different promises: neither fills the other's budget, and no sum of them is told."""
    limits = Budgets(labels=Budget(1.0), rows=Budget(0.5))
    of_labels = [replace(release(f"labels {k}", 1.0), unit="labels") for k in range(2)]
    with BudgetFile(tmp_path / "ledger") as file:
        with file.transaction() as ledger:
            ledger.charge("bank", "loans", limits, of_labels[0])
            ledger.charge("bank", "loans", limits, release("rows", 0.5))
        for one, words in ((of_labels[1], "of epsilon 1 for the labels"), (release("more"), "0.5 for the rows")):
            with pytest.raises(PolicyError, match=words), file.transaction() as ledger:
                ledger.charge("bank", "loans", limits, one)
        with file.transaction() as ledger:
            assert ledger.spent("bank", "loans", "labels") == pytest.approx(1.0)
            assert ledger.spent("bank", "loans", "rows") == pytest.approx(0.5)
            with pytest.raises(LocalProtocolError, match="other terms"):  # a release is of one account
                ledger.charge("bank", "loans", limits, replace(of_labels[0], unit="rows"))


def test_a_budget_of_one_account_leaves_the_other_unlimited(tmp_path: Path) -> None:
    with BudgetFile(tmp_path / "ledger") as file, file.transaction() as ledger:
        limits = Budgets(labels=Budget(1.0))
        ledger.charge("bank", "loans", limits, release("rows", 9.0))
        ledger.check("bank", "loans", limits, release("more", 9.0), replace(release("l", 1.0), unit="labels"))


def test_what_is_told_of_other_rows_of_the_same_query_costs_nothing_more(tmp_path: Path) -> None:
    with BudgetFile(tmp_path / "ledger") as file:
        charge(file, release("r", 1.0, answer=b"one part"), Budget(1.0))
        kept = charge(file, release("s", 1.0, 0, answer=b"another"), Budget(1.0))
        assert kept.answer == b"another"
        with file.transaction() as ledger:
            assert ledger.spent("bank", "loans", "rows") == 1.0
            assert ledger.spent("bank", "loans", "rows", 1e-6) == pytest.approx(1.0, abs=1e-5)


def test_uses_without_privacy_are_kept_beside_the_charges(tmp_path: Path) -> None:
    use = Use(job="a" * 32, kind="train", units=("labels", "rows"))
    with BudgetFile(tmp_path / "ledger") as file:
        for _ in range(2):
            with file.transaction() as ledger:
                ledger.note_use("bank", "loans", use)
        with file.transaction() as ledger:
            ledger.note_use("bank", "cards", Use(job="b" * 32, kind="predict-rows", units=("rows",)))
            assert ledger.uses("bank", "loans") == [use]
            assert ledger.uses("shop", "loans") == []
            assert ledger.accounts() == [("bank", "cards"), ("bank", "loans")]
            assert ledger.spent("bank", "loans", "rows") == 0


# --- charges with a delta ---


def gaussian_charge(release: str, epsilon: float = 1.0, delta: float = 1e-6) -> Charge:
    return Charge(unit="rows", release=release, mechanism="Gaussian", spend=Spend(epsilon, 1, delta))


def test_a_delta_is_recorded_shown_and_copied(tmp_path: Path) -> None:
    with (
        BudgetFile(tmp_path / "a.sqlite") as file,
        BudgetFile(tmp_path / "b.sqlite") as other,
        file.transaction() as record,
        other.transaction() as copy,
    ):
        record.charge("bank", "loans", None, gaussian_charge("one"))
        assert record.charge("bank", "loans", None, gaussian_charge("one")).spend.delta == 1e-6
        with pytest.raises(LocalProtocolError, match="with other terms"):
            record.charge("bank", "loans", None, gaussian_charge("one", delta=1e-7))
        assert record.spent("bank", "loans", "rows") == pytest.approx(1.0)
        assert record.spent_delta("bank", "loans", "rows") == 1e-6
        record.copy_to(copy)
        assert [c.spend for c in copy.charges("bank", "loans")] == [Spend(1.0, 1, 1e-6)]


def test_a_delta_is_taken_from_that_of_the_budget() -> None:
    budget = LocalBudget("bank", "loans", Budget(5.0, 2.5e-6))
    budget.charge(gaussian_charge("one"))
    budget.charge(gaussian_charge("two"))
    with pytest.raises(PolicyError, match=r"it has a delta of 2\.5e-06 .* of which 2e-06 is spent"):
        budget.charge(gaussian_charge("three"))
    with pytest.raises(PolicyError, match="of epsilon 5 for the rows of this data set 2 is spent"):
        budget.charge(gaussian_charge("four", 3.5, 1e-7))
    assert len(budget.spends("rows")) == 1


def test_a_budget_without_a_delta_takes_none() -> None:
    with pytest.raises(PolicyError, match="let the client's operator set delta"):
        LocalBudget("bank", "loans", Budget(5.0)).charge(gaussian_charge("one"))
