"""``woodlot report``: write a signed compliance report of a coordinator or a party."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from woodlot.cli._client import reporting
from woodlot.exceptions import ConfigError, MissingExtraError


def report(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="coordinator.toml or party.toml.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write it.")] = Path("report.html"),
    first: Annotated[str, typer.Option("--from", metavar="DAY", help="First day, such as 2026-08-01.")] = "",
    last: Annotated[str, typer.Option("--to", metavar="DAY", help="Last day; today if omitted.")] = "",
) -> None:
    """Write what a coordinator or a party knows of its federation as one HTML file, signed by it.

    It has members and certificates, jobs of the period with their checked records, who learnt what, models, receipts,
    privacy budgets and limits. Reads the state folder only, also while the service runs. The last 90 days are reported
    unless you say otherwise. Check a report with `woodlot audit verify`; print it for a PDF.
    """
    with reporting(False):
        try:
            from woodlot.dashboard.party_view import PartyView
            from woodlot.dashboard.report import Period, report_of_coordinator, report_of_party
            from woodlot.dashboard.templating import page_templates
            from woodlot.dashboard.views import CoordinatorView
        except ImportError as error:
            raise MissingExtraError(
                f"reports need more packages ({error.name}): pip install 'woodlot[dashboard]'", name=error.name
            ) from None
        from woodlot.cli.dashboard import read_config
        from woodlot.jobs.kind import known
        from woodlot.service.config import CoordinatorConfig

        known()  # messages of other packages' kinds, too, or it would not be known what they tell
        period, settings, templates = Period.read(first, last), read_config(config), page_templates()
        if isinstance(settings, CoordinatorConfig):
            made = report_of_coordinator(CoordinatorView(settings), period, templates)
        else:
            made = report_of_party(PartyView(settings), period, templates)
        try:
            out.write_bytes(made.to_bytes())
        except OSError as error:
            raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from None
        typer.echo(f"{out} has the report of {period.first} to {period.last}, signed.")
