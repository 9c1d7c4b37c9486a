"""What a report tells of each client, where clients have different rows: how good the model is for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.markup import html_table
from woodlot.data.wording import quoted
from woodlot.exceptions import DataError

_SHOWN = ("accuracy", "balanced_accuracy", "roc_auc", "log_loss", "r2", "rmse", "mae")
"""The metrics that a table shows, as far as the model has them."""
_USUAL = ("log_loss", "rmse")
"""The metric by which clients are compared: every client has it, also with rows of one class."""


@dataclass(frozen=True, eq=False, repr=False)
class ClientScores:
    """Rows and metrics of each client.

    Attributes
    ----------
    rows : dict of str to int
        How many rows of each client were evaluated.
    metrics : dict of str to dict
        The metrics of each client's rows, by client; NaN where ``undefined`` says why.
    undefined : dict of str to dict
        Metrics that a client's rows do not have, and why.
    withheld : tuple of str
        Clients that tell no figures of their own.
    """

    rows: dict[str, int]
    metrics: dict[str, dict[str, float]]
    undefined: dict[str, dict[str, str]]
    _better: Mapping[str, bool | None] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()

    def __getitem__(self, client: str) -> dict[str, float]:
        """The metrics of one client."""
        if client in self.metrics:
            return self.metrics[client]
        if client in self.withheld:
            raise DataError(
                f"{client} tells no figures of its own; its operator can set own_evaluations = true in the section "
                "[policy] of its configuration"
            )
        raise DataError(f"there is no client {client!r} in this report; it has {quoted(list(self.metrics))}")

    def by(self, metric: str | None = None) -> dict[str, float]:
        """One metric of every client that has it; by default log loss, or RMSE."""
        name = metric or next((name for name in _USUAL if name in self._better), "")
        if name not in self._better:
            raise DataError(f"there is no metric {name!r}; this report has {list(self._better)}")
        return {client: found[name] for client, found in self.metrics.items() if not np.isnan(found[name])}

    def worst(self, metric: str | None = None) -> str | None:
        """The client whose rows the model answers worst; None where no client has the metric.

        Parameters
        ----------
        metric : str, optional
            By default log loss, or RMSE: every client has them, also one with rows of one class.
        """
        found = self.by(metric)
        more = self._better[metric or next(name for name in _USUAL if name in self._better)]
        if more is None:
            raise DataError(f"of {metric!r} neither more nor less is better; take another metric")
        if not found:
            return None
        return (min if more else max)(found, key=lambda client: found[client])

    def gains(self, other: ClientScores, metric: str | None = None) -> dict[str, float]:
        """How much better this model is than another one for each client; below 0: the client loses.

        Parameters
        ----------
        other : ClientScores
            Of another model on the same rows, such as that of ``LocalForests``: ``its_report.by_client``.
        metric : str, optional
            As for `worst`.
        """
        mine, theirs = self.by(metric), other.by(metric)
        if self.rows != other.rows:
            raise DataError("the two models were evaluated on different rows; evaluate both on the same ones")
        more = self._better[metric or next(name for name in _USUAL if name in self._better)]
        if more is None:
            raise DataError(f"of {metric!r} neither more nor less is better; take another metric")
        return {
            client: (1 if more else -1) * (value - theirs[client]) for client, value in mine.items() if client in theirs
        }

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a line for each client, in words; the last column says who is worst off."""
        shown = [name for name in _SHOWN if name in self._better]
        worst = self.worst() if len(self.metrics) > 1 else None
        lines = [
            (
                client,
                f"{self.rows[client]:,}",
                *("-" if np.isnan(found[name]) else f"{found[name]:.4f}" for name in shown),
                "worst" if client == worst else "",
            )
            for client, found in self.metrics.items()
        ]
        lines += [(client, "-", *("-" for _ in shown), "tells no figures of its own") for client in self.withheld]
        return ("client", "rows", *shown, ""), lines

    def __repr__(self) -> str:
        heading, lines = self.table()
        widths = [max(len(line[k]) for line in [heading, *lines]) for k in range(len(heading))]
        return "\n".join(
            "  " + "  ".join(f"{v:<{w}}" if k == 0 else f"{v:>{w}}" for k, (v, w) in enumerate(pairs)).rstrip()
            for pairs in ([*zip(line[:-1], widths, strict=False), (line[-1], 0)] for line in [heading, *lines])
        )

    def _repr_html_(self) -> str:
        return html_table(*self.table())

    def to_dict(self) -> dict[str, Any]:
        """In plain values that JSON can hold; NaN is None."""
        return {
            client: {
                "rows": self.rows[client],
                "metrics": {name: None if np.isnan(value) else value for name, value in found.items()},
                "undefined": dict(self.undefined[client]),
            }
            for client, found in self.metrics.items()
        }


def client_scores(
    rows: Mapping[str, Any], better: Mapping[str, bool | None], withheld: tuple[str, ...] = ()
) -> ClientScores:
    """The scores of each client's rows, labels beside answers; clients without rows are left out."""
    return ClientScores(
        {client: len(own) for client, own in rows.items()},
        {client: own.scores() for client, own in rows.items()},
        {client: own.undefined() for client, own in rows.items()},
        better,
        withheld,
    )


def rows_by_client(owner: NDArray[np.int64], clients: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
    """Which rows are whose, of the clients that have some."""
    found = {client: np.flatnonzero(owner == k) for k, client in enumerate(clients)}
    return {client: own for client, own in found.items() if len(own)}
