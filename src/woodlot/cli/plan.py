"""``woodlot plan``: what a training will cost, before it is ordered."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from woodlot.cli._client import AsJson, Leader, print_json, reporting
from woodlot.exceptions import ConfigError


def plan(
    rows: Annotated[int, typer.Option(min=2, help="Rows that the parties have in common; over rows, of all of them.")],
    columns: Annotated[
        list[str],
        typer.Option("--columns", metavar="PARTY=N", help="Columns of a party, the label holder's first; repeat it."),
    ],
    classes: Annotated[int, typer.Option(min=0, help="Number of classes; 0 for regression.")] = 2,
    noise: Annotated[float, typer.Option(min=0, max=0.99, help="Share of labels that no column explains.")] = 0.1,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the forest; repeat it.")
    ] = None,
    latency: Annotated[float, typer.Option(min=0, help="Milliseconds to a party and back.")] = 0.0,
    bandwidth: Annotated[float | None, typer.Option(min=0.001, help="Megabits per second of a party's line.")] = None,
    lead: Annotated[
        Leader | None, typer.Option(help="Who runs the training; the label holder by default, where it can.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also grow it here, on made-up rows, and compare.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Forecast rounds, bytes, memory and time of a training, from small trials on this machine.

    Shapes are enough; no data is needed. The trials grow a few trees on made-up rows of that shape.
    """
    with reporting(as_json):
        from woodlot.cli._forest import parse_settings

        held, settings = _parse_columns(columns), parse_settings(setting or [])
        if measure and lead is Leader.holder:
            raise ConfigError("--measure grows the forest in one process, where nobody relays; leave --lead out")
        _check_kind(settings.get("kind"))

        from woodlot.estimators.forecast import DataShape, Network, fit_made_up, forecast

        if lead is None:
            lead = Leader.coordinator if measure or "kind" in settings else Leader.holder
        estimator = _estimator("classification" if classes else "regression", settings)
        try:
            shape = DataShape(rows, held, classes, noise)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        network = Network(latency / 1e3, float("inf") if bandwidth is None else bandwidth * 1e6 / 8)
        foreseen = forecast(estimator, shape, network, lead=lead.value)
        compared = None
        if measure:
            compared = foreseen.beside(fit_made_up(estimator, shape, rows).cost_)
    if as_json:
        print_json(_plain(foreseen, compared))
        return
    from woodlot.cli import _show

    console = _show.stdout()
    console.print(_show.facts_grid(foreseen.facts()))
    if compared is not None:
        console.print()
        console.print(_show.table(("", ">foreseen", ">measured here", ">off by"), compared))
        console.print("\n[dim]Measured in one process: without the network.[/dim]")


_KINDS = ("revocable", "lossless", "private")
"""What can be planned besides a forest over columns, by the names that it has in a job.toml."""


def _check_kind(kind: Any) -> None:
    if kind is not None and kind not in _KINDS:
        raise ConfigError(f"--set kind={kind}: a forecast is made of kind {', '.join(_KINDS)}, or without it")


def _estimator(task: str, settings: dict[str, Any]) -> Any:
    """What is planned: over columns, revocable, or over rows."""
    from woodlot.cli._forest import REVOCABLE_KIND, make_estimator, make_revocable_estimator, make_row_estimator

    kind = settings.get("kind")
    if kind is None:
        return make_estimator(task, settings, "--set")
    make = make_revocable_estimator if kind == REVOCABLE_KIND else make_row_estimator
    return make(task, settings, "--set")


def _parse_columns(given: list[str]) -> dict[str, int]:
    found = {}
    for one in given:
        party, equals, number = one.partition("=")
        if not (party and equals and number.isdigit()):
            raise ConfigError(f"--columns {one}: write --columns PARTY=NUMBER, such as --columns bank=12")
        found[party] = int(number)
    return found


def _plain(foreseen: Any, compared: Any) -> dict[str, Any]:
    return {
        "rounds": foreseen.rounds,
        "bytes_by_party": foreseen.bytes_by_party,
        "memory_by_party": foreseen.memory_by_party,
        "compute_seconds": foreseen.compute_seconds,
        "network_seconds": foreseen.network_seconds,
        "opened": foreseen.opened,
        "outlook": None if foreseen.outlook is None else asdict(foreseen.outlook),
        "measured": None
        if compared is None
        else {name: dict(zip(("foreseen", "measured", "off"), rest, strict=True)) for name, *rest in compared},
    }
