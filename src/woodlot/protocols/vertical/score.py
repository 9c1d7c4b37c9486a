"""Online scoring at the coordinator: the requests that wait are asked of all parties in one round.

Who splits nodes is asked; the ids are sealed to each of them by the user, and a party that lacks a row says so. The
answers are those of a prediction in one round, bit for bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.core.forest_parts import CoordinatorForest, splitting_parties
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.vertical import score_messages as msg
from woodlot.protocols.vertical.predict import read_answers
from woodlot.trees.collect import Collector
from woodlot.trees.predict import Vote

Scored = tuple[NDArray[np.float64], NDArray[np.bool_]]


class Scorer:
    """A forest that is ready to score, batch after batch.

    Parameters
    ----------
    forest : CoordinatorForest
        The coordinator's part.
    present : sequence of str
        Parties that can be asked. Rows follow both branches at the nodes of the others, and are uncertain.
    vote : {"soft", "majority"}
        What a tree answers.

    """

    def __init__(self, forest: CoordinatorForest, present: Sequence[str], vote: Vote) -> None:
        self.asked = tuple(p for p in splitting_parties(forest) if p in present)
        self._forest = forest
        self._vote: Vote = vote
        self._collector = Collector(forest.structure, forest.owner, forest.leaves, len(forest.parties))

    def score(self, batch: int, requests: Sequence[msg.AskScore]) -> Generator[Round, dict[str, Message], list[Scored]]:
        """Ask for some requests at once; returns outputs and which rows are uncertain, for each of them.

        Parameters
        ----------
        batch : int
            Above those of all batches before.
        requests : sequence of AskScore
            They have a seal for each of `asked`.

        """
        sizes = tuple(request.n_rows for request in requests)
        numbers = tuple(request.number for request in requests)
        asked: dict[str, Message] = {
            party: msg.ScoreBatch(
                batch=batch, numbers=numbers, n_rows=sizes, sealed=tuple(request.sealed[party] for request in requests)
            )
            for party in self.asked
        }
        answers = (yield Round("score", asked)) if asked else {}
        n_rows = sum(sizes)
        replies, known = read_answers(answers, self._forest, n_rows)
        outputs, uncertain = self._collector.outputs(replies, known, n_rows, self._vote, 1)
        cuts = np.cumsum(sizes)[:-1]
        return list(zip(np.split(outputs, cuts), np.split(uncertain, cuts), strict=True))
