from __future__ import annotations

import pickle
import threading

import pytest

from woodlot.protocols.core.message import Role
from woodlot.runtime.audit import Account, Cost, DisclosureRow, Disclosures, Ledger

from .samples import Answer, Question


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    for party, size in (("bank", 100), ("shop", 50)):
        ledger.record("coordinator", party, Question(), size)
        ledger.record(party, Role.coordinator, Answer(), 10 * size)
    ledger.record("coordinator", "bank", Question(number=2), 7)
    ledger.count_round()
    ledger.count_round()
    ledger.add_seconds("grow", 1.5)
    ledger.add_seconds("align", 0.25)
    ledger.add_seconds("grow", 1.5)
    return ledger


def test_totals(ledger: Ledger) -> None:
    assert ledger.rounds == 2
    assert ledger.bytes_total == 1_657
    assert ledger.bytes_sent_to == {"bank": 107, "shop": 50}
    assert ledger.bytes_received_from == {"bank": 1_000, "shop": 500}


def test_cost(ledger: Ledger) -> None:
    assert ledger.cost() == Cost(
        rounds=2,
        bytes_sent=157,
        bytes_received=1_500,
        bytes_by_party={"bank": 1_107, "shop": 550},
        seconds={"grow": 3.0, "align": 0.25},
        total_seconds=3.25,
    )
    assert repr(ledger.cost()).splitlines() == [
        "2 rounds, 157 B sent, 1.5 kB received, 3.2 s",
        "  grow   3.0 s",
        "  align  250 ms",
        "  bank  1.1 kB",
        "  shop  550 B",
    ]


def test_the_networks_share(ledger: Ledger) -> None:
    ledger.add_travel(0.25, 600)
    ledger.add_travel(1.0, 500)
    first = repr(ledger.cost()).partition("\n")[0]
    assert first.endswith("received, 3.2 s, of which the network took 1.2 s for 1.1 kB on the wire")
    assert Account.from_json(**ledger.account().to_json()).cost == ledger.cost()


@pytest.mark.parametrize(
    ("n_bytes", "seconds", "words"),
    [
        (0, 0.0, "0 B sent, 0 B received, 0 ms"),
        (999, 0.0012345, "999 B sent, 999 B received, 1.23 ms"),
        (1_000, 0.9994, "1.0 kB sent, 1.0 kB received, 999 ms"),
        (999_999, 0.9999, "1.0 MB sent, 1.0 MB received, 1.0 s"),
        (2_500_000_000, 59.99, "2.5 GB sent, 2.5 GB received, 1 min 00 s"),
        (10**16, 4_000.0, "10,000.0 TB sent, 10,000.0 TB received, 1 h 06 min"),
    ],
)
def test_numbers_are_written_for_people(n_bytes: int, seconds: float, words: str) -> None:
    cost = Cost(rounds=1, bytes_sent=n_bytes, bytes_received=n_bytes, total_seconds=seconds)
    assert repr(cost) == f"1 round, {words}"


def test_rows_are_added_up_in_order_of_appearance(ledger: Ledger) -> None:
    disclosures = ledger.disclosure()
    assert len(disclosures) == 4
    assert disclosures[0] == DisclosureRow(
        sender="coordinator",
        receiver="bank",
        kind="Question",
        count=2,
        bytes=107,
        form="clear",
        reveals="what is asked",
    )
    assert [(row.sender, row.receiver) for row in disclosures] == [
        ("coordinator", "bank"),
        ("bank", "coordinator"),
        ("coordinator", "shop"),
        ("shop", "coordinator"),
    ]
    assert disclosures[1:] == Disclosures(tuple(disclosures)[1:])
    assert all(type(row.receiver) is str for row in disclosures)


def test_disclosures_are_a_snapshot(ledger: Ledger) -> None:
    before = ledger.disclosure()
    ledger.record("coordinator", "bank", Question(), 1)
    assert before[0].count == 2
    assert ledger.disclosure()[0].count == 3


def test_the_table_is_aligned(ledger: Ledger) -> None:
    assert str(ledger.disclosure()[:2]).splitlines() == [
        "sender       receiver     kind      count   bytes  form",
        "-----------  -----------  --------  -----  ------  -------",
        "coordinator  bank         Question      2   107 B  clear",
        "bank         coordinator  Answer        1  1.0 kB  encoded",
        "",
        "Question  what is asked",
        "Answer    the answer | and no more",
    ]
    assert str(Disclosures()) == "nothing was disclosed"


@pytest.mark.parametrize(("columns", "widest"), [(40, 60), (80, 80), (400, 120)])
def test_what_is_told_is_wrapped_to_the_terminal(columns: int, widest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = tuple(DisclosureRow("a", "b", kind, 1, 1, "clear", f"{kind} " * 60) for kind in ("Long", "Longer"))
    told = str(Disclosures((*rows, *rows))).split("\n\n")[1].splitlines()
    assert widest - len("Longer") <= max(map(len, told)) <= widest
    assert [line.split()[0] for line in told if not line.startswith(" ")] == ["Long", "Longer"]  # once for each kind


def test_html_is_escaped() -> None:
    ledger = Ledger()
    ledger.record("coordinator", "<script>alert(1)</script>&", Question(), 1)
    page = ledger.disclosure()._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page
    assert page.count("<tr>") == 2
    assert page.count("<th>") == page.count("<td>") == 7


def test_dictionaries(ledger: Ledger) -> None:
    assert ledger.disclosure().to_dicts()[3] == {
        "sender": "shop",
        "receiver": "coordinator",
        "kind": "Answer",
        "count": 1,
        "bytes": 500,
        "form": "encoded",
        "reveals": "the answer | and no more",
    }


def test_disclosures_and_cost_can_be_kept_with_a_model(ledger: Ledger) -> None:
    kept = (ledger.disclosure(), ledger.cost())
    assert pickle.loads(pickle.dumps(kept)) == kept  # noqa: S301


def test_many_threads() -> None:
    ledger = Ledger()

    def record() -> None:
        for _ in range(2_000):
            ledger.record("coordinator", "bank", Question(), 3)
            ledger.count_round()
            ledger.add_seconds("grow", 0.5)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.disclosure()[0].count == ledger.rounds == 8_000
    assert ledger.bytes_total == ledger.bytes_sent_to["bank"] == 24_000
    assert ledger.cost().seconds == {"grow": 4_000.0}
