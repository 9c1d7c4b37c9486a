"""A model card: what a model is, what it was grown on, how good it is, and who saw what; in Markdown and HTML."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from woodlot.data.markup import html_table
from woodlot.evaluation.reports import EvaluationReport
from woodlot.exceptions import DataError
from woodlot.identity.receipts import Receipt
from woodlot.privacy.claims import PrivacyClaim
from woodlot.runtime.audit import Disclosures


@dataclass(frozen=True)
class CardSection:
    """One section of a card: a title, perhaps a sentence, and a table."""

    title: str
    headings: tuple[str, ...] = ()
    lines: tuple[tuple[str, ...], ...] = ()
    text: str = ""


@dataclass(frozen=True, repr=False)
class ModelCard:
    """A model card.

    Attributes
    ----------
    title : str
        What the model is.
    sections : tuple of CardSection
        What is known of it.
    """

    title: str
    sections: tuple[CardSection, ...]

    def to_markdown(self) -> str:
        """The card in Markdown. Names and values are escaped: none of them becomes markup."""
        parts = [f"# {_escaped(self.title)}"]
        for section in self.sections:
            parts.append(f"## {_escaped(section.title)}")
            if section.text:
                parts.append(_escaped(section.text))
            if section.lines:
                headings = section.headings or ("",) * len(section.lines[0])
                rows = [headings, ("---",) * len(headings), *([_escaped(c) for c in line] for line in section.lines)]
                parts.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
        return "\n\n".join(parts) + "\n"

    def to_html(self) -> str:
        """The card in HTML, every name and value escaped."""
        parts = [f"<h1>{html.escape(self.title)}</h1>"]
        for section in self.sections:
            parts.append(f"<h2>{html.escape(section.title)}</h2>")
            if section.text:
                parts.append(f"<p>{html.escape(section.text)}</p>")
            if section.lines:
                parts.append(html_table(section.headings, section.lines))
        return "\n".join(parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the card to a file: HTML if its name ends in .html, else Markdown."""
        target = Path(path)
        target.write_text(self.to_html() if target.suffix == ".html" else self.to_markdown(), encoding="utf-8")

    def __repr__(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return self.to_html()


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    plain = " ".join(str(text).split())
    for letter in "\\`*_{}[]<>|#":
        plain = plain.replace(letter, f"\\{letter}")
    return plain


class Carded:
    """A model that can write its card."""

    def card(self, *reports: EvaluationReport, name: str | None = None, purpose: str = "") -> ModelCard:
        """Write a model card: data, settings, scores, disclosure, privacy budget, and receipts.

        Parameters
        ----------
        *reports : EvaluationReport
            What ``evaluate`` has found on held-out rows; each becomes a section.
        name : str, optional
            What the model is called.
        purpose : str
            What it is for, in the author's words.

        Returns
        -------
        ModelCard
            Shown in notebooks; ``to_markdown()``, ``to_html()`` and ``save(path)``.
        """
        check_is_fitted(self)
        for report in reports:
            if not isinstance(report, EvaluationReport):
                raise DataError(f"give reports that evaluate has made, not a {type(report).__name__}")
        sections = [
            _data(self, purpose),
            _settings(self),
            *(_scores(self, reports)),
            _disclosure(self),
            _privacy(self),
            _receipts(self),
        ]
        return ModelCard(name or type(self).__name__, tuple(s for s in sections if s is not None))


def _data(model: Any, purpose: str) -> CardSection:
    origin, forest = getattr(model, "_origin", None), getattr(model, "forest_", None)
    facts: dict[str, str] = {}
    if origin is not None and origin.label:
        facts["labels"] = str(origin.label)
    if hasattr(model, "classes_"):
        facts["classes"] = ", ".join(str(label) for label in model.classes_)
    if forest is not None:
        part = forest.coordinator
        facts["training rows"] = f"{part.n_rows:,}" if part.n_rows else "not told"
        facts["trees"] = f"{part.structure.n_trees:,}, with {part.structure.n_nodes:,} nodes"
        by_party = np.bincount(part.feature_party, minlength=len(part.parties))
        for party, n in zip(part.parties, by_party.tolist(), strict=True):
            facts[f"party {party}"] = f"{n} column{'' if n == 1 else 's'}" if n else "takes part"
        for party, n in part.left_at.items():
            facts[f"client {party}"] = f"dropped out after {n} trees or levels"
        if forest.model is not None:  # its parts are kept elsewhere
            facts["model"] = str(forest.model)
            facts["led by"] = forest.leader or "the coordinator"
        if forest.epoch:
            facts["left since"] = f"{forest.epoch} part{'y' if forest.epoch == 1 else 'ies'}"
    elif hasattr(model, "n_features_in_"):
        facts["columns"] = str(model.n_features_in_)
    return CardSection("Data", ("", ""), tuple(facts.items()), purpose)


def _settings(model: Any) -> CardSection:
    params: Mapping[str, Any] = model.get_params(deep=False)
    lines = tuple((name, repr(params[name])) for name in sorted(params))
    return CardSection(f"Settings of {type(model).__name__}", ("parameter", "value"), lines)


def _scores(model: Any, reports: Sequence[EvaluationReport]) -> list[CardSection]:
    found = []
    if hasattr(model, "oob_score_"):
        score = ("out-of-bag score", f"{model.oob_score_:.4f}")
        found.append(CardSection("Scores out of bag", ("metric", "value"), (score,)))
    found += [report_section(report.to_dict()) for report in reports]
    return found or [CardSection("Scores", text="None were given: evaluate held-out rows and write card(report).")]


def report_section(told: Mapping[str, Any]) -> CardSection:
    """The scores of a report, given as its `to_dict`."""
    lines = tuple(
        (name, "-" if value is None else f"{value:.4f}", _ends(told["intervals"].get(name)))
        for name, value in told["metrics"].items()
    )
    headings = ("metric", "value", f"{told['confidence']:.0%} interval")
    seen = told["training_rows"]
    text = f"{seen} were in the training: these scores say little." if seen else ""
    return CardSection(f"Scores on {told['n_rows']:,} rows", headings, lines, text)


def _ends(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"


def _disclosure(model: Any) -> CardSection | None:
    told = getattr(model, "disclosure_", None)
    return None if told is None else disclosure_section(told)


def disclosure_section(told: Disclosures) -> CardSection:
    """Who was sent what."""
    lines = tuple((row.sender, row.receiver, row.kind, str(row.count), row.form, row.reveals) for row in told)
    headings = ("from", "to", "message", "times", "form", "what it tells")
    return CardSection("Who saw what in the training", headings, lines, "" if lines else "Nothing was disclosed.")


def _privacy(model: Any) -> CardSection:
    return privacy_section(getattr(model, "privacy_", None))


def privacy_section(claim: PrivacyClaim | None) -> CardSection:
    """What a model may claim of differential privacy."""
    if claim is None:
        return CardSection("Privacy budget", text="This training has no guarantee of differential privacy.")
    lines = tuple(("not protected", what) for what in claim.not_protected)
    return CardSection("Privacy budget", ("", "") if lines else (), lines, claim.in_words)


def _receipts(model: Any) -> CardSection | None:
    return receipts_section(getattr(model, "receipts_", ()))


def receipts_section(receipts: Sequence[Receipt]) -> CardSection | None:
    """The parties that have left; None where none has."""
    if not receipts:
        return None
    lines = tuple((str(number + 1), " ".join(repr(receipt).split())) for number, receipt in enumerate(receipts))
    return CardSection("Receipts of parties that have left", ("", "receipt"), lines)
