"""``woodlot evaluate``: have the label holder say how good a model is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    INTERRUPTED,
    SHORT,
    Access,
    AsJson,
    CoordinatorOption,
    IdentityOption,
    JobFile,
    JobFileOption,
    LeadOption,
    PartiesOption,
    TablesOption,
    lead_of,
    parse_tables,
    print_json,
    reach,
    reporting,
)
from woodlot.cli._forest import is_linear
from woodlot.cli._rows import SplitOption, SplitSeedOption
from woodlot.cli.predict import tables_of
from woodlot.cli.train import AlignMethod, AlignOption
from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.connected import ConnectedFederation
    from woodlot.jobs.orders import Order
    from woodlot.metrics.resampling import Resampling
    from woodlot.metrics.summaries import Summary


def evaluate(
    model: Annotated[str, typer.Option("--model", metavar="NAME|ID", help="Which model.")],
    y: Annotated[
        str,
        typer.Option(
            "--y",
            metavar="PARTY.COLUMN",
            help="The labels; their party computes the report. COLUMN for a forest over rows.",
        ),
    ],
    tables: TablesOption = None,
    split: SplitOption = None,
    split_seed: SplitSeedOption = None,
    party: PartiesOption = None,
    bootstrap: Annotated[
        int, typer.Option(metavar="NUMBER", help="Samples of the rows for confidence intervals; 0 for none.")
    ] = 500,
    confidence: Annotated[float, typer.Option(metavar="SHARE", help="Of the intervals.")] = 0.95,
    sealed: Annotated[bool, typer.Option("--sealed", help="Have parties answer under seal.")] = False,
    allow_two: Annotated[
        bool,
        typer.Option("--allow-two", help="Over rows, let sums be of two parties: each can learn the other's numbers."),
    ] = False,
    align: AlignOption = None,
    lead: LeadOption = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Have the parties that have labels say how good a model is, with all usual metrics.

    With --split SHARE it is the rows that `woodlot train --split SHARE` has held out. The report says so where rows
    were in the training. It is sealed to you: the coordinator does not read it. Parties must allow it, with "evaluate"
    among the protocols of their policy. With a forest over rows every party rates its own rows, and the report is of
    sums over all of them.

    Example: woodlot evaluate --model risk --tables customers --y bank.default --split 0.25
    """
    with reporting(as_json):
        if tables is None:
            raise ConfigError("name the tables of the parties, such as --tables customers")
        if split_seed is not None and split is None:
            raise ConfigError("--split-seed says which rows --split holds out: give --split, too")
        if split is not None and not 0 < split < 1:
            raise ConfigError(f"--split {split}: give a share between 0 and 1, such as 0.25")
        file = JobFile.read(job)
        access = Access.find(coordinator, identity, file)
        from woodlot.connected import ConnectedFederation
        from woodlot.connected.connected_rows import ConnectedRowFederation, read_rows_report
        from woodlot.connected.row_parts import read_report
        from woodlot.connected.scores import vote_of
        from woodlot.metrics.resampling import Resampling

        try:
            resampling = Resampling(bootstrap, confidence)
        except ValueError as error:
            raise ConfigError(str(error).replace("n_bootstrap", "--bootstrap")) from None
        with reach(access) as client:
            found = client.find_model(model)
            if found.layout == "rows":
                if sealed:
                    raise ConfigError("--sealed is for forests over columns; here each party answers its own rows")
                named = tables_of(found, parse_tables(tables), party)
                part = ConnectedRowFederation(client, named)
                if split is not None:
                    part = part.split(split, seed=split_seed or 0)[1]
                asked, keys = part.evaluate_rows_order(found.model, y, resampling, allow_two=allow_two)
                pooled = read_rows_report(_watched(part, asked), keys, found.classes, resampling)
                _say(pooled, resampling, asked.job, found.model, part_known=split is not None, as_json=as_json)
                return
            if allow_two:
                raise ConfigError("--allow-two is for forests over rows, whose parties add numbers up")
            linear = is_linear(found)
            if linear and sealed:
                raise ConfigError("--sealed is for forests; a linear model is asked in one round")
            named = tables_of(found, parse_tables(tables), party)
            rows_by = (align or AlignMethod.keyed_hash).value
            federation = ConnectedFederation(client, named, rows_by, "inner", lead=lead_of(lead, file))
            if split is not None:
                _, federation = federation.split(split, seed=split_seed or 0)
            options: dict[str, Any] = {}
            if not linear:
                options = {"vote": vote_of(found), "how": "sealed" if sealed else "one-round"}
            order, key = federation.evaluate_order(found.model, y, resampling, linear=linear, **options)
            summary = read_report(_watched(federation, order), key)
        _say(summary, resampling, order.job, found.model, part_known=split is not None, as_json=as_json)


def _say(summary: Summary, resampling: Resampling, job: str, model: str, *, part_known: bool, as_json: bool) -> None:
    """Print a report."""
    from woodlot.evaluation.told_reports import told_report

    unknown = "" if part_known else "an unknown number of rows"
    seen = unknown if summary.seen is None else _in_words(summary.seen, summary.n_rows)
    report = told_report(summary, resampling, seen)
    if as_json:
        print_json({"job": job, "model": model, "report": report.to_dict()})
        return
    from woodlot.cli import _show as show

    show.stdout().print(repr(report), markup=False, highlight=False, soft_wrap=True)


def _watched(federation: ConnectedFederation, order: Order) -> Any:
    """Run a job whose outcome only this command can read."""
    from woodlot.cli._show import watch_job

    try:
        with watch_job() as show:
            return federation.run(order, show)
    except KeyboardInterrupt:
        typer.echo(
            f"woodlot: interrupted; job {order.job[:SHORT]} goes on, and its report is lost. Evaluate again.", err=True
        )
        raise typer.Exit(INTERRUPTED) from None


def _in_words(seen: int, rows: int) -> str:
    if not seen:
        return ""
    return "all rows" if seen == rows else f"{seen:,} of {rows:,} rows"
