"""Have a kept model evaluated by the parties that have labels, for the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from woodlot.connected.connected_rows import ConnectedRowFederation, read_rows_report
from woodlot.connected.federation import ConnectedFederation
from woodlot.connected.row_parts import read_report
from woodlot.connected.scores import vote_of
from woodlot.evaluation.reports import EvaluationReport
from woodlot.evaluation.told_reports import told_report
from woodlot.jobs.job_messages import JobFacts, ModelFacts
from woodlot.jobs.orders import Order
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import Summary
from woodlot.service.client import Client

AnyConnected = ConnectedFederation | ConnectedRowFederation
Run = Callable[[AnyConnected, Order], JobFacts]
"""Runs an order to its end."""


@dataclass(frozen=True)
class HeldOut:
    """The rows that a training with the same share and seed has held out."""

    share: float
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Asked:
    """What is evaluated, and how.

    Attributes
    ----------
    model : ModelFacts
        The model.
    tables : mapping of str to str
        By party its table.
    label : str
        ``party.column``, or over rows the name of the column.
    held_out : HeldOut or None
        Which rows; None: all.
    resampling : Resampling
        How confidence intervals are found.
    how : {"one-round", "sealed"}
        How forests over columns are asked.
    align : {"keyed-hash", "psi"}
        How common rows are found.
    lead : str or None
        See `woodlot.connect`.
    allow_two : bool
        Over rows: let sums be of two parties.
    """

    model: ModelFacts
    tables: Mapping[str, str]
    label: str
    held_out: HeldOut | None = None
    resampling: Resampling = field(default_factory=Resampling)
    how: Literal["one-round", "sealed"] = "one-round"
    align: str = "keyed-hash"
    lead: Literal["holder", "coordinator"] | None = None
    allow_two: bool = False


def ordered_report(client: Client, asked: Asked, run: Run) -> tuple[str, EvaluationReport]:
    """Order an evaluation and read its report, which is sealed to this user; returns the job, too."""
    rows = asked.model.layout == "rows"
    order, summary = (_over_rows if rows else _over_columns)(client, asked, run)
    return order.job, told_report(summary, asked.resampling, _seen(summary, asked.held_out))


def _over_rows(client: Client, asked: Asked, run: Run) -> tuple[Order, Summary]:
    part = ConnectedRowFederation(client, asked.tables)
    if asked.held_out is not None:
        part = part.split(asked.held_out.share, seed=asked.held_out.seed)[1]
    order, keys = part.evaluate_rows_order(asked.model, asked.label, asked.resampling, allow_two=asked.allow_two)
    return order, read_rows_report(run(part, order), keys, asked.model.classes, asked.resampling)


def _over_columns(client: Client, asked: Asked, run: Run) -> tuple[Order, Summary]:
    part = ConnectedFederation(client, asked.tables, asked.align, "inner", lead=asked.lead)
    if asked.held_out is not None:
        part = part.split(asked.held_out.share, seed=asked.held_out.seed)[1]
    linear = asked.model.is_linear
    options: dict[str, Any] = {} if linear else {"vote": vote_of(asked.model), "how": asked.how}
    order, key = part.evaluate_order(asked.model.model, asked.label, asked.resampling, linear=linear, **options)
    return order, read_report(run(part, order), key)


def _seen(summary: Summary, held_out: HeldOut | None) -> str:
    """How many of the rows were in the training, in words; empty where none was."""
    if summary.seen is None:
        return "" if held_out is not None else "an unknown number of rows"
    if not summary.seen:
        return ""
    return "all rows" if summary.seen == summary.n_rows else f"{summary.seen:,} of {summary.n_rows:,} rows"
