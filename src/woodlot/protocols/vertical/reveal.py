"""The complete model at the coordinator: only where every party that splits a node agrees to it."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, codings_of, splitting_parties
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.core.soundness import check_splits
from woodlot.protocols.vertical.forest_messages import RevealSplits, SplitTable
from woodlot.trees.forest import Splits


def reveal_splits(forest: CoordinatorForest) -> Generator[Round, dict[str, Message], dict[str, PartyForest]]:
    """Coordinator: ask every party that splits a node for its splits.

    Begun only when all of them have said that they share the model: a party that does not refuses, and what the
    others have told by then cannot be taken back.
    """
    requests: dict[str, Message] = {party: RevealSplits() for party in splitting_parties(forest)}
    replies = (yield Round("reveal", requests)) if requests else {}
    return {party: _part(reply_of(reply, SplitTable, party), forest, party) for party, reply in replies.items()}


def _part(reply: SplitTable, forest: CoordinatorForest, party: str) -> PartyForest:
    number = forest.parties.index(party)
    if not len(reply.names) == len(set(reply.names)) == len(reply.categories) == (forest.feature_party == number).sum():
        raise RemoteProtocolError(f"{party} revealed {len(reply.names)} columns, which are not those it trained with")
    codings = codings_of(reply.categories)
    splits = Splits(
        node=reply.node.astype(np.int32),
        feature=reply.feature.astype(np.int32),
        threshold=reply.threshold.copy(),
        missing_left=reply.missing_left.astype(np.bool_),
        set_start=reply.set_start.copy(),
        sets=reply.sets.copy(),
    )
    try:
        check_splits(splits, np.flatnonzero(forest.owner == number), codings)
    except ValueError as error:
        raise RemoteProtocolError(f"{party} revealed splits that do not fit the forest: {error}") from None
    return PartyForest(forest.structure, splits, reply.names, codings)
