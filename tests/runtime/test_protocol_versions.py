"""Two neighbouring versions of the protocol work together; others are told so, with the versions of both."""

from __future__ import annotations

import pytest

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.message import ApprovalPending, Unanswered
from woodlot.runtime.drivers.grpc_line import CoordinatorAwayError
from woodlot.runtime.protocol_versions import APPROVALS, VERSIONS, agreed, told
from woodlot.service.agent import pending_reply

from .grpc_world import World, ask, eventually, new_job

SIDES = {"other": "party 'bank'", "own": "the coordinator"}


@pytest.mark.parametrize(
    ("said", "ours", "version"),
    [("2,1", (2, 1), 2), (None, (2, 1), 1), ("1", (2, 1), 1), ("3,2", (2, 1), 2), ("2,1", (3, 2), 2)],
)
def test_the_newest_common_version_is_used(said: str | None, ours: tuple[int, ...], version: int) -> None:
    assert agreed(said, ours, **SIDES) == version


@pytest.mark.parametrize(
    ("said", "ours", "words"),
    [
        ("4,3", (2, 1), "party 'bank' speaks 4 and 3, the coordinator 2 and 1; upgrade the coordinator"),
        ("2,1", (4, 3), "party 'bank' speaks 2 and 1, the coordinator 4 and 3; upgrade party 'bank'"),
        (None, (3, 2), "party 'bank' speaks 1, the coordinator 3 and 2; upgrade party 'bank'"),
    ],
)
def test_an_unknown_version_is_an_error_that_names_both(said: str | None, ours: tuple[int, ...], words: str) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        agreed(said, ours, **SIDES)
    assert words in str(error.value)


@pytest.mark.parametrize("said", ["", "two", "2,,1", "-1", "2;1", "\u0662", "1" * 9, ",".join(["1"] * 17)])
def test_what_is_no_list_of_versions_is_refused(said: str) -> None:
    with pytest.raises(RemoteProtocolError, match="not a list of numbers"):
        agreed(said, VERSIONS, **SIDES)


def test_this_woodlot_speaks_its_own_version_and_the_one_before() -> None:
    assert len(VERSIONS) == 2
    assert VERSIONS[0] == VERSIONS[1] + 1
    assert agreed(told(), VERSIONS, **SIDES) == VERSIONS[0]


def test_a_hub_serves_parties_of_two_versions_side_by_side(world: World) -> None:
    hub = world.hub(versions=(2, 1))
    newer, older = world.party("a", versions=(3, 2)), world.party("b", versions=(1,))
    assert ask(hub.carrier(new_job(), wait_seconds=60), 1, {"a": b"x", "b": b"y"}) == {"a": b"x", "b": b"y"}
    assert (newer.version, older.version) == (2, 1)


def test_users_of_both_versions_are_told_apart(world: World) -> None:
    world.hub(versions=(2, 1), serve_user=lambda peer, data: str(peer.version).encode())
    assert world.user("alice", versions=(2, 1)).ask(b"?") == b"2"
    assert world.user("bob", versions=(1,)).ask(b"?") == b"1"


def test_peers_without_a_common_version_are_told_both(world: World, caplog: pytest.LogCaptureFixture) -> None:
    hub = world.hub(versions=(2, 1))
    line = world.party("a", versions=(4, 3), wait=False)
    eventually(lambda: line.trouble)
    assert "the coordinator speaks 2 and 1, this side 4 and 3; upgrade the coordinator" in line.trouble
    eventually(lambda: "party 'a' speaks 4 and 3, the coordinator 2 and 1" in caplog.text)
    assert hub.connected() == {}
    with pytest.raises(CoordinatorAwayError, match="the coordinator speaks 2 and 1, this side 4 and 3"):
        world.user("alice", versions=(4, 3), patience=0.1).ask(b"?")


def test_a_coordinator_from_before_approvals_is_asked_to_resume_the_job() -> None:
    assert isinstance(pending_reply(APPROVALS), ApprovalPending)
    older = pending_reply(APPROVALS - 1)
    assert type(older) is Unanswered
    assert "woodlot jobs resume" in older.reason
