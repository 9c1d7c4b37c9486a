"""A helper as the dealer of hidden trainings, without a network: the forest, the helper's part, refusals and replay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from dealer_bench import HAVE_ROWS, HELPER, DealerBench, dealt_leaving, dealt_order
from hidden_bench import HIDDEN_PLAN, THIRD, hidden_order, keep_hidden, leaving_order, relay_hidden
from hidden_forests import hidden_companies, open_forest, stored_forest
from led_bench import LEADER, OTHER
from party_bench import Play

from woodlot.exceptions import DataError, JournalError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as jobs
from woodlot.jobs.hidden.helper_dealing import DEALT_FOLDER, DealerBook
from woodlot.jobs.hidden.hidden_jobs import HiddenDealing
from woodlot.jobs.hidden.ordered_hidden import opening_of
from woodlot.jobs.lasting_secret import SECRET_FILE
from woodlot.jobs.led import led_messages as led
from woodlot.jobs.led.dealing import DEALER, DealerSeat, dealer_entropy
from woodlot.jobs.orders import TrainOrder
from woodlot.jobs.restored import Restoration, Restored
from woodlot.protocols.core.agreement import secret_bytes
from woodlot.protocols.core.message import Refusal
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.hidden.hidden_dealer import draw_shares
from woodlot.protocols.hidden.shared_rows import RecordLayout
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.journal import Journal
from woodlot.runtime.sessions import Sessions

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))

from hidden_cases import assert_same

ROWS = 388
"""The common rows of the three."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DealerBench]:
    with closing(DealerBench(tmp_path_factory.mktemp("dealt"))) as made:
        yield made


@pytest.fixture(scope="module")
def trained(bench: DealerBench) -> Play:
    order = dealt_order(bench)
    play = relay_hidden(bench, order)
    keep_hidden(bench, order, play)
    return play


def grown(bench: DealerBench, job: str) -> Any:
    return stored_forest(bench.world.root, job, f"{LEADER}/led")


# --- the forest ---


def test_the_forest_is_that_of_an_open_training_with_the_draws_of_the_helper(bench: DealerBench, trained: Play) -> None:
    forest = grown(bench, trained.job)
    assert set(forest[1]) == set(HAVE_ROWS)
    assert forest[0].structure.n_nodes > 20
    root, plan = bench.world.root, HIDDEN_PLAN
    assert_same(forest, open_forest(root, trained.job, plan, hidden_companies(), dealer=HELPER))


def test_the_helper_has_no_part_of_the_model_and_no_ids(bench: DealerBench, trained: Play) -> None:
    for store in (bench.coordinator, bench.led[LEADER]):
        facts = store.model_facts(trained.job)
        assert facts.parties == HAVE_ROWS
        assert facts.dealer == HELPER
    asked = {type(decode(data)) for data in trained.asked[HELPER]}
    assert asked == {jobs.OpenJob, led.MeetLeader, led.SealedRequest}  # no alignment, nothing in the clear
    state = bench.world.root / HELPER / "state"
    names = {path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file()}
    kept = {SECRET_FILE, f"{SECRET_FILE}.check", f"{DEALT_FOLDER}/{trained.job}.json"}
    assert kept <= names
    assert not [name for name in names - kept if not name.startswith(f"{DEALT_FOLDER}/")]


def test_the_coordinator_deals_nothing_and_has_no_secret(tmp_path: Path) -> None:
    with closing(DealerBench(tmp_path)) as bench:
        play = relay_hidden(bench, dealt_order(bench))
        assert not (bench.coordinator.folder / SECRET_FILE).exists()
        frames = [decode(data) for data in play.answered[LEADER]]
        addressed = {party for step in frames if isinstance(step, led.LedStep) for party in step.frames}
        assert HELPER in addressed
        assert DEALER not in addressed


def test_nothing_that_the_coordinator_carries_has_what_the_helper_deals(bench: DealerBench, trained: Play) -> None:
    """The masks of labels follow from a secret of helper and leader; a coordinator that deals has it in its frames."""

    def carried(play: Play) -> list[bytes]:
        return [data for side in (play.asked, play.answered) for some in side.values() for data in some]

    secret = secret_bytes(bench.helper.dealt.entropy(trained.job), "with the leader")
    assert not any(secret in data for data in carried(trained))
    by_coordinator = relay_hidden(bench, hidden_order(bench))
    known = secret_bytes(dealer_entropy(bench.coordinator, by_coordinator.job), "with the leader")
    assert any(known in data for data in carried(by_coordinator))


def test_a_party_leaves_and_the_trees_keep_their_draws(bench: DealerBench) -> None:
    training = dealt_order(bench)
    keep_hidden(bench, training, relay_hidden(bench, training))
    order = dealt_leaving(bench, training.job, THIRD)
    bench.host.check(order, "alice")
    relay_hidden(bench, order)
    tables = {party: held for party, held in hidden_companies().items() if party != THIRD}
    plan = HIDDEN_PLAN
    expected = open_forest(bench.world.root, order.job, plan, tables, drawn_by=training.job, dealer=HELPER)
    assert_same(grown(bench, order.job), expected)


# --- replay, and a dealer that answers twice differently ---


def test_a_helper_that_is_made_again_answers_with_the_same_bytes(bench: DealerBench, trained: Play) -> None:
    again = bench.job(HELPER, trained.job)
    for asked, answered in zip(trained.asked[HELPER], trained.answered[HELPER], strict=True):
        assert encode(again.handle(decode(asked))) == answered


def test_a_helper_that_answers_otherwise_than_before_is_named_by_the_leader(
    bench: DealerBench, trained: Play, tmp_path: Path
) -> None:
    requests = trained.asked[LEADER]
    at = next(k for k, data in enumerate(requests) if isinstance(m := decode(data), led.LeadOn) and HELPER in m.frames)
    message = decode(requests[at])
    assert isinstance(message, led.LeadOn)
    frames = {party: np.array(frame) for party, frame in message.frames.items()}
    frames[HELPER][-1] ^= 1
    with closing(Journal(tmp_path / "journal.sqlite", durable=True)) as journal:
        sessions = Sessions(LEADER, lambda job: bench.job(LEADER, trained.job), journal=journal)
        for number, data in enumerate(requests[: at + 1], 1):
            assert sessions.answer(trained.job, number, data) == trained.answered[LEADER][number - 1]
        again = decode(sessions.answer(trained.job, at + 1, encode(led.LeadOn(frames=frames))))
        assert isinstance(again, Refusal)
        assert "'helper' has answered the same step otherwise before" in again.reason


def test_a_helper_with_another_secret_has_another_key_and_opens_no_frame(tmp_path: Path) -> None:
    """As a helper whose state folder was replaced in the middle of the job."""
    with closing(DealerBench(tmp_path)) as bench:
        play = relay_hidden(bench, dealt_order(bench))
        for name in (SECRET_FILE, f"{SECRET_FILE}.check"):
            (tmp_path / HELPER / "state" / name).unlink()
        other = bench.job(HELPER, play.job)
        opening, meeting, *_ = (decode(data) for data in play.asked[HELPER])
        assert encode(other.handle(opening)) != play.answered[HELPER][0]
        with pytest.raises(RemoteProtocolError):
            other.handle(meeting)


def test_a_restored_helper_deals_other_numbers_for_a_job_that_it_has_forgotten(tmp_path: Path) -> None:
    known, forgotten = "0" * 32, "1" * 32
    before = [DealerBook(tmp_path).entropy(job)("draws") for job in (known, forgotten)]
    Restored(tmp_path).add(tmp_path, Restoration(made=0.0, at=1.0, nonce="ab" * 32, jobs=(known,)))
    after = [DealerBook(tmp_path).entropy(job)("draws") for job in (known, forgotten)]
    assert after[0] == before[0]  # a party can still leave a forest of that training
    assert after[1] != before[1]


def test_a_secret_that_is_missing_is_not_made_again(bench: DealerBench, trained: Play) -> None:
    path = bench.world.root / HELPER / "state" / SECRET_FILE
    data = path.read_bytes()
    path.unlink()
    try:
        with pytest.raises(JournalError, match="is missing"):
            bench.job(HELPER, trained.job).handle(decode(trained.asked[HELPER][0]))
    finally:
        path.write_bytes(data)
        path.chmod(0o600)


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dealer": LEADER}, "not such a helper"),
        ({"dealer": OTHER}, "not such a helper"),
        ({"dealer": "nobody"}, "not such a helper"),
        ({"plan": replace(HIDDEN_PLAN, protection="open"), "server": msgspec.UNSET}, "for protection='hidden' only"),
        ({"led_by": msgspec.UNSET}, "lead='holder'"),
    ],
)
def test_an_order_whose_dealer_cannot_be_is_refused_by_everybody(
    bench: DealerBench, changes: dict[str, Any], words: str
) -> None:
    order = dealt_order(bench, **changes)
    opening = bench.opening(order)
    for name in (OTHER, HELPER):
        with pytest.raises(RemoteProtocolError, match=words):
            bench.job(name, order.job).handle(decode(encode(opening)))


def test_a_party_takes_only_helpers_that_its_policy_lists(tmp_path: Path) -> None:
    with closing(DealerBench(tmp_path)) as bench:
        bench.change_policy(OTHER, helpers=("notary",))
        with pytest.raises(PolicyError, match=r"does not trust 'helper' to deal for hidden trainings.*setting helpers"):
            relay_hidden(bench, dealt_order(bench))


def test_a_helper_deals_for_users_and_orders_that_it_knows(bench: DealerBench, trained: Play) -> None:
    order = dealt_order(bench)
    refused = replace(bench.helper, policy=msgspec.structs.replace(bench.helper.policy, train=("bob",)))
    with closing_policy(bench, refused), pytest.raises(PolicyError):
        bench.job(HELPER, order.job).handle(decode(encode(bench.opening(order))))
    key_service = replace(bench.helper, role="key service")
    with closing_policy(bench, key_service), pytest.raises(PolicyError, match="takes part as such only"):
        bench.job(HELPER, order.job).handle(decode(encode(bench.opening(order))))
    leaving = dealt_leaving(bench, trained.job, THIRD)
    with pytest.raises(PolicyError, match="only the user who has ordered the training"):
        bench.job(HELPER, leaving.job).handle(decode(encode(bench.opening(leaving, "bob"))))
    unknown = dealt_leaving(bench, "0" * 32, THIRD)
    with pytest.raises(DataError, match="has not dealt for this model"):
        bench.job(HELPER, unknown.job).handle(decode(encode(bench.opening(unknown))))


class closing_policy:
    """Have the helper be another one for a while."""

    def __init__(self, bench: DealerBench, home: Any) -> None:
        self._bench, self._home, self._before = bench, home, bench.helper

    def __enter__(self) -> None:
        self._bench.helper = self._home

    def __exit__(self, *error: object) -> None:
        self._bench.helper = self._before


def test_nobody_leaves_with_another_dealer_than_that_of_the_training(bench: DealerBench, trained: Play) -> None:
    order = leaving_order(bench, trained.job, THIRD)  # the coordinator would deal: it does not know the draws
    for host in (bench.host, bench.homes[LEADER].lead):
        assert host is not None
        with pytest.raises(DataError, match="helper has dealt for this forest"):
            host.check(order, "alice")


def dealing(bench: DealerBench, order: TrainOrder) -> HiddenDealing:
    return HiddenDealing(order, DealerSeat(bench.identity, bench.helper.trust, lambda p: p.encode() * 8, False, None))


def test_a_helper_holds_the_leader_to_the_order_once_it_knows_how_many_rows_there_are(bench: DealerBench) -> None:
    order = dealt_order(bench, plan=replace(HIDDEN_PLAN, min_cell="auto"))
    opening = opening_of(order, ROWS)
    for changes in ({"server": THIRD}, {"dealer": DEALER}, {"max_bins": 64}, {"parties": (OTHER, HELPER)}):
        with pytest.raises(RemoteProtocolError, match=r"the order names|does not ask for this"):
            dealing(bench, order).handle(msgspec.structs.replace(opening, **changes))
    dealer = dealing(bench, order)
    dealer.handle(msgspec.structs.replace(opening, min_cell=opening.min_cell + 1))
    start = msg.StartDealer(
        introductions={}, n_rows=ROWS, n_classes=2, n_columns=6, n_draws=ROWS, bits=5, width=9, salt=b"s" * 32
    )
    with pytest.raises(RemoteProtocolError, match="does not ask for this hidden training"):
        dealer.handle(start)  # cells of that size are for another number of rows
    with pytest.raises(RemoteProtocolError, match="StartDealer, or not like this"):
        dealing_after(bench, order, opening).handle(msgspec.structs.replace(start, n_draws=1))


def dealing_after(bench: DealerBench, order: TrainOrder, opening: msg.OpenHidden) -> HiddenDealing:
    dealer = dealing(bench, order)
    dealer.handle(opening)
    return dealer


def test_a_leader_that_tells_the_helper_another_number_of_rows_gets_noise() -> None:
    """What helper and second server derive in common is bound to the number of rows that each of them has."""
    layout = RecordLayout(n_classes=2, width=9, bits=5, n_columns=6)
    here, there = (draw_shares(b"k" * 32, layout, 0, n, b"b" * 32) for n in (ROWS, ROWS - 1))
    assert not (here[: ROWS - 1] == there).any()
