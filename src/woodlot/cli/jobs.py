"""``woodlot jobs``: what you have ordered, how it stands, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    check_place,
    detached,
    find_job,
    finish,
    follow,
    plain,
    print_json,
    reach,
    refuse_options_before,
    reporting,
)
from woodlot.cli.predict import answers_stay, check_out
from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import JobFacts
    from woodlot.service.client import Client

jobs = typer.Typer(
    name="jobs",
    invoke_without_command=True,
    help="List your jobs; attach to one, cancel, resume or show it.",
    epilog="An id may be shortened to any beginning that no other job has.",
)

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, or its beginning.")]


@jobs.callback()
def listed(
    ctx: typer.Context,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    every: Annotated[bool, typer.Option("--all", help="List all, not only the latest 200.")] = False,
    as_json: AsJson = False,
) -> None:
    """List your jobs, newest first; attach to one, cancel, resume or show it."""
    if ctx.invoked_subcommand is not None:
        refuse_options_before(ctx, "woodlot jobs attach JOB --json")
        return
    with reporting(as_json), reach(Access.find(coordinator, identity, JobFile.read(job))) as client:
        known = list(client.all_jobs()) if every else client.jobs()
    if as_json:
        print_json({"jobs": [plain(facts) for facts in known]})
        return
    from woodlot.cli import _show as show
    from woodlot.jobs.kind import outcome_of

    console = show.stdout()
    if not known:
        console.print("You have no jobs here. Order one with: woodlot train job.toml")
        return
    rows = [
        (
            facts.job[:SHORT],
            facts.kind,
            show.state(facts),
            show.moment(facts.created, year=False),
            "" if facts.started is None or facts.ended is None else show.duration(facts.ended - facts.started),
            ", ".join(facts.parties),
            facts.name or (facts.model[:SHORT] if outcome_of(facts.kind) in ("answers", "own answers") else ""),
        )
        for facts in known
    ]
    headings = ("job", "kind", "state", "ordered", ">took", "parties", "model")
    console.print(show.table(headings, rows, wrapped=("state", "parties", "model")))


@jobs.command()
def attach(
    job: Job,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where the answers go (.csv, .parquet), or a revocation's receipt."),
    ] = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    file: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Follow a job to its end, and show the outcome; Ctrl-C detaches.

    --out fetches the answers of a prediction, or the receipt of a revocation.
    """
    with reporting(as_json):
        access = Access.find(coordinator, identity, JobFile.read(file))
        with reach(access) as client:
            facts = client.job(find_job(client, job))
            _check_out(facts, out)
            facts = follow(client, facts, access, as_json=as_json, out=out)
            _say(client, facts, access, as_json=as_json, out=out)


@jobs.command()
def resume(
    job: Job,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    file: JobFileOption = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a job that has stopped because a party stayed away, and follow it."""
    with reporting(as_json):
        access = Access.find(coordinator, identity, JobFile.read(file))
        with reach(access) as client:
            facts = client.resume(find_job(client, job))
            if detach:
                detached(facts, access, as_json=as_json)
                return
            facts = follow(client, facts, access, as_json=as_json)
            _say(client, facts, access, as_json=as_json, out=None)


@jobs.command()
def cancel(
    job: Job,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    file: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """End a job for good."""
    with reporting(as_json):
        access = Access.find(coordinator, identity, JobFile.read(file))
        with reach(access) as client:
            name = find_job(client, job)
            client.cancel(name)
            facts = client.follow(name)
    if as_json:
        print_json(plain(facts))
    else:
        late = " before it could be cancelled" if facts.state != "cancelled" else ""
        typer.echo(f"Job {facts.job[:SHORT]} {facts.standing}{late}.")
    if facts.state != "cancelled":
        raise typer.Exit(1)


@jobs.command()
def show(
    job: Job,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    file: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Show how a job stands, without waiting."""
    with reporting(as_json), reach(Access.find(coordinator, identity, JobFile.read(file))) as client:
        facts = client.job(find_job(client, job))
    if as_json:
        print_json(plain(facts))
        return
    from woodlot.cli import _show

    took = None if facts.started is None or facts.ended is None else facts.ended - facts.started
    progress = f"{facts.done:,}/{facts.total:,}" if facts.total and facts.phase in _show.UNITS else ""
    console = _show.stdout()
    console.print(
        _show.facts_grid(
            {
                "job": facts.job,
                "kind": facts.kind,
                "state": _show.state(facts),
                "why": facts.error,
                "phase": f"{facts.phase} {progress} {facts.note}".strip() if facts.state == "running" else "",
                "parties": ", ".join(facts.parties),
                "model": facts.model,
                "name": facts.name,
                "ordered": _show.moment(facts.created),
                "took": "" if took is None else _show.duration(took),
                "rows": "" if facts.n_rows is None else f"{facts.n_rows:,}",
                "score": "" if facts.score is None else f"{facts.score:.4f}",
                "sent": _show.by_party(facts.bytes_by_party, _show.amount),
                "rounds": f"{facts.rounds:,}" if facts.rounds else "",
            }
        )
    )


def _check_out(facts: JobFacts, out: Path | None) -> None:
    """Refuse a file for a job that has nothing to put into it, and one that cannot be written."""
    from woodlot.jobs.kind import outcome_of

    if out is None:
        return
    match outcome_of(facts.kind):
        case "receipt" | "erasure":
            check_place(out)
        case "answers":
            check_out(out)
        case "own answers":
            raise answers_stay(facts.model[:SHORT])
        case _:
            raise ConfigError(
                "--out is for the answers of a prediction and the receipt of a revocation or of forgotten rows; job "
                f"{facts.job[:SHORT]} is of the kind {facts.kind!r}: leave --out away"
            )


def _say(client: Client, facts: JobFacts, access: Access, *, as_json: bool, out: Path | None) -> None:
    """The outcome of any kind of job."""
    from woodlot.cli.align import say_aligned
    from woodlot.cli.forget import say_forgotten
    from woodlot.cli.predict import say_predicted, say_rows_predicted
    from woodlot.cli.revoke import say_revoked
    from woodlot.cli.train import say_trained
    from woodlot.jobs.kind import outcome_of

    match outcome_of(facts.kind):
        case "model":
            say_trained(client, facts, access, as_json=as_json)
        case "rows":
            say_aligned(facts, access, as_json=as_json)
        case "answers":
            say_predicted(client, facts, access, as_json=as_json, out=out, answers=out is not None)
        case "own answers":
            say_rows_predicted(client, facts, access, as_json=as_json)
        case "receipt":
            say_revoked(client, facts, access, out, as_json=as_json)
        case "erasure":
            say_forgotten(client, facts, access, out, as_json=as_json)
        case _ if finish(facts, access, as_json=as_json):
            told = "" if facts.told == "null" else f" It tells: {facts.told}"
            typer.echo(f"Job {facts.job} {facts.standing}.{told}")
