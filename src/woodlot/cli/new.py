"""``woodlot new``: the file that a federation begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    path: Annotated[Path, typer.Argument(metavar="FEDERATION.TOML", help="File to write.")] = Path("federation.toml"),
) -> None:
    """Write an example of a federation's file, for its operator to complete.

    Example: `woodlot new federation.toml`
    """
    from woodlot.exceptions import ConfigError
    from woodlot.service.federation_file import EXAMPLE

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(EXAMPLE)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; name another file, or remove it first") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(f"Complete {path}, then run: woodlot provision {path}")
