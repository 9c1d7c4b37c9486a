"""``woodlot score``: have a forest answer for a few rows that are named by their ids."""

from __future__ import annotations

import re
from typing import Annotated, Any

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
)
from woodlot.cli.predict import tables_of
from woodlot.exceptions import ConfigError

_WHOLE = re.compile(r"-?(0|[1-9]\d*)")


def score(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids as in the parties' tables.")],
    model: Annotated[str, typer.Option("--model", metavar="NAME|ID", help="Which forest.")],
    tables: TablesOption = None,
    party: PartiesOption = None,
    text: Annotated[bool, typer.Option("--text", help="Treat numeric ids as text.")] = False,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Have a forest answer for a few rows, by their ids.

    The ids are sealed to the parties: the coordinator does not see them. Parties must allow it, with "score" among the
    protocols of their policy. For many requests keep a scoring open: federation.scoring(...) in Python.
    """
    with reporting(as_json):
        if tables is None:
            raise ConfigError("name the tables of the parties, such as --tables customers")
        access = Access.find(coordinator, identity, JobFile.read(job))
        from woodlot.connected import ConnectedFederation

        asked: list[Any] = list(ids)
        if not text and all(_WHOLE.fullmatch(value) for value in ids):
            asked = [int(value) for value in ids]
        with reach(access) as client:
            forest = client.find_model(model)
            federation = ConnectedFederation(
                client, tables_of(forest, parse_tables(tables), party), "keyed-hash", "inner"
            )
            with federation.scoring(forest.model) as scoring:
                outputs, uncertain = scoring.outputs(asked)
        columns: dict[str, Any] = {"id": asked, "prediction": scoring.answers(outputs).tolist()}
        columns |= {f"probability_{c}": outputs[:, k].tolist() for k, c in enumerate(forest.classes)}
        columns["uncertain"] = uncertain.tolist()
        if as_json:
            print_json({"job": scoring.job, "answers": columns})
            return
        _print(columns)


def _print(columns: dict[str, Any]) -> None:
    from woodlot.cli import _show as show

    console = show.stdout()
    rows = zip(*columns.values(), strict=True)
    shown = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row[:-1]] for row in rows]
    console.print(show.table([f">{name}" for name in list(columns)[:-1]], shown))
    if lacking := [str(key) for key, doubt in zip(columns["id"], columns["uncertain"], strict=True) if doubt]:
        console.print(f"\nUncertain, for some party does not have the row: {', '.join(lacking)}", markup=False)
