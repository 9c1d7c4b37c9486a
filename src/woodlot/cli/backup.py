"""``woodlot backup``: a copy of a service's state folder in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from woodlot.cli._client import AsJson, print_json, reporting


def backup(
    state: Annotated[Path, typer.Argument(metavar="STATE", help="The state folder of a service, running or not.")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The tar file to write.")],
    identity: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also copy this identity, with its private key.")
    ] = None,
    without_secret: Annotated[
        bool,
        typer.Option("--without-secret", help="Leave out the folder's secret; keep a copy of it elsewhere."),
    ] = False,
    with_epoch_keys: Annotated[
        bool,
        typer.Option("--with-epoch-keys", help="Also copy keys of revocable forests: to move a service only."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the state folder of a service into one private file, also while it runs."""
    with reporting(as_json):
        from woodlot.service.backup import write_backup

        facts = write_backup(state, out, identity=identity, secret=not without_secret, epoch_keys=with_epoch_keys)
    if as_json:
        told = {name: getattr(facts, name) for name in ("made", "stopped", "secret", "epoch_keys", "identity")}
        print_json({"file": str(out), "files": len(facts.files), **told})
        return
    typer.echo(
        f"{out}: {len(facts.files):,} files, made while the service {'was stopped' if facts.stopped else 'ran'}."
    )
    private = [words for words, has in (("its secret", facts.secret), ("a private key", facts.identity)) if has]
    if private:
        typer.echo(f"It holds {' and '.join(private)}: keep it as you keep the state folder, and encrypt it.")
