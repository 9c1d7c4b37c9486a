"""``woodlot schema``: the JSON schema of what a command prints with ``--json``."""

from __future__ import annotations

from typing import Annotated

import typer

from woodlot.cli._client import print_json
from woodlot.exceptions import DataError


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]", help="Such as train, or jobs show; error: what a failed command prints."),
    ] = None,
) -> None:
    """Print the JSON schema of what a command prints with --json; without a command, list those that there are."""
    from woodlot.cli._documents import DOCUMENTS, json_schema
    from woodlot.data.wording import nearest

    if not command:
        for name in DOCUMENTS:
            typer.echo(name)
        return
    asked = " ".join(command)
    if asked not in DOCUMENTS:
        near = nearest(asked, list(DOCUMENTS))
        raise DataError(
            f"no JSON is known of {asked!r}; "
            + (f"did you mean {near!r}? " if near else "")
            + "`woodlot schema` lists the commands"
        )
    print_json(json_schema(asked))
