"""Drift of parties elsewhere: each tells this process alone how far its new rows are from those of a training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from woodlot.connected.explained_rows import ExplainedParts
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.federation import GrownForest
from woodlot.federation.interface import ToldDrift
from woodlot.trees.predict import Vote

if TYPE_CHECKING:
    from woodlot.jobs.drift.drift_orders import DriftOrder
    from woodlot.jobs.job_messages import JobFacts


class DriftedParts(ExplainedParts):
    """Has new rows compared with those of a training."""

    def drift_order(self, model: str, vote: Vote) -> tuple[DriftOrder, dict[str, bytes]]:
        """An order to compare the rows with those of a forest's training; and the key of what each party tells."""
        from woodlot.jobs.drift.drift_orders import DriftOrder
        from woodlot.jobs.evaluate.report_seal import new_report_key

        if not self.client.find_model(model).leader:
            raise DataError(
                "the coordinator runs the jobs of this model (lead='coordinator'); drift is watched by the label "
                "holder: train it with lead='holder', the default"
            )
        keys = {party: new_report_key() for party in self.parties}
        return DriftOrder(**self._drift_fields(model, keys), model=model, vote=vote), keys

    def _drift_fields(self, model: str, keys: dict[str, bytes]) -> dict[str, Any]:
        raise NotImplementedError

    def drift(self, forest: GrownForest, vote: Vote) -> ToldDrift:
        """Have owners compare the rows with those of the forest's training."""
        from woodlot.connected.connected_models import model_of

        self._remember(forest)
        order, keys = self.drift_order(model_of(forest), vote)
        return read_drift(self.run(order), keys)


def read_drift(facts: JobFacts, keys: dict[str, bytes]) -> ToldDrift:
    """Open what parties and the leader have told."""
    from woodlot.jobs.drift.drift_references import AnswersPage, DriftPage
    from woodlot.jobs.evaluate.report_seal import ReportSeal

    def opened(party: str, sealed: str, kind: Any) -> Any:
        return ReportSeal(keys[party], facts.job, party).open(bytes.fromhex(sealed), kind)

    try:
        told = json.loads(facts.told)
        pages = {str(party): opened(party, sealed, DriftPage) for party, sealed in told["pages"].items()}
        answers = opened(facts.leader, told["answers"], AnswersPage)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RemoteProtocolError(f"job {facts.job} has no comparison of rows") from None
    columns: dict[str, float] = {}
    for party, page in pages.items():
        named = {f"{party}.{name}": index for name, index in (page.columns or {}).items()}
        columns |= {party: page.largest} if page.columns is None else named
    n_old, n_new = (max((getattr(page, name) for page in pages.values()), default=0) for name in ("n_old", "n_new"))
    return ToldDrift(columns, answers.indices, answers.classes, n_old, n_new)
