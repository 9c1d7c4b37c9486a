"""Who has learnt what in a job: every message has its place, and nothing that was sealed looks like nothing."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodlot.dashboard.leak_runs import LeakRuns
from woodlot.dashboard.learnt import MOST_TREES, Roles, leak_test, learnt, on_request
from woodlot.exceptions import DataError
from woodlot.jobs import every_message  # noqa: F401 - so that all messages are known
from woodlot.leaks.leak_test import PARTS
from woodlot.protocols.core.message import registered
from woodlot.protocols.core.stakes import ASSETS, KINDS, STAKES, assets_of, stake_of
from woodlot.runtime.audit import DisclosureRow


def sent(sender: str, receiver: str, kind: str, n_bytes: int = 10) -> DisclosureRow:
    return DisclosureRow(sender, receiver, kind, 1, n_bytes, "clear", "something")


def test_assets_go_with_stakes() -> None:
    """A message that tells of single rows says of what; one that tells nothing tells of nothing."""
    for kind, stake in KINDS.items():
        told = assets_of(kind)
        assert bool(told) == (stake != "nothing"), kind
        if stake == "numbers":
            assert "counts" in told, kind
        if stake == "rows":
            assert told != set(ASSETS) - {"frames"}, f"{kind} needs a line in the table of assets"
    assert assets_of("NobodyHasJudgedThis") == set(ASSETS) - {"frames"}


def test_a_job_that_the_coordinator_runs() -> None:
    record = [
        sent("bank", "coordinator", "EncodedLabels", 50),
        sent("coordinator", "shop", "StartForest", 40),
        sent("shop", "coordinator", "Partition", 30),
        sent("coordinator", "bank", "PlantTrees", 20),
        sent("coordinator", "keys", "DealComparisons", 5),
    ]
    found = learnt(record, Roles("bank", False, "alice"), offered=on_request("model"))
    assert found.columns == {
        "coordinator": ("coordinator",), "leader": ("bank",), "parties": ("shop",), "user": ("alice",),
        "helper": ("keys",),
    }  # fmt: skip
    assert found.rows["labels"]["coordinator"].stake == "rows"
    assert found.rows["labels"]["coordinator"].bytes == 50
    assert found.rows["labels"]["parties"].bytes == 40
    assert not found.rows["labels"]["leader"].messages
    assert found.rows["sides"]["coordinator"].bytes == 30
    assert found.rows["counts"]["leader"].stake == "numbers"
    assert found.rows["thresholds"]["user"].count == 0, "the user may ask for it; nothing was sent"
    assert "frames" not in found.rows


def test_frames_are_never_shown_as_nothing() -> None:
    record = [
        sent("coordinator", "bank", "LeadOn"), sent("coordinator", "shop", "SealedRequest"),
        sent("shop", "coordinator", "SealedReply"),
    ]  # fmt: skip
    found = learnt(record, Roles("bank", True, "alice"))
    for asset in ("labels", "values", "thresholds", "sides", "answers", "ids"):
        assert found.rows[asset]["leader"].is_sealed, asset
        assert found.rows[asset]["parties"].is_sealed, asset
        assert not found.rows[asset]["coordinator"].is_sealed
        assert not found.rows[asset]["coordinator"].messages
    account = [
        sent("shop", "bank (leader)", "Partition"), sent("bank (leader)", "shop", "StartForest"),
        sent("bank", "bank (leader)", "EncodedLabels"), sent("bank (leader)", "dealer", "DealShuffle"),
    ]  # fmt: skip
    found = learnt(record, Roles("bank", True, "alice"), account)
    assert not [cell for cells in found.rows.values() for cell in cells.values() if cell.is_sealed]
    assert found.rows["labels"]["parties"].messages
    assert not found.rows["labels"]["leader"].messages, "what its own part tells a leader is nothing new"
    assert [row.kind for row in found.rows["counts"]["coordinator"].messages] == ["SealedReply", "DealShuffle"]


rows = st.lists(
    st.builds(
        sent,
        st.sampled_from(["coordinator", "bank", "shop", "bank (leader)"]),
        st.sampled_from(["coordinator", "bank", "shop", "user", "bank (leader)"]),
        st.sampled_from(sorted(registered())),
        st.integers(0, 1000),
    ),
    max_size=10,
)


@given(rows)
def test_every_message_that_tells_something_is_in_the_table(record: list[DisclosureRow]) -> None:
    found = learnt(record, Roles("bank", True, "alice"))
    shown = [row for cells in found.rows.values() for cell in cells.values() for row in cell.messages]
    for row in record:
        is_own = row.sender.removesuffix(" (leader)") == row.receiver.removesuffix(" (leader)")
        assert (row in shown) == (stake_of(row.kind) != "nothing" and not is_own) or is_own
    for cells in found.rows.values():
        assert list(cells) == list(found.columns)
        for cell in cells.values():
            assert all(STAKES.index(cell.stake) <= STAKES.index(stake_of(row.kind)) for row in cell.messages)


def test_what_a_user_may_ask_for() -> None:
    assert "Predictions" in on_request("answers")
    assert "Predictions" not in on_request("answers", gives_answers=False)
    assert on_request("rows") == ("JobStatus",)
    for outcome in ("model", "answers", "explanation", "receipt", "erasure", "rows", ""):
        assert set(on_request(outcome)) <= set(registered())


@pytest.mark.parametrize(
    ("kind", "led", "hidden", "part"),
    [
        ("train", True, False, "led"),
        ("train", True, True, "hidden"),
        ("train", False, False, "labels"),
        ("align", False, False, "ids"),
        ("evaluate", True, False, "evaluations"),
    ],
)
def test_the_leak_test_of_a_setting(kind: str, led: bool, hidden: bool, part: str) -> None:
    command = leak_test(kind, led, hidden, {"max_depth": 7, "n_estimators": 10**9, "max_features": "sqrt; rm -r"})
    assert part in PARTS
    assert f"--part {part}" in command
    assert "--set max_depth=7" in command
    assert f"--set n_estimators={MOST_TREES}" in command
    assert "rm" not in command, "only numbers are passed on"
    assert leak_test("drift", led, hidden, {}) == ""


@pytest.mark.slow
def test_attacks_run_one_at_a_time_and_tell_their_figures() -> None:
    runs = LeakRuns()
    command = leak_test("align", False, False, {})
    run = runs.start(command)
    with pytest.raises(DataError, match="running already"):
        runs.start(command)
    runs.wait()
    assert run.state == "done", run.error
    assert {one["asset"] for one in run.findings} == {"ids"}
    failing = runs.start(f"{command} --part nothing")
    runs.wait()
    assert failing.state == "failed"
    assert "nothing" in failing.error
    assert shlex.split(command)[0] == "woodlot"
