"""The card of a model that is kept elsewhere, from what its keeper tells users of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from woodlot.evaluation.cards import (
    CardSection,
    ModelCard,
    disclosure_section,
    privacy_section,
    receipts_section,
    report_section,
)
from woodlot.exceptions import DataError
from woodlot.privacy.claims import PrivacyClaim
from woodlot.runtime.audit import Account

if TYPE_CHECKING:
    from woodlot.identity.receipts import Receipt
    from woodlot.jobs.job_messages import ModelFacts


def card_of_facts(
    facts: ModelFacts,
    reports: Sequence[Mapping[str, Any]] = (),
    receipts: Sequence[Receipt] = (),
    *,
    name: str = "",
    purpose: str = "",
) -> ModelCard:
    """Write the card of a model that is kept elsewhere.

    Parameters
    ----------
    facts : ModelFacts
        What the keeper of the model tells of it.
    reports : sequence of mapping
        Reports of evaluations, as ``EvaluationReport.to_dict`` writes them.
    receipts : sequence of Receipt
        Of parties that have left it.
    name, purpose : str
        As for ``Carded.card``.
    """
    claim = json.loads(facts.privacy)
    sections = [
        _data(facts, purpose),
        _settings(facts),
        *_scores(facts, reports),
        disclosure_section(Account.from_json(facts.disclosure, facts.cost).disclosure),
        privacy_section(None if claim is None else PrivacyClaim.from_dict(claim)),
        receipts_section(receipts),
    ]
    title = name or facts.name or f"Model {facts.model}"
    return ModelCard(title, tuple(section for section in sections if section is not None))


def _data(facts: ModelFacts, purpose: str) -> CardSection:
    ordered = datetime.fromtimestamp(facts.created, UTC)
    found = {
        "model": facts.model,
        "ordered": f"{ordered:%Y-%m-%d} by {facts.user}",
        "labels at": facts.holder or "every party",
        "classes": ", ".join(str(label) for label in facts.classes),
        "training rows": f"{facts.n_rows:,}" if facts.n_rows else "not told",
        "trees": f"{facts.n_trees:,}, with {facts.n_nodes:,} nodes" if facts.n_trees else "",
        "led by": facts.leader or "the coordinator",
        "protection": "hidden: grown on secret shares" if facts.is_hidden else "",
        "left since": f"{facts.epoch} part{'y' if facts.epoch == 1 else 'ies'}" if facts.epoch else "",
        "replaced by": facts.replaced_by,
    }
    found |= {f"party {party}": _splits(facts.splits.get(party)) for party in facts.parties}
    return CardSection("Data", ("", ""), tuple((key, value) for key, value in found.items() if value), purpose)


def _splits(n: int | None) -> str:
    return "takes part" if n is None else f"{n:,} split{'' if n == 1 else 's'}"


def _settings(facts: ModelFacts) -> CardSection:
    settings = json.loads(facts.settings)
    params = settings.get("params", {})
    lines = tuple((name, json.dumps(params[name])) for name in sorted(params))
    text = "" if lines else "The order of this model names none."
    return CardSection(f"Settings of {settings.get('estimator', 'the model')}", ("parameter", "value"), lines, text)


def _scores(facts: ModelFacts, reports: Sequence[Mapping[str, Any]]) -> list[CardSection]:
    found = []
    if facts.oob_score is not None:
        score = ("out-of-bag score", f"{facts.oob_score:.4f}")
        found.append(CardSection("Scores out of bag", ("metric", "value"), (score,)))
    try:
        found += [report_section(report) for report in reports]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"a report is not one that evaluate has written: {type(error).__name__} {error}") from None
    return found or [CardSection("Scores", text="None were given: evaluate held-out rows, and give the report.")]
