"""``woodlot restore``: put a state folder back from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from woodlot.cli._client import AsJson, print_json, reporting
from woodlot.exceptions import ConfigError


def restore(
    backup: Annotated[Path, typer.Argument(metavar="FILE", help="What woodlot backup has written.")],
    state: Annotated[Path, typer.Argument(metavar="STATE", help="The state folder to make.")],
    nothing_since: Annotated[
        bool, typer.Option("--nothing-since", help="The service has not run since the backup: it goes on where it was.")
    ] = False,
    accept_lost_records: Annotated[
        bool,
        typer.Option("--accept-lost-records", help="The service has run: what was spent and done since is forgotten."),
    ] = False,
    identity: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to put the identity that is in the backup.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put a state folder back from a backup. Orders that were signed before are then refused."""
    with reporting(as_json):
        from woodlot.service.backup import restore_backup

        if nothing_since and accept_lost_records:
            raise ConfigError("choose one of --nothing-since and --accept-lost-records")
        facts = restore_backup(
            backup,
            state,
            since="nothing" if nothing_since else "lost" if accept_lost_records else None,
            identity=identity,
        )
    if as_json:
        print_json({"state": str(state), "files": len(facts.files), "made": facts.made})
        return
    typer.echo(f"{state} is restored: {len(facts.files):,} files.")
    if not facts.secret:
        typer.echo("The backup holds no secret: put the file `secret` back before you start the service.")
    if facts.answers and accept_lost_records:
        typer.echo(
            "Orders that were signed until 5 minutes from now are refused, and jobs that were running have ended. "
            "Lower the budgets in the policy and in [privacy] by what was spent since the backup."
        )
