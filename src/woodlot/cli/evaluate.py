"""``woodlot evaluate``: have the label holder say how good a model is."""

from __future__ import annotations

from typing import Annotated

import typer

from woodlot.cli._client import (
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
    run_for_me,
)
from woodlot.cli._rows import SplitOption, SplitSeedOption, check_split
from woodlot.cli.predict import tables_of
from woodlot.cli.train import AlignMethod, AlignOption
from woodlot.exceptions import ConfigError


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
        check_split(split, split_seed)
        file = JobFile.read(job)
        access = Access.find(coordinator, identity, file)
        from woodlot.connected.ordered_reports import Asked, HeldOut, ordered_report
        from woodlot.metrics.resampling import Resampling

        try:
            resampling = Resampling(bootstrap, confidence)
        except ValueError as error:
            raise ConfigError(str(error).replace("n_bootstrap", "--bootstrap")) from None
        with reach(access) as client:
            found = client.find_model(model)
            if found.layout == "rows" and sealed:
                raise ConfigError("--sealed is for forests over columns; here each party answers its own rows")
            if found.layout != "rows" and allow_two:
                raise ConfigError("--allow-two is for forests over rows, whose parties add numbers up")
            if found.is_linear and sealed:
                raise ConfigError("--sealed is for forests; a linear model is asked in one round")
            asked = Asked(
                found,
                tables_of(found, parse_tables(tables), party),
                y,
                None if split is None else HeldOut(split, split_seed or 0),
                resampling,
                "sealed" if sealed else "one-round",
                (align or AlignMethod.keyed_hash).value,
                lead_of(lead, file),
                allow_two,
            )
            ordered, report = ordered_report(client, asked, run_for_me)
        if as_json:
            print_json({"job": ordered, "model": found.model, "report": report.to_dict()})
            return
        from woodlot.cli import _show as show

        show.stdout().print(repr(report), markup=False, highlight=False, soft_wrap=True)
