"""``woodlot revoke``: have a party leave a forest, and keep the receipt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    SHORT,
    Access,
    AsJson,
    CoordinatorOption,
    Detach,
    IdentityOption,
    JobFile,
    JobFileOption,
    LeadOption,
    TablesOption,
    check_place,
    connecting,
    detached,
    finish,
    follow,
    lead_of,
    parse_tables,
    print_json,
    quiet_logs,
    reporting,
)
from woodlot.cli._rows import SplitOption, SplitSeedOption
from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import JobFacts
    from woodlot.service.client import Client


def revoke(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name, id, or the beginning of its id.")],
    party: Annotated[str, typer.Argument(metavar="PARTY", help="Who leaves.")],
    level: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=3,
            help="1: its nodes and all under them; 2: and new keys; 3: exact, on the training's rows. By default 1; 3 "
            "for hidden forests and forests over rows.",
        ),
    ] = None,
    y: Annotated[
        str | None,
        typer.Option("--y", metavar="PARTY.COLUMN", help="The label of the training; COLUMN for a forest over rows."),
    ] = None,
    tables: TablesOption = None,
    sample_weight: Annotated[
        str | None,
        typer.Option(
            metavar="PARTY.COLUMN",
            help="Weights of the rows, as in the training. Every party gets them in clear, but for a forest over rows.",
        ),
    ] = None,
    allow_two: Annotated[
        bool,
        typer.Option("--allow-two", help="Let secure sums be of two where two stay: each learns the other's numbers."),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(metavar="PARTY", help="The second server, for a forest of --protection hidden."),
    ] = None,
    split: SplitOption = None,
    split_seed: SplitSeedOption = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where the receipt goes.")] = None,
    lead: LeadOption = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    file: JobFileOption = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> None:
    """Take a party out of a forest between organisations.

    Name the job.toml of the training with --job, or its --y and --tables. The user who ordered the model can have any
    party leave; with a party's own --identity that party leaves, and no other. The model stays in use until the one
    without the party is complete; that one has a new id. `woodlot audit verify FILE` checks the receipt. For a forest
    over rows that was trained with --split, give the same --split.
    """
    with reporting(as_json):
        if out is not None:
            check_place(out)
        job = JobFile.read(file)
        access = Access.find(coordinator, identity, job)
        settings = job.raw.get("job", {})
        label = y or settings.get("y")
        named = parse_tables(tables) if tables else settings.get("tables")
        if not isinstance(label, str) or named is None:
            raise ConfigError("name the job.toml of the training with --job, or add --y bank.default and --tables")
        _run(access, model, party, level, label, sample_weight or settings.get("sample_weight"), named, out,
             lead=lead_of(lead, job), server=server or settings.get("server"), allow_two=allow_two, detach=detach,
             as_json=as_json,
             held_out=_held_out(split, split_seed, settings))  # fmt: skip


def _held_out(split: float | None, seed: int | None, settings: Mapping[str, Any]) -> tuple[float, int] | None:
    """What the training of a forest over rows has held out: a share and a seed."""
    share = split if split is not None else settings.get("split")
    if share is None:
        if seed is not None:
            raise ConfigError("--split-seed says which rows --split has held out: give --split, too")
        return None
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigError(f"--split {share}: give a share between 0 and 1, such as 0.25")
    return float(share), int(seed if seed is not None else settings.get("split_seed", 0))


def _run(
    access: Access,
    model: str,
    party: str,
    level: int | None,
    label: str,
    weight: str | None,
    tables: Any,
    out: Path | None,
    *,
    lead: Any,
    server: str | None,
    allow_two: bool,
    detach: bool,
    as_json: bool,
    held_out: tuple[float, int] | None,
) -> None:
    from woodlot.connected import connect
    from woodlot.connected.connected_estimators import revocation_order

    quiet_logs()
    with connecting(access):
        federation = connect(access.address, access.identity, tables=tables, lead=lead, server=server)
    with federation:
        client = federation.client
        facts = client.find_model(model)
        order = revocation_order(federation, facts, party, level, label, weight, allow_two=allow_two, held_out=held_out)
        ordered = client.submit(order)
        if detach:
            detached(ordered, access, as_json=as_json, out=out)
            return
        done = follow(client, ordered, access, as_json=as_json, out=out)
        say_revoked(client, done, access, out, as_json=as_json)


def say_revoked(client: Client, done: JobFacts, access: Access, out: Path | None, *, as_json: bool) -> None:
    """The outcome of a revocation: the receipt, in a file where one is named."""
    from woodlot.identity.certificates import AUTHORITY

    if done.state != "done":
        finish(done, access, as_json=as_json)
    receipt = client.receipt(done.job)
    if out is not None:
        receipt.save(out)
    model = done.job
    if as_json:
        statement = receipt.statement
        print_json(
            {
                "model": model,
                "party": statement.party,
                "level": statement.level,
                "removed": statement.removed,
                "regrown": statement.regrown,
                "rows": statement.rows,
                "receipt": None if out is None else str(out),
            }
        )
        return
    from woodlot.cli import _show as show

    console = show.stdout()
    console.print(f"{receipt!r}", soft_wrap=True, highlight=False)
    console.print(receipt.statement.rows_in_words, soft_wrap=True, highlight=False)
    console.print(f"The model is now {model}.", soft_wrap=True, highlight=False)
    if out is None:
        again = access.command("jobs", "attach", done.job[:SHORT], "--out", "receipt.json")
        console.print(f"To keep the receipt: {again}", soft_wrap=True, highlight=False)
    else:
        authority = access.identity / AUTHORITY
        console.print(f"Check the receipt with: woodlot audit verify {out} --authority {authority}", soft_wrap=True)
