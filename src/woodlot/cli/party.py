"""``woodlot party``: one organisation's agent."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from woodlot.cli._service import LogLevel, LogLevelOption, serve, serve_member, start_logging


class PartyRole(StrEnum):
    """What an agent does for a federation."""

    party = "party"
    helper = "helper"


def party(
    config: Annotated[Path, typer.Argument(help="The party's configuration, a TOML file.")],
    role: Annotated[
        PartyRole, typer.Option(help="A party with its tables, or the helper of encrypted forests.")
    ] = PartyRole.party,
    log_level: LogLevelOption = LogLevel.info,
) -> None:
    """Run a party: dial the coordinator, and answer what the party's policy allows."""
    from woodlot.service.config import PartyConfig
    from woodlot.service.party import Party

    if role == PartyRole.helper:
        serve_member(config, "helper", log_level)
        return
    settings = PartyConfig.load(config)
    start_logging(settings.log_format, log_level)
    service = Party(settings)
    service.start()
    serve(service)
