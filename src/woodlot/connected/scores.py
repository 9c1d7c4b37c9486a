"""Online scoring: a forest between organisations answers for a few rows at a time, named by their ids."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError, WoodlotError
from woodlot.jobs.job_messages import JobStatus, ModelFacts
from woodlot.jobs.led.led_messages import SealedScore
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.vertical import score_messages as msg
from woodlot.trees.predict import Vote

if TYPE_CHECKING:
    from woodlot.jobs.led.frame_seal import Seal
    from woodlot.jobs.scores.score_seal import IdSeal
    from woodlot.service.client import Client


def vote_of(model: ModelFacts) -> Vote:
    """How the trees of a forest vote, as its user has chosen when it was trained."""
    chosen = json.loads(model.settings).get("params", {}).get("voting")
    return "majority" if chosen == "majority" else "soft"


class Scoring:
    """A forest that is open for requests. Make one with ``ConnectedFederation.scoring``, and close it.

    May be used by many threads: what they ask at the same time goes to the parties together.

    Attributes
    ----------
    job : str
        Its name at the coordinator, for ``woodlot jobs`` and ``woodlot audit``.
    classes_ : array or None
        The forest's classes; None of a regression.

    """

    def __init__(
        self, client: Client, job: str, facts: ModelFacts, seals: Mapping[str, IdSeal], answers: Seal | None = None
    ) -> None:
        self.job = job
        self._answers = answers  # where a party leads, which seals what it answers
        self.classes_: NDArray[Any] | None = np.array(facts.classes) if facts.classes else None
        self._client = client
        self._seals = dict(seals)
        self._numbers = itertools.count(1)

    def outputs(self, ids: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """What the forest answers, and which answers are uncertain since some party does not have the row.

        Parameters
        ----------
        ids : list, array or column
            Ids of up to 1,000 rows, none twice: whole numbers or text, as in the parties' tables.

        Returns
        -------
        outputs : array of shape (n_rows, n_classes) or (n_rows, 1)
            Probabilities of the classes, or the answer of a regression.
        uncertain : array of bool
            Rows that follow both branches at some party's splits.

        """
        values = canonical_ids(ids, "the list of ids").values
        if not 1 <= len(values) <= msg.MAX_ROWS:
            raise DataError(f"give the ids of 1 to {msg.MAX_ROWS:,} rows, not of {len(values):,}")
        number = next(self._numbers)
        sealed = {party: seal.seal(number, values) for party, seal in self._seals.items()}
        request = msg.AskScore(job=self.job, number=number, n_rows=len(values), sealed=sealed)
        reply = self._ask(request)
        uncertain = unpack(reply.uncertain, len(values), "uncertain rows").astype(bool)
        return np.array(reply.outputs), uncertain

    def _ask(self, request: msg.AskScore) -> msg.Score:
        if self._answers is None:
            return self._client.ask(request, msg.Score)
        sealed = self._client.ask(request, SealedScore).answer
        return self._client.read(self._answers.open(request.number, sealed.data), msg.Score, "the leader")

    def predict_proba(self, ids: Any) -> NDArray[np.float64]:
        """Probabilities of ``classes_``; parameters as for `outputs`."""
        if self.classes_ is None:
            raise DataError("this is a regression, which has no probabilities; use predict")
        return self.outputs(ids)[0]

    def predict(self, ids: Any) -> NDArray[Any]:
        """The most probable class of each row, or its value; parameters as for `outputs`."""
        return self.answers(self.outputs(ids)[0])

    def answers(self, outputs: NDArray[np.float64]) -> NDArray[Any]:
        """The most probable class, or the value, that outputs stand for."""
        return outputs[:, 0] if self.classes_ is None else self.classes_[outputs.argmax(axis=1)]

    def close(self) -> None:
        """End the scoring: parties let go of what they hold for it. Closing one that has ended does nothing."""
        try:
            self._client.ask(msg.CloseScoring(job=self.job), JobStatus)
        except DataError:
            return

    def __enter__(self) -> Scoring:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self.close()
        except WoodlotError:
            if kind is None:
                raise  # else the first error says more
