"""Jobs that a party leads, without a network: what its parties take from whom, and that they can be rebuilt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from led_bench import LEADER, OTHER, RELAY, LedBench, order_of, relay, score_order, score_request
from party_bench import Bench, Play, play
from processes import three_companies
from small_jobs import PARTIES, PLAN

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError, WoodlotError
from woodlot.identity.identity import Trust
from woodlot.jobs import job_messages as msg
from woodlot.jobs.led import led_messages as led
from woodlot.jobs.led.dealing import DEALER
from woodlot.jobs.led.frame_seal import Seal
from woodlot.jobs.led.leader_desk import LeaderDesk
from woodlot.jobs.led.leading import told_apart
from woodlot.jobs.led.led_scores import RelayScorer, answer_seal
from woodlot.jobs.led.question_seal import AskedQuestion, TakenQuestion
from woodlot.jobs.led.relay_jobs import relay_job
from woodlot.jobs.order_seal import common_fields, housekeeping_job
from woodlot.jobs.orders import AlignOrder, Part, PredictOrder, RevokeOrder, TrainOrder
from woodlot.jobs.party_job import PartyJob
from woodlot.protocols.core.message import Message, Refusal
from woodlot.protocols.vertical import forest_messages
from woodlot.protocols.vertical.score_messages import ScoreBatch
from woodlot.runtime.codec import decode, encode


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedBench]:
    with closing(LedBench(tmp_path_factory.mktemp("led"))) as made:
        yield made


@pytest.fixture(scope="module")
def trained(bench: LedBench) -> Play:
    return relay(bench, order_of(bench))


def refuses(job: PartyJob, message: Message, words: str) -> None:
    with pytest.raises((RemoteProtocolError, PolicyError), match=words):
        job.handle(decode(encode(message)))


# --- replay ---


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_that_is_made_again_answers_with_the_same_bytes(bench: LedBench, trained: Play, party: str) -> None:
    again = bench.job(party, trained.job)
    for asked, answered in zip(trained.asked[party], trained.answered[party], strict=True):
        assert encode(again.handle(decode(asked))) == answered


def test_the_outcome_is_that_of_a_coordinator(bench: LedBench, trained: Play) -> None:
    other = play(bench, TrainOrder(**bench.fields(), holder=LEADER, plan=PLAN, settings="{}"))
    assert bench.led[LEADER].model_facts(trained.job).forest == bench.coordinator.model_facts(other.job).forest
    stored = bench.led[LEADER].job(trained.job)
    assert stored is not None
    assert (stored.facts.state, stored.facts.leader) == ("done", LEADER)


@pytest.mark.parametrize("recorded", [True, False], ids=["the end is recorded", "only the outcome is kept"])
def test_a_leader_that_dies_between_the_outcome_and_its_last_reply_ends_the_job(tmp_path: Path, recorded: bool) -> None:
    """What a revocation was made from is gone by then: it cannot be played again."""
    with closing(LedBench(tmp_path)) as bench:
        trained = relay(bench, order_of(bench))
        about = {"model": trained.job, "alignment": trained.job, "leaver": OTHER, "task": "classes", "level": 3}
        parts = bench.fields_of({LEADER: Part(table="customers", label="late")})
        order = RevokeOrder(**parts, **about, led_by=LEADER)
        record = relay(bench, order)
        store = bench.led[LEADER]
        stored = store.job(order.job)
        assert stored is not None
        if not recorded:
            store.update(msgspec.structs.replace(stored.facts, state="running"))
        receipt = store.receipt(order.job)
        again = bench.ended_job(LEADER, order.job)
        opening, leading = map(decode, record.asked[LEADER])
        assert not again.has_done(opening)
        again.handle(opening)
        assert again.has_done(leading)
        assert encode(again.handle(leading)) == record.answered[LEADER][-1]
        stored = store.job(order.job)
        assert stored is not None
        assert stored.facts.state == "done"
        assert store.receipt(order.job) == receipt
        assert store.model_facts(trained.job).replaced_by == order.job


def test_a_leader_that_has_kept_the_outcome_answers_the_last_request_again(bench: LedBench, trained: Play) -> None:
    again = bench.ended_job(LEADER, trained.job)
    for data in trained.asked[LEADER]:
        message = decode(data)
        if not again.has_done(message):  # as sessions do
            again.handle(message)
    assert encode(again.handle(message)) == trained.answered[LEADER][-1]


def test_frames_that_do_not_fit_into_one_message_travel_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(led, "MAX_PART_BYTES", 100)
    with closing(LedBench(tmp_path, three_companies())) as bench:
        record = relay(bench, order_of(bench, club=Part(table="customers")))
        kinds = Counter(type(decode(data)).__name__ for data in record.asked[LEADER])
        assert kinds["AskFrames"] == kinds["TakeFrames"] > 5
        assert bench.led[LEADER].job(record.job) is not None
        again = bench.job(LEADER, record.job)
        for asked, answered in zip(record.asked[LEADER], record.answered[LEADER], strict=True):
            message = decode(asked)
            if isinstance(message, led.AskFrames):
                refuses(again, led.LeadOn(frames={}), "there are more frames")
            elif isinstance(message, led.TakeFrames):
                refuses(again, led.AskFrames(), "there are no more frames")
                refuses(again, led.TakeFrames(frames={"nobody": np.zeros(40, np.uint8)}), "not those of the parties")
            assert encode(again.handle(message)) == answered


# --- what the coordinator may not do ---


@pytest.mark.parametrize("party", PARTIES)
def test_nothing_but_alignment_is_taken_in_the_clear(bench: LedBench, trained: Play, party: str) -> None:
    """At any place of the job a coordinator asks what it would ask if it led."""
    plain = play(bench, TrainOrder(**bench.fields(), holder=LEADER, plan=PLAN, settings="{}"))
    protocol = [decode(data) for data in plain.asked[party]]
    asked = [m for m in protocol if type(m).__module__.endswith(("forest_messages", "job_messages"))]
    asked = [m for m in asked if not isinstance(m, msg.OpenJob)]
    assert {type(m) for m in asked} >= {forest_messages.OpenTraining, forest_messages.GrowLevel, msg.KeepModel}
    job = bench.job(party, trained.job)
    for due, answered in zip(trained.asked[party], trained.answered[party], strict=True):
        if job.state != "new":
            for message in asked:
                refuses(job, message, "in the clear")
        assert encode(job.handle(decode(due))) == answered
    alignment = [m for m in protocol if type(m).__module__.endswith("align_messages")]
    for message in alignment:  # the leader has begun: it is over
        refuses(job, message, "in the clear")


def test_frames_are_taken_once_in_order_from_the_leader_alone(bench: LedBench, trained: Play) -> None:
    asked = [decode(data) for data in trained.asked[OTHER]]
    frames = [m for m in asked if isinstance(m, led.SealedRequest)]
    assert len(frames) > 4
    job = bench.job(OTHER, trained.job)
    for message in asked:
        if message is frames[2]:
            wrong = "is not one that 'bank' has sealed"
            refuses(job, frames[1], wrong)  # again
            refuses(job, frames[3], wrong)  # out of order
            for place in (0, 20, -1):
                changed = frames[2].frame.copy()
                changed[place] ^= 1
                refuses(job, led.SealedRequest(frame=changed), wrong)
            refuses(job, led.SealedRequest(frame=np.zeros(0, np.uint8)), wrong)
            back = decode(trained.answered[OTHER][-1])
            assert isinstance(back, led.SealedReply)
            refuses(job, led.SealedRequest(frame=back.frame), wrong)  # its own
        job.handle(message)


def test_a_leader_takes_answers_of_its_parties_alone(bench: LedBench, trained: Play) -> None:
    asked = [decode(data) for data in trained.asked[LEADER]]
    answers = [m for m in asked if isinstance(m, led.LeadOn)]
    job = bench.job(LEADER, trained.job)
    for message in asked:
        if message is answers[2]:
            refuses(job, answers[1], "is not one that 'shop' has sealed")
            refuses(job, led.LeadOn(frames={}), "not those of the parties that were asked")
            refuses(job, led.LeadOn(frames=answers[2].frames | {"club": np.zeros(40, np.uint8)}), "not those of")
        last = job.handle(message)
    assert isinstance(last, led.LedStep)
    assert last.ended
    refuses(job, answers[-1], "has ended at its leader")


def test_keys_are_those_that_the_parties_have_signed_for_this_order(bench: LedBench, trained: Play) -> None:
    def meeting(play: Play, party: str) -> tuple[list[Message], led.MeetLeader | led.LeadJob]:
        before: list[Message] = []
        for data in play.asked[party]:
            message = decode(data)
            if isinstance(message, led.MeetLeader | led.LeadJob):
                return before, message
            before.append(message)
        raise AssertionError

    another = relay(bench, order_of(bench))
    for party, absent in zip(PARTIES, reversed(PARTIES), strict=True):
        before, message = meeting(trained, party)
        job = bench.job(party, trained.job)
        for due in before:
            job.handle(due)
        stale = meeting(another, party)[1].keys
        own = message.keys[absent]
        forged = led.LedKey(share=own.share[::-1], certificate=own.certificate, signature=own.signature)
        swapped = message.keys | {absent: message.keys[party]}
        for keys in (message.keys | {absent: stale[absent]}, message.keys | {absent: forged}, swapped):
            fields = {"n_rows": 1, "rows": {}, "common": {}} if party == LEADER else {}
            refuses(job, type(message)(keys=keys, **fields), "is not signed by its identity|passed on as from")
        refuses(job, led.MeetLeader(keys={}), "not those of the parties|this party leads")
        # each has its place: the coordinator cannot have another lead
        other = led.LeadJob(keys=message.keys, n_rows=1, rows={}, common={})
        if party == LEADER:
            refuses(job, led.MeetLeader(keys=message.keys), "this party leads the job")
        else:
            refuses(job, other, "names another party as its leader")
        job.handle(message)


# --- orders ---


def test_a_model_is_used_for_its_leader_only(bench: LedBench, trained: Play) -> None:
    for led_by in ({}, {"led_by": OTHER}):
        order = PredictOrder(**bench.fields(), model=trained.job, **led_by)
        with pytest.raises(PolicyError, match="who has led the training"):
            bench.job(OTHER, order.job).handle(bench.opening(order))
    plain = play(bench, TrainOrder(**bench.fields(), holder=LEADER, plan=PLAN, settings="{}"))
    order = PredictOrder(**bench.fields(), model=plain.job, led_by=LEADER)
    with pytest.raises(PolicyError, match="who has led the training"):
        bench.job(OTHER, order.job).handle(bench.opening(order))


def test_a_policy_says_who_may_lead(tmp_path: Path) -> None:
    with closing(LedBench(tmp_path)) as bench:
        led_order = order_of(bench)
        plain = TrainOrder(**bench.fields(), holder=LEADER, plan=PLAN, settings="{}")
        for lead, refused, taken in (("holder", plain, led_order), ("coordinator", led_order, plain)):
            bench.change_policy(OTHER, lead=(lead,))
            with pytest.raises(PolicyError, match="setting lead"):
                bench.job(OTHER, refused.job).handle(bench.opening(refused))
            bench.job(OTHER, taken.job).handle(bench.opening(taken))
            aligned = AlignOrder(**bench.fields())  # of which the coordinator learns sizes only
            bench.job(OTHER, aligned.job).handle(bench.opening(aligned))


def test_the_leader_of_a_training_is_its_label_holder(bench: LedBench) -> None:
    for leader in (OTHER, "club"):
        order = TrainOrder(**bench.fields(), holder=LEADER, plan=PLAN, settings="{}", led_by=leader)
        with pytest.raises(RemoteProtocolError, match="the leader of a training is its label holder"):
            bench.job(OTHER, order.job).handle(bench.opening(order))


def test_kinds_that_no_party_leads_are_refused_by_parties_too(bench: LedBench) -> None:
    order = AlignOrder(**bench.fields(), led_by=LEADER)
    with pytest.raises(PolicyError, match="'align' cannot be led by a party"):
        bench.job(LEADER, order.job).handle(bench.opening(order))


def test_a_party_without_a_place_for_it_cannot_lead(tmp_path: Path) -> None:
    with closing(Bench(tmp_path)) as plain:
        bank, shop = Part(table="customers", label="late", relay=RELAY), Part(table="customers", relay=RELAY)
        order = order_of(plain, bank=bank, shop=shop)
        with pytest.raises(PolicyError, match="cannot lead"):
            plain.job(LEADER, order.job).handle(plain.opening(order))
        assert isinstance(plain.job(OTHER, order.job).handle(plain.opening(order)), led.LedJobOpened)


@pytest.mark.parametrize("relay", [b"short", b""])
def test_a_led_order_has_a_secret_for_its_parties(bench: LedBench, relay: bytes) -> None:
    parts = {p: Part(table="customers", relay=relay or msgspec.UNSET) for p in PARTIES}
    fields = common_fields(parts, {p: bench.homes[p].identity.certificate for p in PARTIES}, **bench.here)
    order = TrainOrder(**fields, holder=LEADER, plan=PLAN, settings="{}", led_by=LEADER)
    refuses(bench.job(OTHER, order.job), bench.opening(order), f"a secret of {len(relay)} bytes for its parties")


def test_no_party_of_a_led_job_is_called_as_leaders_call_the_dealer(bench: LedBench) -> None:
    """What its leader asks it would not be sealed."""
    order = order_of(bench)
    order = msgspec.structs.replace(order, parties=(LEADER, "dealer"), sealed=dict.fromkeys((LEADER, "dealer"), b""))
    with pytest.raises(RemoteProtocolError, match="identity with another name"):
        order.check()


def test_a_leader_names_the_dealer_that_deals_otherwise_than_before() -> None:
    frames = {OTHER: np.arange(3, dtype=np.uint8), DEALER: np.arange(5, dtype=np.uint8)}
    before = led.LeadOn(frames=frames)
    assert "the dealer deals other numbers" in told_apart(
        before, led.LeadOn(frames=frames | {DEALER: np.ones(5, np.uint8)})
    )
    other = frames | {OTHER: np.zeros(3, np.uint8)}
    assert f"{OTHER!r} has answered the same step otherwise" in told_apart(before, led.LeadOn(frames=other))
    for strange in (other | {DEALER: np.ones(5, np.uint8)}, {OTHER: frames[OTHER]}):
        assert told_apart(before, led.LeadOn(frames=strange)) == ""
    assert told_apart(before, led.TakeFrames(frames=frames)) == ""


def test_a_job_that_is_ended_elsewhere_ends_at_its_leader(bench: LedBench) -> None:
    order, done = order_of(bench), relay(bench, order_of(bench)).job
    jobs = {p: bench.job(p, order.job) for p in order.parties}
    protocol = relay_job(order, bench.opening(order))
    step = next(protocol)
    while not any(isinstance(message, led.SealedRequest) for message in step.requests.values()):
        step = protocol.send({p: jobs[p].handle(message) for p, message in step.requests.items()})

    def states() -> list[str]:
        stored = [bench.led[LEADER].job(job) for job in (order.job, done)]
        return [job.facts.state for job in stored if job is not None]

    assert states() == ["running", "done"]
    for job in (order.job, done):
        bench.job(LEADER, housekeeping_job(job)).handle(msg.ForgetJob(job=job))
    assert states() == ["cancelled", "done"]


# --- online scoring ---


def test_a_batch_is_asked_by_the_leader_and_answered_to_the_user(tmp_path: Path) -> None:
    with closing(LedBench(tmp_path)) as bench:
        trained = relay(bench, order_of(bench))
        order, keys = score_order(bench, trained.job)
        record = relay(bench, order)
        scorer = record.outcome
        assert isinstance(scorer, RelayScorer)

        def opened() -> dict[str, PartyJob]:
            """The parties, once they have opened the scoring."""
            made = {p: bench.job(p, order.job) for p in PARTIES}
            for party, asked in record.asked.items():
                for data in asked:
                    made[party].handle(decode(data))
            return made

        jobs, request = opened(), score_request(order, keys, 1)
        protocol, said = scorer.score(1, [request]), []
        step = next(protocol)
        while True:
            said.append(step.requests)
            replies = {p: decode(encode(jobs[p].handle(decode(encode(m))))) for p, m in step.requests.items()}
            try:
                step = protocol.send(replies)
            except StopIteration as end:
                (told,) = end.value
                break
        answer = answer_seal(keys[LEADER], order.job, LEADER).open(1, told.answer.data)
        assert decode(answer).outputs.shape == (5, 2)  # type: ignore[attr-defined]
        with pytest.raises(RemoteProtocolError):
            answer_seal(keys[OTHER], order.job, LEADER).open(1, told.answer.data)

        lead, frame, on = (next(iter(requests.values())) for requests in said)
        assert isinstance(frame, led.ScoreFrame)
        assert isinstance(on, led.ScoreOn)
        # a repeat gets the same; a leader that was started again declines what it has no beginning of
        assert encode(jobs[LEADER].handle(on)) == encode(led.LedScores(answers=(told.answer,)))
        assert encode(jobs[OTHER].handle(frame)) == encode(jobs[OTHER].handle(frame))
        again = opened()
        with pytest.raises(DataError, match="ask again"):
            again[LEADER].handle(on)
        again[LEADER].handle(lead)
        refuses(again[LEADER], led.ScoreOn(batch=1, frames={}), "not those of the parties")
        assert encode(again[LEADER].handle(on)) == encode(led.LedScores(answers=(told.answer,)))
        # nothing else comes in the frame of a batch, nor one of another number
        opening = next(m for m in map(decode, record.asked[OTHER]) if isinstance(m, led.SealedRequest))
        refuses(again[OTHER], led.ScoreFrame(batch=2, frame=frame.frame), "is not one that 'bank' has sealed")
        refuses(again[OTHER], led.ScoreFrame(batch=1, frame=opening.frame), "is not one that 'bank' has sealed")
        refuses(
            again[OTHER],
            ScoreBatch(batch=1, numbers=(1,), n_rows=(5,), sealed=(request.sealed[OTHER],)),
            "in the clear",
        )
        refuses(again[OTHER], lead, "leads no scoring")
        refuses(again[LEADER], frame, "nobody but this party leads")
        with pytest.raises(DataError, match="no ids for bank, shop"):
            again[LEADER].handle(led.LeadScores(batch=3, numbers=(1,), n_rows=(5,), sealed={}))


# --- seals ---


def test_a_seal_opens_what_was_sealed_for_it_and_nothing_else() -> None:
    about = ("0" * 32, "bank", "shop")
    seal = Seal(bytes(32), b"t", about)
    frame = seal.seal(1, b"partition")
    assert frame == Seal(bytes(32), b"t", about).seal(1, b"partition")  # as replay needs
    assert frame[:12] != seal.seal(1, b"Partition")[:12]
    assert frame[:12] != seal.seal(2, b"partition")[:12]
    assert seal.open(1, frame) == b"partition"
    others = [
        Seal(bytes(31) + b"x", b"t", about),
        Seal(bytes(32), b"T", about),
        Seal(bytes(32), b"t", ("1" * 32, "bank", "shop")),
        Seal(bytes(32), b"t", ("0" * 32, "shop", "bank")),
        Seal(bytes(32), b"t", ("0" * 32, "bank", "club")),
    ]
    for other in others:
        with pytest.raises(RemoteProtocolError, match="has sealed for this job"):
            other.open(1, frame)


def test_a_question_is_read_by_its_leader_and_the_answer_by_its_user(bench: LedBench) -> None:
    alice, bank, shop = bench.users["alice"], bench.homes[LEADER], bench.homes[OTHER]
    asked = AskedQuestion(alice, LEADER, bank.identity.certificate, b"which model?")
    assert b"which model?" not in asked.sealed
    taken = TakenQuestion(bank.identity, bank.trust, asked.sealed)
    assert (taken.user, taken.request) == ("alice", b"which model?")
    answer = taken.seal(b"this one")
    assert asked.open(answer) == b"this one"
    with pytest.raises(RemoteProtocolError, match="can open"):
        TakenQuestion(shop.identity, shop.trust, asked.sealed)
    with pytest.raises(RemoteProtocolError, match="has sealed"):
        AskedQuestion(alice, LEADER, bank.identity.certificate, b"which model?").open(answer)


def desk_of(bench: LedBench, trust: Trust | None = None) -> LeaderDesk:
    """Where the bank answers users."""
    bank = bench.homes[LEADER]
    return LeaderDesk(bank.identity, trust or bank.trust, bank.policy, bench.led[LEADER], 1 << 24)


def asked_by(bench: LedBench, user: str, request: Message, desk: LeaderDesk) -> Message:
    """What the bank answers a user."""
    certificate = bench.homes[LEADER].identity.certificate
    question = AskedQuestion(bench.users[user], LEADER, certificate, encode(request))
    reply = decode(desk.answer(encode(led.LeaderQuestion(question=question.sealed))))
    return decode(question.open(reply.answer.tobytes())) if isinstance(reply, led.LeaderAnswer) else reply


def test_a_model_is_shown_to_its_user_and_to_whom_the_leader_lets_use_it(bench: LedBench, trained: Play) -> None:
    former, request = bench.homes[LEADER].policy, msg.FindModel(name=trained.job)
    try:
        for train, predict, told in (((), ("bob",), True), (("bob",), (), True), (("alice",), ("alice",), False)):
            bench.change_policy(LEADER, train=train, predict=predict)
            assert isinstance(asked_by(bench, "alice", request, desk_of(bench)), msg.ModelList)
            reply = asked_by(bench, "bob", request, desk_of(bench))
            assert isinstance(reply, msg.ModelList) is told
        assert isinstance(reply, msg.Declined)
        assert (reply.kind, "setting predict" in reply.reason) == ("policy", True)
    finally:
        bench.change_policy(LEADER, train=former.train, predict=former.predict)


def test_no_question_is_answered_without_a_good_list_of_revocations(bench: LedBench, trained: Play) -> None:
    """As no order is taken then: the user may have been revoked since."""
    desk = desk_of(bench, Trust(bench.homes[LEADER].identity.authority, None))
    assert isinstance(asked_by(bench, "alice", msg.AskModel(model=trained.job), desk), Refusal)
    assert isinstance(asked_by(bench, "alice", msg.AskModel(model=trained.job), desk_of(bench)), msg.ModelPart)


def test_a_part_of_a_led_model_is_never_kept_without_its_leader(
    bench: LedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever write fails: the coordinator could have it used in the clear."""
    real, folders = Path.write_bytes, []

    def fail(path: Path, data: bytes) -> int:
        if path.name == "leader":
            folders.append(path.parent)
            raise OSError("the disk is full")
        return real(path, data)

    order = order_of(bench)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", fail)
        with pytest.raises(WoodlotError):
            relay(bench, order)
    assert folders
    assert all(home.store.has_no_part(order.job) for home in bench.homes.values())


def test_only_users_ask(bench: LedBench) -> None:
    bank = bench.homes[LEADER]
    desk = desk_of(bench)
    pretender = AskedQuestion(bench.identity, LEADER, bank.identity.certificate, b"which model?")
    for question in (pretender.sealed, b"", bytes(200)):
        reply = decode(desk.answer(encode(led.LeaderQuestion(question=question))))
        assert isinstance(reply, Refusal)
    assert isinstance(decode(desk.answer(encode(msg.ForgetJob(job="x")))), Refusal)
    good = AskedQuestion(bench.users["alice"], LEADER, bank.identity.certificate, encode(msg.AskModel(model="x")))
    reply = decode(desk.answer(encode(led.LeaderQuestion(question=good.sealed))))
    assert isinstance(reply, led.LeaderAnswer)
    declined = decode(good.open(reply.answer.tobytes()))
    assert isinstance(declined, msg.Declined)
