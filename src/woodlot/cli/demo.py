"""``woodlot demo``: a bank and a shop as processes of their own; what they learn alone, in one place, and federated."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack, suppress
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
    from woodlot.cli._comparison import Audit, BitComparison, Comparison, Delivery, Result, Setting
    from woodlot.dashboard.server import Server
    from woodlot.service.local import LocalFederation

N_STEPS = 13
"""Steps of `_comparison.compare`; written here, for importing it takes a second and the bar comes first."""

TITLES = {
    "bank alone": "bank alone",
    "shop alone": "shop alone (bank's labels)",
    "one place": "all columns in one place",
    "one place, scikit-learn": "the same, scikit-learn",
    "federated": "federated",
}
FORMS = ("clear", "encoded", "encrypted")
SHOWN_ANSWERS = 3
READ_BY = {
    "open": "bank and shop: which customers go left and right at each split; the shop: who has the same label. "
    "Coordinator: lengths of sealed frames",
    "hidden": "bank and shop: how many customers of a node are in each cell of a column, {cell} or more in a cell on "
    "average; the shop is sent no label. Coordinator: lengths",
}
"""What can be read under each setting of ``protection``, and by whom."""


def demo(
    rows: Annotated[int, typer.Option(min=100, help="Customers that both companies have.")] = 20_000,
    trees: Annotated[int, typer.Option(min=1, help="Trees of each forest.")] = 100,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Decides the data and the forests.")] = 0,
    dashboard: Annotated[
        bool | None,
        typer.Option(
            "--dashboard/--no-dashboard", help="Serve a page to look at; by default on a terminal.", show_default=False
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Start the federation again afterwards, to play with; Ctrl-C ends it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Grow a forest over a bank and a shop that keep their columns to themselves.

    Makes the tables of two companies; starts a coordinator, the bank and the shop as processes of their own, with
    fresh keys, on this machine; finds the common customers, grows a forest and predicts over them. Shows its
    accuracy and cost beside those of forests on each company alone and on all columns in one place, both settings
    of protection side by side, whether federated equals central bit by bit, and who was sent what (exits with 1 if
    something does not hold). Leaves nothing behind. The parties' secrets are new each time, and with them the trees
    of the same seed. With the dashboard it waits for Enter before it ends. With --keep the federation goes on until
    Ctrl-C, for commands of your own.
    """
    start = time.perf_counter()
    show_page = (sys.stdin.isatty() and sys.stdout.isatty() and not as_json) if dashboard is None else dashboard
    with ExitStack() as stack:
        with show_steps(N_STEPS) as begin:
            begin("making tables, keys and certificates")
            from woodlot.cli._comparison import PARTIES, compare
            from woodlot.service.local import local_federation

            federation = stack.enter_context(local_federation(PARTIES))
            server = None

            def started() -> None:
                nonlocal server
                if show_page:
                    server = stack.enter_context(_dashboard(federation))
                    typer.echo(f"To look at while it works: {server.url}", err=True)

            comparison = compare(federation, rows, trees, seed, begin, started)
        seconds = time.perf_counter() - start
        if as_json:
            typer.echo(json.dumps(_as_json(comparison, trees, seed, seconds), indent=2))
        else:
            _print(Console(highlight=False), comparison, trees, seconds)
        if keep:
            _keep(federation, stack)
        elif server is not None:
            typer.echo(f"\nThe dashboard still shows all of this: {server.address}. Press Enter to end.", err=True)
            sys.stdin.readline()
    if not comparison.holds:
        raise typer.Exit(1)


def _keep(federation: LocalFederation, stack: ExitStack) -> None:
    """Start everybody again with a dashboard, say how to use it, and wait until somebody ends it."""
    from woodlot.cli._companies import LABEL, TABLES

    federation.start_again()
    folder = federation.root / "alice"
    tables = ", ".join(f'{party} = "{table}"' for party, table in TABLES.items())
    (folder / "job.toml").write_text(
        f'coordinator = "{federation.address}"\n\n[job]\ny = "bank.{LABEL}"\ntask = "classification"\n'
        f'tables = {{ {tables} }}\nname = "mine"\n\n[forest]\nn_estimators = 20\n',
        encoding="utf-8",
    )
    server = stack.enter_context(_dashboard(federation))
    for line in (
        "\nThe federation runs, with you as alice. In another terminal:",
        f"  cd {folder}",
        "  woodlot train job.toml",
        "  woodlot models --job job.toml",
        "  woodlot jobs --job job.toml",
        f"The dashboard: {server.url}",
        "Ctrl-C ends everything, and nothing is left behind.",
    ):
        typer.echo(line, err=True)
    with suppress(KeyboardInterrupt):  # what a signal to end raises here, too
        threading.Event().wait()


def _dashboard(federation: LocalFederation) -> Server:
    """The page of all three roles, whose folders are here; it acts as the demonstration's user."""
    from woodlot.cli.dashboard import open_dashboard

    folders = [federation.root / "coordinator" / "coordinator.toml"]
    folders += [federation.root / party / "party.toml" for party in federation.parties]
    server = open_dashboard(folders, federation.identity, federation.address, "127.0.0.1:0")
    server.start()
    return server


# --- for people ---


def _print(console: Console, comparison: Comparison, trees: int, seconds: float) -> None:
    def heading(text: str) -> None:
        console.print(f"\n[bold]{text}[/bold]\n")

    heading("Two companies, one forest")
    console.print(
        "Made-up tables: a bank knows who defaulted on a loan, a shop how they buy. Bank, shop and coordinator were "
        "processes of their own, each with its own key; only the coordinator listened, on "
        f"{comparison.address}, and let nobody in without a certificate (TLS 1.3).\n"
    )
    console.print(_companies(comparison))
    heading("What they learn, alone and together")
    console.print(_results(comparison.results, trees))
    console.print(_notes(comparison))
    heading("Two settings, side by side")
    console.print(_settings(comparison.settings, comparison.n_train))
    console.print(
        "\nThe same federation, fewer trees. Hidden training works on secret shares, which hold if no two of bank, "
        "shop and coordinator work together. It has coarser bins and larger leaves, so that counts tell little of "
        "single customers, and costs accuracy: woodlot leak-test --part hidden, docs/how-to/choose-protection.md."
    )
    heading("Is federated the same as central, bit by bit?")
    console.print(_identity(comparison.identity))
    heading("Who was sent what")
    console.print(_sent(comparison.audits))
    console.print()
    console.print(_chains(comparison.audits))
    console.print(
        '\n"Clear" is what the receiver can read; on the wire all of it is under TLS. Never sent: values, '
        "thresholds, names of columns to learn from, and ids as they are. Sent: ids hashed under a key that the "
        "coordinator does not have; one bit per customer and split, from which its receivers can work out much of the "
        "order of values; labels, encoded, from which the shop can tell who has the same label. The bank, which has "
        "the labels, leads: it receives what the shop sends, and the coordinator relays it sealed. How much: woodlot "
        "leak-test. Message by message: docs/who-sees-what.md."
    )
    heading("What the bank finds in its folder")
    console.print(_delivery(comparison.delivery))
    console.print(
        f"\n{comparison.delivery.answers.num_rows:,} answers, each beside the bank's own id; the user who ordered "
        f"them never sees an id. By the bank's labels {100 * comparison.delivery.score:.1f} % are right."
    )
    console.print(f"\n[dim]All of this took {seconds:.0f} s. The processes have ended; nothing is left behind.[/dim]")


def _companies(comparison: Comparison) -> Table:
    companies = comparison.companies
    n_bank = companies.bank_train.num_rows + companies.bank_test.num_rows
    n_common = comparison.n_train + comparison.n_test
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    grid.add_row("bank", f"{n_bank:,} customers", f"Parquet: {', '.join(companies.bank_columns)}; the label")
    grid.add_row("shop", f"{companies.shop.num_rows:,} customers", f"CSV: {', '.join(companies.shop_columns)}")
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
            "" if result.bytes is None else _size(result.bytes),
            style="bold green" if result.name == "federated" else None,
        )
    return table


def _settings(settings: tuple[Setting, ...], n_rows: int) -> Table:
    from woodlot.trees.coarsening import cell_for

    table = _table()
    table.add_column(f"{settings[0].trees:,} tree{'s' * (settings[0].trees != 1)}", no_wrap=True)
    for heading in ("accuracy", "fit", "sent"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("who can read what")
    for one in settings:
        table.add_row(
            one.protection,
            f"{100 * one.accuracy:.1f} %",
            f"{one.fit_seconds:.1f} s",
            _size(one.bytes),
            READ_BY[one.protection].format(cell=cell_for(n_rows)),
        )
    return table


def _notes(comparison: Comparison) -> str:
    federated = comparison.results[-1]
    error = (federated.accuracy * (1 - federated.accuracy) / comparison.n_test) ** 0.5
    found, cost = comparison.alignment, comparison.prediction_cost
    sent = _size(cost.bytes_sent + cost.bytes_received)
    return (
        f"\nAll grow on the same {comparison.n_train:,} customers. Standard error of an accuracy: "
        f"{100 * error:.1f} points. Rounds and bytes are those of growing; finding the common customers took the "
        f"federation {found.rounds} rounds, {_size(found.bytes)} and {found.seconds:.1f} s, "
        f"predicting {cost.rounds} rounds and {sent}. scikit-learn gets categories one-hot."
    )


def _identity(identity: BitComparison) -> Table:
    return _verdicts(
        (
            identity.same_forest,
            "Growing: what the three processes have grown, put together, equals the forest grown on all columns in "
            f"one place: {identity.n_trees:,} trees, {identity.n_nodes:,} nodes, every split, every leaf.",
        ),
        (
            identity.same_answers,
            "Predicting: the federation gives the same answers as that forest in one place: "
            f"{identity.n_answers:,} probabilities.",
        ),
        note="To compare, this program has looked into all folders, which is impossible in production: the codes of "
        "columns and the order of rows come from secrets of the parties.",
    )


def _verdicts(*verdicts: tuple[bool, str], note: str = "") -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column()
    for holds, text in verdicts:
        grid.add_row("[bold green]yes[/bold green]" if holds else "[bold red]NO[/bold red]", text)
    if note:
        grid.add_row("", note)
    return grid


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")


def _size(n_bytes: int) -> str:
    return readable_bytes(n_bytes, precision=1) if n_bytes >= 1_000 else f"{n_bytes} B"


def _party_first(pair: tuple[str, str]) -> tuple[str, bool]:
    sender, receiver = pair
    return (receiver, True) if sender == "coordinator" else (sender, False)


def _sent(audits: tuple[Audit, ...]) -> Table:
    table = _table()
    table.add_column("job", no_wrap=True)
    table.add_column("from and to", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    for form in FORMS:
        table.add_column(form, justify="right", no_wrap=True)
    table.add_column("mostly", no_wrap=True)
    for audit in audits:
        first = audit.what
        pairs = {(row.sender, row.receiver) for row in audit.rows}
        for sender, receiver in sorted(pairs, key=_party_first):
            rows = [row for row in audit.rows if (row.sender, row.receiver) == (sender, receiver)]
            sizes = [sum(row.bytes for row in rows if row.form == form) for form in FORMS]
            table.add_row(
                first,
                f"{sender} → {receiver}",
                f"{sum(row.count for row in rows):,}",
                *(_size(size) if size else "" for size in sizes),
                max(rows, key=lambda row: row.bytes).kind,
            )
            first = ""
    return table


def _chains(audits: tuple[Audit, ...]) -> Table:
    problems = [audit.problem for audit in audits if audit.problem]
    entries = {who: sum(audit.records[who] for audit in audits) for who in audits[0].records}
    where = ", ".join(f"{n:,} at the {who}" for who, n in entries.items())
    return _verdicts(
        (not problems, problems[0] if problems else f"Every chain of records is whole, by its hashes: {where}."),
        (
            all(audit.agree for audit in audits),
            "The bank's and the shop's own records tell of the same messages as the coordinator's.",
        ),
    )


def _delivery(delivery: Delivery) -> Table:
    table = _table()
    shown = delivery.answers.slice(0, SHOWN_ANSWERS)
    for name in shown.column_names:
        table.add_column(name, justify="left" if name == "prediction" else "right", no_wrap=True)
    for row in shown.to_pylist():
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row.values()))
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
        "settings": {
            one.protection: {k: v for k, v in asdict(one).items() if k != "protection"} for one in comparison.settings
        },
        "identical": comparison.identity.holds,
        "compared": asdict(comparison.identity),
        "alignment": asdict(comparison.alignment),
        "prediction": {"rounds": cost.rounds, "bytes": cost.bytes_sent + cost.bytes_received},
        "audit": {
            audit.what: {
                "job": audit.job,
                "records": audit.records,
                "verified": not audit.problem,
                "problem": audit.problem,
                "parties_agree": audit.agree,
                "messages": audit.rows.to_dicts(),
            }
            for audit in comparison.audits
        },
        "delivered": {
            "party": "bank",
            "rows": comparison.delivery.answers.num_rows,
            "columns": comparison.delivery.answers.column_names,
            "score": comparison.delivery.score,
        },
        "seconds": seconds,
    }
