"""What the coordinator does for a job that a party leads: open it, have the rows aligned, and relay.

It is a protocol as any other, so that the coordinator queues, journals, resumes and cancels it as ever. What it carries
between leader and parties it cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.common_rows import CommonRowCounts, find_rows, row_facts
from woodlot.jobs.forget.forget_jobs import successor_of
from woodlot.jobs.forget.forget_orders import ForgetOrder
from woodlot.jobs.kind import Kept
from woodlot.jobs.led import led_messages as led
from woodlot.jobs.led.dealing import DEALER, begin_dealing
from woodlot.jobs.led.led_scores import RelayScorer
from woodlot.jobs.linear.linear_orders import TrainLinearOrder
from woodlot.jobs.orders import AlignedOrder, Order, RevokeOrder, ScoreOrder, TrainOrder
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.runtime.drivers import Handler


def relay_job(
    order: Order, opening: msg.OpenJob, make_dealer: Callable[[int], Handler | None] = lambda n_rows: None
) -> Generator[Round, dict[str, Message], CommonRowCounts | RelayScorer]:
    """Open and align, then carry what the leader asks to the parties, and their answers to the leader.

    A scoring is open then: returned is what carries its batches.

    Parameters
    ----------
    order, opening
        What was ordered, and as parties are brought it.
    make_dealer : callable
        From the number of common rows to what answers requests to the dealer; None: the job has none.

    """
    leader = order.leader
    if leader is None:
        raise RemoteProtocolError("the order names no leader")
    replies = yield Round("open", dict.fromkeys(order.parties, opening))
    opened = {p: reply_of(replies[p], led.LedJobOpened, p) for p in order.parties}
    keys = {p: opened[p].key for p in order.parties}
    rows = CommonRowCounts(0)
    if isinstance(order, AlignedOrder):  # in a scoring the user names rows
        rows = yield from find_rows(order, {p: opened[p].n_aligned for p in order.parties})
    others = [p for p in order.parties if p != leader]
    dealer = make_dealer(rows.n_rows)
    beginning: dict[str, Message] = {
        leader: led.LeadJob(keys=keys, n_rows=rows.n_rows, rows=rows.rows, common=rows.common)
    }
    replies = yield Round("open", beginning | dict.fromkeys(others, led.MeetLeader(keys=keys)))
    for party in others:
        reply_of(replies[party], led.LeaderMet, party)
    step = reply_of(replies[leader], led.LedStep, leader)
    while not step.ended:
        progress = Progress(step.done, step.total, "") if step.total else None
        frames = dict(step.frames)
        while step.more:
            replies = yield Round(step.phase, {leader: led.AskFrames()})
            step = reply_of(replies[leader], led.LedStep, leader)
            frames |= step.frames
        if not set(frames) <= {*others, *(() if dealer is None else (DEALER,))}:
            raise RemoteProtocolError(f"the leader {leader!r} sends frames to others than the parties of the job")
        to_dealer = frames.pop(DEALER, None)
        dealt = None if dealer is None or to_dealer is None else begin_dealing(dealer, to_dealer)
        asked: dict[str, Message] = {p: led.SealedRequest(frame=frame) for p, frame in frames.items()}
        replies = yield Round(step.phase, asked, progress)
        answers = {p: reply_of(replies[p], led.SealedReply, p).frame for p in asked}
        *parts, last = led.in_parts(answers if dealt is None else answers | {DEALER: dealt.result()})
        for part in parts:
            replies = yield Round(step.phase, {leader: led.TakeFrames(frames=part)})
            reply_of(replies[leader], led.FramesTaken, leader)
        replies = yield Round(step.phase, {leader: led.LeadOn(frames=last)})
        step = reply_of(replies[leader], led.LedStep, leader)
    return RelayScorer(order) if isinstance(order, ScoreOrder) else rows


def keep_relayed(kept: Kept, outcome: CommonRowCounts) -> dict[str, Any]:
    """Record that a model exists, or was left, and who keeps it; all else is the leader's."""
    order, store = kept.order, kept.store
    told = row_facts(outcome)
    account: dict[str, Any] = {"disclosure": kept.account["disclosure"], "cost": kept.account["cost"]}
    if isinstance(order, RevokeOrder):
        before = store.model_facts(order.model)
        after = msgspec.structs.replace(
            before, model=order.job, created=kept.facts.created, user=kept.facts.user, parties=order.row_parties,
            epoch=before.epoch + 1, replaced_by="", **account,
        )  # fmt: skip
        store.note_untold(order.job, order.leaver)
        store.keep_led_model(after)
        store.retire_model(order.model, order.job)
        return told | {"model": order.job, "name": after.name}
    if isinstance(order, ForgetOrder):
        before = store.model_facts(order.model)
        after = msgspec.structs.replace(
            successor_of(before, order, kept.facts, kept.account), n_rows=outcome.n_rows, replaced_by=""
        )
        store.keep_led_model(after)
        store.retire_model(order.model, order.job)
        return told | {"model": order.job, "name": after.name}
    if not isinstance(order, TrainOrder | TrainLinearOrder):
        return told | {"model": getattr(order, "model", "")}
    facts = msg.ModelFacts(
        model=order.job,
        name=order.name,
        user=kept.facts.user,
        created=kept.facts.created,
        forest="",
        parties=order.row_parties,
        holder=order.holder,
        n_rows=outcome.n_rows,
        n_trees=0,
        n_nodes=0,
        splits={},
        classes=(),
        complete=False,
        unwilling=(),
        oob_score=None,
        settings=order.settings,
        led_by=order.led_by,
        grown="hidden" if isinstance(order, TrainOrder) and order.is_hidden else msgspec.UNSET,
        dealer=order.dealer if isinstance(order, TrainOrder) else msgspec.UNSET,
        **account,
    )
    store.keep_led_model(facts)
    return told | {"model": order.job, "name": order.name}
