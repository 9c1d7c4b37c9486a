"""Explanations and drift that the dashboard's user has ordered, in the background; they stay in this process."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from woodlot.connected import ConnectedFederation
from woodlot.connected.drifted_rows import read_drift
from woodlot.connected.scores import vote_of
from woodlot.dashboard.waterfall import Fall, falls
from woodlot.estimators.explaining import explanation_of
from woodlot.estimators.input_tables import class_array
from woodlot.evaluation.drift import Drift, told_drift
from woodlot.exceptions import DataError, WoodlotError
from woodlot.jobs.job_messages import ModelFacts
from woodlot.service.client import Client

ROWS_SHOWN = 10
"""Rows whose answers are divided on one page."""
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")


@dataclass
class Ordered:
    """What the dashboard's user has ordered, and how it stands."""

    state: Literal["running", "done", "failed"] = "running"
    error: str = ""
    job: str = ""


@dataclass
class Explained(Ordered):
    """Answers that were divided among parties and columns."""

    falls: list[Fall] = field(default_factory=list)
    n_rows: int = 0
    importance: dict[str, float] = field(default_factory=dict)
    by_party: dict[str, float] = field(default_factory=dict)


@dataclass
class Watched(Ordered):
    """New rows that were compared with those of the training."""

    drift: Drift | None = None


class Watching:
    """Orders explanations and comparisons of rows.

    Parameters
    ----------
    client : callable
        Gives a connection of the dashboard's user.
    """

    def __init__(self, client: Callable[[], Client]) -> None:
        self._client = client
        self.explained: dict[str, Explained] = {}
        self.watched: dict[str, Watched] = {}

    def explain(self, model: str, tables: Mapping[str, str], ids: str, as_text: bool) -> Explained:
        """Begin to have the leader divide the answers for some rows, or for all common rows.

        Parameters
        ----------
        model : str
            The forest.
        tables : mapping of str to str
            By party its table.
        ids : str
            Ids of rows, between commas or blanks; empty: all common rows.
        as_text : bool
            Whether ids that look like numbers are text.
        """
        if model in self.explained and self.explained[model].state == "running":
            raise DataError("answers of this model are being explained already; wait until that is done")
        found = self.explained[model] = Explained()
        in_background(found, lambda: self._explain(model, tables, read_ids(ids, as_text), found))
        return found

    def _explain(self, model: str, tables: Mapping[str, str], ids: list[Any], found: Explained) -> None:
        with self._client() as client:
            facts = client.find_model(model)
            federation = ConnectedFederation(client, tables, "keyed-hash", "inner")
            if ids:
                federation = federation.named_rows(ids)
            order, key = federation.explain_order(model, vote_of(facts))
            told, _ = federation.read_explanation(federation.run(order), key)
        classes = class_array(told.classes) if told.classes else None
        explanation = explanation_of(told.rows(), classes, federation)
        found.job, found.n_rows = order.job, len(explanation)
        found.falls = falls(explanation, ROWS_SHOWN if ids else 0)
        found.importance, found.by_party = explanation.importance(), explanation.by_party().importance()

    def watch(self, model: str, tables: Mapping[str, str]) -> Watched:
        """Begin to have owners compare the rows of some tables with those of a training."""
        if model in self.watched and self.watched[model].state == "running":
            raise DataError("rows are being compared already; wait until that is done")
        found = self.watched[model] = Watched()
        in_background(found, lambda: self._watch(model, tables, found))
        return found

    def _watch(self, model: str, tables: Mapping[str, str], found: Watched) -> None:
        with self._client() as client:
            facts = client.find_model(model)
            federation = ConnectedFederation(client, tables, "keyed-hash", "inner")
            order, keys = federation.drift_order(model, vote_of(facts))
            told = read_drift(federation.run(order), keys)
        found.job, found.drift = order.job, told_drift(told)


def in_background(found: Ordered, work: Callable[[], None]) -> None:
    """Do some work in a thread, and note how it has ended."""

    def run() -> None:
        try:
            work()
            found.state = "done"
        except (WoodlotError, ValueError) as error:
            found.error, found.state = str(error), "failed"

    threading.Thread(target=run, daemon=True).start()


def read_ids(text: str, as_text: bool) -> list[Any]:
    """Ids as a person has typed them: whole numbers, unless one is not or they are to be text."""
    words = [word for word in re.split(r"[,;\s]+", text) if word]
    return [int(word) for word in words] if not as_text and all(map(_WHOLE.fullmatch, words)) else words


def why_not(facts: ModelFacts) -> str:
    """Why answers of a model are not explained between organisations; empty where they are."""
    if facts.layout == "rows":
        return "Every party has this whole model, and explains its own rows: model.explain(table)."
    if facts.is_hidden:
        return "An explanation tells the way of rows, which a hidden forest does not."
    if facts.revocable:
        return "Revocable forests are not explained between organisations."
    if facts.is_linear:
        return "Linear models are not explained between organisations: their weights stay with the parties."
    if not facts.leader:
        return (
            "The coordinator runs the jobs of this model and would learn which way rows go. Train with lead='holder', "
            "the default."
        )
    return ""
