"""``woodlot coordinator``: the process that parties and users dial."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from woodlot.cli._service import LogLevel, LogLevelOption, serve, start_logging


def coordinator(
    config: Annotated[Path, typer.Argument(help="The coordinator's configuration, a TOML file.")],
    log_level: LogLevelOption = LogLevel.info,
) -> None:
    """Run the coordinator of a federation until it is told to end."""
    from woodlot.service.config import CoordinatorConfig
    from woodlot.service.coordinator import Coordinator

    settings = CoordinatorConfig.load(config)
    start_logging(settings.log_format, log_level)
    service = Coordinator(settings)
    service.start()
    serve(service)
