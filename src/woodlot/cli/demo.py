"""``woodlot demo``: what a bank and a shop learn alone, in one place, and federated."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.filesize import decimal as readable_bytes
from rich.table import Table

from woodlot import __version__
from woodlot.cli._progress import show_steps

if TYPE_CHECKING:
    from woodlot.cli._comparison import Comparison, Identity, Result

N_STEPS = 8
"""Steps of `_comparison.compare`; written here, for importing it takes a second and the bar comes first."""

TITLES = {
    "bank alone": "bank alone",
    "shop alone": "shop alone (bank's labels)",
    "one place": "all columns in one place",
    "one place, scikit-learn": "the same, scikit-learn",
    "federated": "federated",
}


def demo(
    rows: Annotated[int, typer.Option(min=100, help="Customers that both companies have.")] = 20_000,
    trees: Annotated[int, typer.Option(min=1, help="Trees of each forest.")] = 100,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Decides the data and the forests.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Grow a forest over a bank and a shop that keep their columns to themselves.

    Makes the tables of two companies; grows forests on each alone, on all columns in one place, and
    federated; shows their accuracy and cost, whether federated equals central bit by bit (if not, it exits
    with 1), and who saw what.
    """
    start = time.perf_counter()
    with show_steps(N_STEPS) as begin:
        from woodlot.cli._comparison import compare

        comparison = compare(rows, trees, seed, begin)
    seconds = time.perf_counter() - start
    if as_json:
        typer.echo(json.dumps(_as_json(comparison, trees, seed, seconds), indent=2))
    else:
        _print(Console(highlight=False), comparison, trees, seconds)
    if not comparison.identity.holds:
        raise typer.Exit(1)


# --- for people ---


def _print(console: Console, comparison: Comparison, trees: int, seconds: float) -> None:
    def heading(text: str) -> None:
        console.print(f"\n[bold]{text}[/bold]\n")

    heading("Two companies, one forest")
    console.print("Made-up tables: a bank knows who defaulted on a loan, a shop how they buy.\n")
    console.print(_companies(comparison))
    heading("What they learn, alone and together")
    console.print(_results(comparison.results, trees))
    console.print(_notes(comparison))
    heading("Is federated the same as central, bit by bit?")
    console.print(_identity(comparison.identity))
    heading("Who saw what while the federated forest grew")
    console.print(_disclosure(comparison))
    console.print(
        "\nNever sent: values, thresholds and names of columns. Sent: one bit per customer and split; "
        "labels, encoded, from which the shop can tell who has the same label, and the coordinator the label "
        "itself. What each message tells: docs/who-sees-what.md and model.disclosure_."
    )
    console.print(f"\n[dim]All of this took {seconds:.0f} s.[/dim]")


def _companies(comparison: Comparison) -> Table:
    companies = comparison.companies
    n_bank = companies.bank_train.num_rows + companies.bank_test.num_rows
    n_common = comparison.n_train + comparison.n_test
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_row("bank", f"{n_bank:,} customers", f"{', '.join(companies.bank_columns)}; the label")
    grid.add_row("shop", f"{companies.shop.num_rows:,} customers", ", ".join(companies.shop_columns))
    grid.add_row(
        "both",
        f"{n_common:,} customers",
        f"{comparison.n_train:,} to learn from, {comparison.n_test:,} to test on",
    )
    return grid


def _results(results: tuple[Result, ...], trees: int) -> Table:
    table = _table()
    table.add_column(f"{trees:,} tree{'s' * (trees != 1)}", no_wrap=True)
    for heading in ("accuracy", "AUC", "fit", "predict", "rounds", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            TITLES[result.name],
            f"{100 * result.accuracy:.1f} %",
            f"{result.auc:.3f}",
            f"{result.fit_seconds:.1f} s",
            f"{result.predict_seconds:.2f} s",
            "" if result.rounds is None else f"{result.rounds:,}",
            "" if result.bytes is None else readable_bytes(result.bytes, precision=1),
            style="bold green" if result.name == "federated" else None,
        )
    return table


def _notes(comparison: Comparison) -> str:
    federated = comparison.results[-1]
    error = (federated.accuracy * (1 - federated.accuracy) / comparison.n_test) ** 0.5
    cost = comparison.prediction_cost
    sent = readable_bytes(cost.bytes_sent + cost.bytes_received, precision=1)
    return (
        f"\nAll grow on the same {comparison.n_train:,} customers. Standard error of an accuracy: "
        f"{100 * error:.1f} points. Rounds and bytes are those of growing; predicting took the "
        f"federation {cost.rounds} round{'s' * (cost.rounds != 1)} and {sent}. "
        "scikit-learn gets categories one-hot."
    )


def _identity(identity: Identity) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column()
    grid.add_row(
        _yes_or_no(identity.same_forest),
        "Growing: the federated forest equals the forest grown on all columns in one place: "
        f"{identity.n_trees:,} trees, {identity.n_nodes:,} nodes, every split, every leaf.",
    )
    grid.add_row(
        _yes_or_no(identity.same_answers),
        "Predicting: bank and shop in one round give the same answers as that forest in one place: "
        f"{identity.n_answers:,} probabilities.",
    )
    return grid


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")


def _yes_or_no(holds: bool) -> str:
    return "[bold green]yes[/bold green]" if holds else "[bold red]NO[/bold red]"


def _disclosure(comparison: Comparison) -> Table:
    table = _table()
    table.add_column("who saw", no_wrap=True)
    table.add_column("in form", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("what")
    seen: dict[tuple[str, str], dict[str, int]] = {}
    for row in comparison.disclosure:
        kinds = seen.setdefault((row.receiver, row.form), {})
        kinds[row.kind] = kinds.get(row.kind, 0) + row.bytes
    previous = ""
    for (receiver, form), kinds in sorted(seen.items(), key=lambda item: item[0]):
        largest_first = sorted(kinds, key=lambda kind: -kinds[kind])
        table.add_row(
            "" if receiver == previous else receiver,
            form,
            readable_bytes(sum(kinds.values()), precision=1),
            ", ".join(largest_first),
        )
        previous = receiver
    return table


# --- for machines ---


def _as_json(comparison: Comparison, trees: int, seed: int, seconds: float) -> dict[str, Any]:
    companies, cost = comparison.companies, comparison.prediction_cost
    return {
        "woodlot": __version__,
        "seed": seed,
        "trees": trees,
        "customers": {
            "bank": companies.bank_train.num_rows + companies.bank_test.num_rows,
            "shop": companies.shop.num_rows,
            "common": comparison.n_train + comparison.n_test,
            "train": comparison.n_train,
            "test": comparison.n_test,
        },
        "columns": {"bank": companies.bank_columns, "shop": companies.shop_columns},
        "models": {
            result.name: {k: v for k, v in asdict(result).items() if k != "name"} for result in comparison.results
        },
        "identical": comparison.identity.holds,
        "compared": asdict(comparison.identity),
        "prediction": {"rounds": cost.rounds, "bytes": cost.bytes_sent + cost.bytes_received},
        "disclosure": comparison.disclosure.to_dicts(),
        "seconds": seconds,
    }
