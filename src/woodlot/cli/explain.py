"""``woodlot explain``: have answers of a forest divided among parties and columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    Access,
    AsJson,
    CoordinatorOption,
    IdentityOption,
    JobFile,
    JobFileOption,
    PartiesOption,
    TablesOption,
    parse_tables,
    print_json,
    reach,
    reporting,
    run_for_me,
)
from woodlot.cli._rows import SplitOption, SplitSeedOption, check_split
from woodlot.cli._text import spelled_out
from woodlot.cli.predict import tables_of
from woodlot.cli.train import AlignMethod, AlignOption
from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.evaluation.explanations import Explanation

_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_ROWS_SHOWN = 20
"""Rows whose reasons are printed; JSON has all of them."""


def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name or id of the forest.")],
    tables: TablesOption = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Explain the row with this id; repeat it.")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Treat numeric ids as text.")] = False,
    split: SplitOption = None,
    split_seed: SplitSeedOption = None,
    reasons: Annotated[
        int, typer.Option("--reasons", metavar="NUMBER", help="Give so many reasons for each answer, in words.")
    ] = 0,
    party: PartiesOption = None,
    align: AlignOption = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Divide the answers of a forest among the parties, and their columns where owners agree: exact Shapley values.

    Rows are those with the given ids, the part that `--split SHARE` holds out, or all common rows. The label holder
    computes the values and seals them to you: the coordinator does not read them. Parties must allow it, with "explain"
    among the protocols of their policy, and "score" where rows are named by their ids.

    Example: woodlot explain risk --tables customers --id 1017 --reasons 3
    """
    with reporting(as_json):
        if tables is None:
            raise ConfigError("name the tables of the parties, such as --tables customers")
        if ids and split is not None:
            raise ConfigError("--id and --split both say which rows; give one of them")
        check_split(split, split_seed)
        if reasons < 0:
            raise ConfigError(f"--reasons {reasons}: give a number of reasons, such as 3")
        access = Access.find(coordinator, identity, JobFile.read(job))
        from woodlot.connected import ConnectedFederation
        from woodlot.connected.scores import vote_of
        from woodlot.estimators.explaining import explanation_of
        from woodlot.estimators.input_tables import class_array

        with reach(access) as client:
            found = client.find_model(model)
            if found.layout == "rows":
                raise ConfigError("this model is whole: every party explains its own rows, model.explain(table)")
            named = tables_of(found, parse_tables(tables), party)
            rows_by = (align or AlignMethod.keyed_hash).value
            federation = ConnectedFederation(client, named, rows_by, "inner")
            if ids:
                federation = federation.named_rows(_ids(ids, text))
            elif split is not None:
                _, federation = federation.split(split, seed=split_seed or 0)
            order, key = federation.explain_order(found.model, vote_of(found))
            told, _ = federation.read_explanation(run_for_me(federation, order), key)
        explanation = explanation_of(told.rows(), class_array(told.classes) if told.classes else None, federation)
        given = [explanation.reasons(reasons, row=row) for row in range(len(explanation))] if reasons else []
        if as_json:
            document = {"job": order.job, "model": found.model, "explanation": explanation.to_dict()}
            document["by_party"] = explanation.by_party().importance()
            print_json(document | ({"reasons": given} if reasons else {}))
            return
        _print(explanation, given)


def _ids(ids: list[str], text: bool) -> list[Any]:
    if not text and all(_WHOLE.fullmatch(value) for value in ids):
        return [int(value) for value in ids]
    return list(ids)


def _print(explanation: Explanation, reasons: list[list[str]]) -> None:
    from woodlot.cli import _show as show

    console = show.stdout()
    console.print(repr(explanation), markup=False, highlight=False)
    parties = explanation.by_party()
    if parties.features != explanation.features:
        lines = [f"  {party}  {size:.4f}" for party, size in parties.importance().items()]
        console.print("\n".join(["by party", *lines]), markup=False, highlight=False)
    ids = range(1, len(explanation) + 1) if explanation.ids is None else explanation.ids.tolist()
    for one, given in list(zip(ids, reasons, strict=False))[:_ROWS_SHOWN]:
        words = given or ["No column moved the answer that way."]
        console.print(
            "\n".join([f"\nRow {one}:", *(f"  {spelled_out(line)}" for line in words)]), markup=False, highlight=False
        )
    if len(reasons) > _ROWS_SHOWN:
        console.print(f"\nReasons for {len(reasons) - _ROWS_SHOWN:,} more rows: --json has them.", markup=False)
