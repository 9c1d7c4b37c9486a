"""The coordinator where labels are encrypted: it passes envelopes on that it cannot open.

A level takes five rounds; the last of them, and everything else, is as with shared labels::

    round 1   label holder           splits of the level above; its own offers, and which nodes can be split
    round 2   every other party      splits of the level above; sums of its splits, in an envelope for the label holder
    round 3   label holder           the envelopes; each party's best score at every node, and which splits reach it
    round 4   parties that may win   which of their splits are best; they settle on one, and tell its feature
    round 5   winners                at which nodes their split was the best of all; one bit per row

See docs/protocol/encrypted-labels.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.bits import smallest_unsigned
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.vertical.blind_messages import (
    BlindSums,
    EncryptedLabels,
    GrowBlind,
    PlantBlind,
    ResolvedTies,
    ResolveTies,
    ScoreSums,
    StartBlind,
    SumScores,
    TakeLabels,
)
from woodlot.protocols.vertical.forest_messages import GrowLevel, HolderOffers, Offers, PlantTrees
from woodlot.protocols.vertical.start import blind_start, encrypt_message

Replies: TypeAlias = Generator[Round, dict[str, Message], dict[str, Message]]

CANDIDATE = 1
"""A party's splits at a node are by candidate features."""


def encrypt_labels(
    plan: ForestPlan, n_rows: int, active: tuple[str, ...], holder: str
) -> Generator[Round, dict[str, Message], tuple[EncryptedLabels, StartBlind]]:
    """The others get the labels encrypted, under a key that only the label holder has."""
    others = [p for p in active if p != holder]
    ask = encrypt_message(plan, others=bool(others))
    answer = reply_of((yield Round("encrypt", {holder: ask}))[holder], EncryptedLabels, holder)
    start = blind_start(plan, n_rows, answer)
    if others:
        take = TakeLabels(
            modulus=answer.modulus,
            noise=answer.noise,
            ciphertexts=answer.ciphertexts,
            n_parts=answer.n_parts,
            value_bits=answer.value_bits,
            certificate=answer.certificate,
            signature=answer.signature,
        )
        yield Round("encrypt", dict.fromkeys(others, take))
    yield Round("prepare", dict.fromkeys(active, start))
    return answer, start


def ask_blindly(
    requests: dict[str, Message],
    holder: str,
    own_best: Callable[[HolderOffers], NDArray[np.float64]],
    progress: Progress,
) -> Replies:
    """Everybody's offers at the new nodes, as if each had judged its splits by itself.

    Parameters
    ----------
    requests : dict of str to PlantTrees or GrowLevel
        What each party would be asked if it had labels.
    holder : str
        The label holder.
    own_best : callable
        The label holder's score at every open node, -inf where it has no candidate; refuses offers that do not fit.
    progress : Progress
        How far the trees are.
    """
    replies = yield Round("grow", {holder: requests[holder]}, progress)
    offers = reply_of(replies[holder], HolderOffers, holder)
    best = own_best(offers)
    n_open = len(best)
    asked = {p: _without_labels(request, offers.is_open) for p, request in requests.items() if p != holder}
    replies = yield Round("sum", asked, progress)
    sums = {p: reply_of(reply, BlindSums, p) for p, reply in replies.items()}
    for p, told in sums.items():
        if len(told.kind) != n_open:
            raise RemoteProtocolError(f"{p} sent {len(told.kind)} marks for {n_open} open nodes")
    found: dict[str, Message] = {holder: offers}
    if n_open == 0:
        nothing = Offers(score=np.empty(0), feature=np.empty(0, np.uint8))
        return found | dict.fromkeys(sums, nothing)
    ask = ScoreSums(envelopes={p: told.envelope for p, told in sums.items()})
    scored = reply_of((yield Round("score", {holder: ask}, progress))[holder], SumScores, holder)
    _check_scores(scored, list(sums), n_open, holder)
    ties = _ties_to_resolve(sums, scored, best)
    resolve: dict[str, Message] = {
        p: ResolveTies(n_ties=smallest_unsigned(number), ties=smallest_unsigned(places))
        for p, (number, places) in ties.items()
        if number.any()
    }
    answers = (yield Round("score", resolve, progress)) if resolve else {}
    for p in sums:
        feature: NDArray[Any] = np.zeros(n_open, np.uint8)
        if p in answers:
            feature = reply_of(answers[p], ResolvedTies, p).feature
            if len(feature) != n_open or not np.array_equal(feature > 0, ties[p][0] > 0):
                raise RemoteProtocolError(f"{p} did not settle on one split of each node that it was asked for")
        found[p] = Offers(score=scored.score[p], feature=feature)
    return found


def _without_labels(request: Message, is_open: NDArray[np.uint8]) -> Message:
    match request:
        case PlantTrees(first_tree=first, n_trees=n, candidates=candidates):
            return PlantBlind(first_tree=first, n_trees=n, candidates=candidates, is_open=is_open)
        case GrowLevel(is_split=is_split, flags=flags, candidates=candidates):
            return GrowBlind(is_split=is_split, flags=flags, candidates=candidates, is_open=is_open)
    raise LocalProtocolError(f"{type(request).__name__} cannot be asked of a party without labels")


def _check_scores(scored: SumScores, others: list[str], n_open: int, holder: str) -> None:
    if not set(scored.score) == set(scored.n_ties) == set(scored.ties) == set(others):
        raise RemoteProtocolError(f"{holder} did not score the sums of every other party")
    for p in others:
        if len(scored.score[p]) != n_open or len(scored.n_ties[p]) != n_open:
            raise RemoteProtocolError(f"{holder} sent scores of {p} for another number of open nodes")
        if int(scored.n_ties[p].sum()) != len(scored.ties[p]):
            raise RemoteProtocolError(f"{holder} sent ties of {p} that do not fit their numbers")


def _ties_to_resolve(
    sums: dict[str, BlindSums], scored: SumScores, best: NDArray[np.float64]
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Which parties may win a node: those with the best score of all candidates; where there is none, all.

    The others are not told which of their splits was best.
    """
    for p, told in sums.items():
        best = np.maximum(best, np.where(told.kind == CANDIDATE, scored.score[p], -np.inf))
    found = {}
    for p, told in sums.items():
        number = scored.n_ties[p].astype(np.int64)
        asked = np.where(told.kind == CANDIDATE, scored.score[p] == best, best == -np.inf) & (number > 0)
        keep = np.repeat(asked, number)
        found[p] = np.where(asked, number, 0), scored.ties[p].astype(np.int64)[keep]
    return found
