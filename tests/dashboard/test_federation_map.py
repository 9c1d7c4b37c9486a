"""The map of a federation: what it says, and that its lines add up to the record."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from woodlot.dashboard.federation_map import MapFacts, MapMember, by_line, draw_narrow, draw_wide, thickness, totals
from woodlot.dashboard.views import Flow, StateView
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.job_store import JobStore
from woodlot.protocols.core.stakes import STAKES
from woodlot.runtime.journal import Journal
from woodlot.runtime.journal_file import Entry

BANK, SHOP = MapMember("bank", since=1.0, leads=1), MapMember("shop", seen=5.0)
FLOWS = (
    Flow("coordinator", "bank", "StartForest", 2, 9_000),
    Flow("coordinator", "bank", "OpenTraining", 1, 40),
    Flow("bank", "coordinator", "Offers", 3, 500),
)


def job(state: str) -> JobFacts:
    return JobFacts(job="a" * 32, kind="train", user="alice", state=state, version=1, created=0.0)


def test_it_says_who_is_there_and_what_runs() -> None:
    assert MapFacts(True, (BANK, SHOP)).in_words == "1 of 2 parties is connected. No job is running."
    assert MapFacts(True, (BANK,), (job("running"),)).in_words.endswith("Running now: train.")
    assert MapFacts(True, (BANK,), (job("queued"),)).in_words.endswith("No job is running.")
    assert MapFacts(False, (BANK,)).in_words.startswith("The coordinator is not running.")
    assert MapFacts(None, (MapMember("bank", is_known=False),)).in_words == "No job is running."
    assert [one.state for one in (BANK, SHOP, MapMember("x", is_known=False))] == ["connected", "away", "unknown"]


def test_lines_are_of_what_is_at_stake() -> None:
    box = draw_wide(MapFacts(True, (BANK, SHOP), (), FLOWS)).boxes[0]
    assert [(s.stake, s.is_out) for s in box.strands] == [("numbers", False), ("rows", True), ("nothing", True)]
    assert [label.text for label in box.labels] == ["500 B →", "9.0 kB ←"]
    assert not box.link
    idle = draw_wide(MapFacts(True, (BANK, SHOP), (), FLOWS)).boxes[1]
    assert idle.link
    assert not idle.strands


def test_a_drawing_changes_only_with_its_facts() -> None:
    facts = MapFacts(True, (BANK, SHOP), (job("running"),), FLOWS)
    assert facts.digest == MapFacts(True, (BANK, SHOP), (job("running"),), FLOWS).digest
    assert facts.digest != MapFacts(True, (BANK, SHOP), (job("queued"),), FLOWS).digest
    assert facts.digest != MapFacts(True, (BANK, SHOP), (job("running"),), FLOWS[:1]).digest


names = st.sampled_from(["coordinator", "bank", "shop"])
flows = st.lists(
    st.builds(
        Flow,
        names,
        names,
        st.sampled_from(["StartForest", "Offers", "Ready", "Unheard"]),
        st.integers(1, 9),
        st.integers(0, 10**9),
    ),
    max_size=12,
)


@given(flows, st.integers(0, 30))
def test_everything_is_drawn_within_the_picture(some: list[Flow], n_members: int) -> None:
    members = tuple(MapMember(name) for name in ["bank", "shop", *map(str, range(n_members))])
    facts = MapFacts(True, members, (), tuple(some))
    for drawing in (draw_wide(facts), draw_narrow(facts)):
        assert len(drawing.boxes) == len(members)
        places = {(box.x, box.y) for box in drawing.boxes}
        assert len(places) == len(members)
        for box in drawing.boxes:
            assert box.x >= 0
            assert box.y >= 0
            assert box.x + box.width <= drawing.width
            assert box.y + box.height <= drawing.height
            for strand in box.strands:
                assert all(re.fullmatch(r"-?[\d.]+(e-\d+)?", n) for n in re.findall(r"[^MCVQH ]+", strand.path))


@given(flows)
def test_bytes_are_neither_lost_nor_counted_twice(some: list[Flow]) -> None:
    lines = by_line(some)
    assert sum(int(str(line["bytes"])) for line in lines) == sum(flow.bytes for flow in some)
    assert [STAKES.index(str(line["stake"])) for line in lines] == sorted(
        STAKES.index(str(li["stake"])) for li in lines
    )
    touching = [flow for flow in some if "bank" in (flow.sender, flow.receiver)]
    assert sum(n for _, n in totals(some, "bank").values()) == sum(flow.bytes for flow in touching)


def test_more_bytes_make_thicker_lines_up_to_a_limit() -> None:
    widths = [thickness(10**power) for power in range(12)]
    assert widths == sorted(widths)
    assert widths[0] >= 2
    assert widths[-1] == widths[-2] == 12


def test_messages_of_the_last_minute(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.sqlite", durable=False) as journal:
        journal.job("one").append([Entry.of("coordinator", "bank", 1, "Ready", b"abc")])
        journal.job("one").append([Entry.of("coordinator", "bank", 2, "Ready", b"ab")])
        journal.job("two").append([Entry.of("bank", "coordinator", 1, "Offers", b"a")])
        sent = journal.job("one").records()[0].time / 1e9
        view = StateView("coordinator", tmp_path)
        assert view.flows(["one"], sent - 1) == [Flow("coordinator", "bank", "Ready", 2, 5)]
        assert view.flows(["one", "two"], sent + 60) == []
        assert view.latest_jobs(1) == ["two"]


def test_when_a_party_was_last_there(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    store.note_presence({"bank": 1.0, "shop": 2.0})
    both = store.last_seen()
    store.note_presence({"bank": 1.0})
    later = store.last_seen()
    store.note_presence({})
    assert store.last_seen() == later
    assert later["shop"] == both["shop"]
    assert later["bank"] >= both["bank"]
    store.close()
