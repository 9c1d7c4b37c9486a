"""``woodlot align``: find the rows that parties have in common, without showing ids."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    Access,
    AsJson,
    CoordinatorOption,
    Detach,
    IdentityOption,
    JobFile,
    JobFileArgument,
    PartiesOption,
    TablesOption,
    connecting,
    detached,
    finish,
    follow,
    parse_tables,
    quiet_logs,
    reporting,
)
from woodlot.cli.train import AlignMethod, AlignOption
from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import JobFacts
    from woodlot.service.config import JobConfig


class Join(StrEnum):
    """Which rows can be kept."""

    inner = "inner"
    outer = "outer"


JoinOption = Annotated[Join, typer.Option(help="Rows that all parties have, or that any has.")]


def align(
    job: JobFileArgument = None,
    tables: TablesOption = None,
    party: PartiesOption = None,
    method: AlignOption = None,
    join: JoinOption = Join.inner,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> None:
    """Find the rows that the parties have in common, and what each party loses.

    Ids are never sent as they are. Training and prediction do the same by themselves: this command is to look first.
    """
    with reporting(as_json):
        file = JobFile.read(job)
        access = Access.find(coordinator, identity, file, positional=True)
        settings = _settings(file, access, tables, party, method)
        from woodlot.connected import connect

        quiet_logs()
        with connect(access.address, access.identity, join=join.value, **settings) as federation:
            client = federation.client
            with connecting(access):
                facts = client.submit(federation.align_order())
            if detach:
                detached(facts, access, as_json=as_json)
                return
            facts = follow(client, facts, access, as_json=as_json)
            say_aligned(facts, access, as_json=as_json)


def _settings(
    file: JobFile, access: Access, tables: list[str] | None, parties: list[str] | None, method: AlignMethod | None
) -> dict[str, Any]:
    """Tables, parties and method for `connect`; a file must be a whole job, and is checked as one."""
    config: JobConfig | None = None
    if file.path is not None:
        from woodlot.cli.train import job_settings, parse_job

        config = parse_job(job_settings(file, {}, tables=tables, parties=parties, align=method), file, access)
        return {"tables": config.job.tables, "parties": config.job.parties, "align": config.align.method}
    if not tables:
        raise ConfigError("name a job.toml, or add --tables customers, or --tables bank=customers --tables shop=visits")
    chosen = (method or AlignMethod.keyed_hash).value
    return {"tables": parse_tables(tables), "parties": parties or None, "align": chosen}


def say_aligned(facts: JobFacts, access: Access, *, as_json: bool) -> None:
    """The outcome of an alignment."""
    if not finish(facts, access, as_json=as_json):
        return
    from woodlot.cli import _show as show

    console = show.stdout()
    n_rows = facts.n_rows or 0
    alone = "" if facts.rows else "; there is nobody to align with"
    console.print(f"[bold green]{n_rows:,}[/bold green][bold] rows in common{alone}[/bold]\n")
    if facts.rows:
        console.print(show.common_rows(facts))
        sent = show.by_party(facts.bytes_by_party, show.amount)
        seconds = show.duration((facts.ended or 0) - (facts.started or 0))
        console.print(f"\nSent: {sent}, in {facts.rounds} rounds and {seconds}.", markup=False)
