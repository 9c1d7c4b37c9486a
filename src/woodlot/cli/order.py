"""``woodlot order``: sign a job for an engine that runs it, NVFlare or Flower, without asking a coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from woodlot.cli._client import Access, AsJson, IdentityOption, JobFile, print_json, reporting
from woodlot.cli.train import order_maker, parse_job
from woodlot.exceptions import ConfigError, ModelFileError

_NOWHERE = "engine:0"  # what a job file for an engine need not say


def order(
    job: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="What to grow, as for `woodlot train`.")],
    certificates: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Certificates of the parties and the coordinator, in .pem files.")
    ],
    nvflare: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a job that can be submitted to NVFlare.")
    ] = None,
    flower: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the settings of a run of Flower, a TOML file.")
    ] = None,
    identity: IdentityOption = None,
    as_json: AsJson = False,
) -> None:
    """Sign the order of a training for NVFlare or Flower.

    Each party's table and label are sealed to its certificate. The same order, run again, goes on where it was.
    """
    with reporting(as_json):
        if (flower is None) == (nvflare is None):
            raise ConfigError("say where the order goes: --nvflare FOLDER, or --flower FILE")
        file = JobFile.read(job)
        access = Access.find(file.raw.get("coordinator") or _NOWHERE, identity, file, positional=True)
        config = parse_job(dict(file.raw), file, access)
        make = order_maker(config, file.origin)

        from woodlot.connected import federation_at
        from woodlot.engines.nvflare_job import write_job
        from woodlot.engines.signed_order import OrderDesk, SignedOrder
        from woodlot.service.client import Client

        if config.job.lead == "holder":
            raise ConfigError("lead = 'holder' needs a coordinator's service; take it out, or use woodlot train")
        desk = OrderDesk(access.identity, certificates)
        settings = config.job
        federation = federation_at(
            cast(Client, desk),  # what the parties are and the fields of an order: all that is asked of it
            tables=settings.tables,
            parties=settings.parties,
            align=config.align.method,
            layout=settings.layout,
            lead="coordinator",
        )
        signed = SignedOrder.by(desk.identity, make(federation))
        if nvflare is not None:
            write_job(signed, nvflare)
        elif flower is not None:
            try:
                flower.write_text(f'order = "{signed.encode()}"\n')
            except OSError as error:
                raise ModelFileError(f"the order cannot be written to {flower}: {error.strerror}") from None
    content, out = signed.content, nvflare or flower
    if as_json:
        print_json({"job": content.job, "parties": list(content.parties), "out": str(out)})
        return
    typer.echo(f"{out} has order {content.job} for {', '.join(content.parties)}.")
    run = f"nvflare job submit -j {nvflare}" if nvflare else f"flwr run examples/flower --run-config {flower}"
    typer.echo(f"Run it with: {run}")
