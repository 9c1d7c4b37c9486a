"""Explanations of parties elsewhere: which rows, and what the leader has sealed to this process."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from woodlot.connected.row_parts import RowParts
from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError
from woodlot.federation import GrownForest
from woodlot.federation.interface import OnProgress
from woodlot.protocols.core.message import Progress
from woodlot.protocols.vertical.explain import ExplainedRows
from woodlot.runtime.audit import Account
from woodlot.trees.predict import Vote

if TYPE_CHECKING:
    from woodlot.jobs.explain.explain_orders import ExplainOrder
    from woodlot.jobs.explain.told_explanations import ToldExplanation
    from woodlot.jobs.job_messages import JobFacts, ModelFacts
    from woodlot.service.client import Client


class ExplainedParts(RowParts):
    """Has answers explained: for common rows, or for rows that are named by their ids."""

    client: Client
    _named: tuple[bytes, ...] | None = None
    """Ids of the rows, where they are named."""

    def named_rows(self, ids: Any) -> Self:
        """The rows with these ids, for ``model.explain``; no alignment is needed.

        The ids are sealed to each party: the coordinator learns how many there are. Parties must allow it, with
        "explain" and "score" among the ``protocols`` of their policy, and ``min_rows = 1``.

        Parameters
        ----------
        ids : list, array or column
            Ids of up to 1,000 rows, none twice: whole numbers or text, as in the parties' tables.

        Returns
        -------
        ConnectedFederation
        """
        from woodlot.jobs.explain.explain_orders import MAX_NAMED

        values = canonical_ids(ids, "the list of ids").values
        if not 1 <= len(values) <= MAX_NAMED:
            raise DataError(f"give the ids of 1 to {MAX_NAMED:,} rows, not of {len(values):,}")
        if self._rules:
            raise DataError("this is a part of the rows; name rows of the whole federation")
        named = copy.copy(self)
        named._named, named._alignment = tuple(values), None
        named.ids = np.array(list(ids))
        return named

    def explain_order(self, model: str, vote: Vote) -> tuple[ExplainOrder, bytes]:
        """An order to explain a forest's answers; and the key of what the leader seals to this process."""
        from woodlot.jobs.evaluate.report_seal import new_report_key
        from woodlot.jobs.explain.explain_orders import ExplainOrder

        self._check_explained(self.client.find_model(model))
        key = new_report_key()
        fields = self._explanation_fields(model, key, self._named)
        return ExplainOrder(**fields, model=model, vote=vote, named=self._named is not None), key

    def _check_explained(self, facts: ModelFacts) -> None:
        """Refuse by name a model that is not explained between organisations, before anything is ordered."""
        from woodlot.jobs.explain.explain_jobs import LINEAR, REVOCABLE
        from woodlot.jobs.explain.explain_orders import HIDDEN

        if facts.is_hidden:
            raise DataError(HIDDEN)
        if facts.revocable:
            raise DataError(REVOCABLE)
        if facts.n_trees == 0:
            raise DataError(LINEAR)
        if not facts.leader:
            raise DataError(
                "the coordinator runs the jobs of this model (lead='coordinator'), and would learn from an explanation "
                "which way rows go at every node; train it with lead='holder', the default"
            )

    def _explanation_fields(self, model: str, key: bytes, ids: tuple[bytes, ...] | None) -> dict[str, Any]:
        raise NotImplementedError

    def explain(
        self, forest: GrownForest, vote: Vote, *, n_jobs: int = 1, on_progress: OnProgress = None
    ) -> tuple[ExplainedRows, Account]:
        """Have the leader divide the forest's answers for the rows among parties and columns."""
        from woodlot.connected.connected_models import model_of

        self._remember(forest)
        order, key = self.explain_order(model_of(forest), vote)

        def show(facts: JobFacts) -> None:
            if on_progress is not None and facts.phase:
                on_progress(Progress(facts.done, facts.total, facts.note, facts.phase))

        told, account = self.read_explanation(self.run(order, show), key)
        return told.rows(), account

    def read_explanation(self, facts: JobFacts, key: bytes) -> tuple[ToldExplanation, Account]:
        """Open what the leader of a job has explained."""
        from woodlot.jobs.evaluate.report_seal import ReportSeal
        from woodlot.jobs.explain.told_explanations import ToldExplanation

        sealed = self.client.explanation(facts.job)
        told = ReportSeal(key, facts.job, facts.leader).open(sealed.report.tobytes(), ToldExplanation)
        return told, Account.from_json(sealed.disclosure, sealed.cost)
