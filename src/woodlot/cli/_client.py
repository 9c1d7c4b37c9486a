"""What the commands that ask a coordinator share: where it is, who asks, following a job, and results as JSON."""

from __future__ import annotations

import json
import logging
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._text import spelled_out
from woodlot.exceptions import ConfigError, DataError, WoodlotError

if TYPE_CHECKING:
    from woodlot.connected.ordered_reports import AnyConnected
    from woodlot.jobs.approvals import Approval
    from woodlot.jobs.job_messages import JobFacts, ModelFacts
    from woodlot.jobs.orders import Order
    from woodlot.service.client import Client

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""

COORDINATOR_ENV = "WOODLOT_COORDINATOR"
IDENTITY_ENV = "WOODLOT_IDENTITY"
TABLES_ENV = "WOODLOT_TABLES"
LEAD_ENV = "WOODLOT_LEAD"

SHORT = 8
"""Digits of a job's or model's id that are shown; any unique beginning is understood."""
WHOLE = 32

_AWAY_SECONDS = 600.0
"""How long a job is followed while its coordinator is away: time enough to restart it."""

CoordinatorOption = Annotated[
    str | None,
    typer.Option("--coordinator", envvar=COORDINATOR_ENV, metavar="HOST:PORT", help="Where the coordinator is."),
]
IdentityOption = Annotated[
    Path | None,
    typer.Option("--identity", envvar=IDENTITY_ENV, metavar="FOLDER", help="Your key and certificate."),
]
JobFileOption = Annotated[
    Path | None, typer.Option("--job", metavar="FILE", help="Read coordinator and identity from this job.toml.")
]
JobFileArgument = Annotated[
    Path | None, typer.Argument(metavar="JOB.TOML", help="Settings of the job; options come before them.")
]
TablesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tables",
        envvar=TABLES_ENV,
        metavar="[PARTY=]NAME",
        help="Table of each party, or one name for all; repeat it.",
    ),
]
PartiesOption = Annotated[
    list[str] | None, typer.Option("--party", metavar="NAME", help="Who takes part, if not all; repeat it.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Return at once; the job goes on.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


# --- where, and who ---


class Leader(StrEnum):
    """Whose process runs a training over columns."""

    coordinator = "coordinator"
    holder = "holder"


LeadOption = Annotated[
    Leader | None,
    typer.Option(
        "--lead",
        envvar=LEAD_ENV,
        help="Say coordinator to use a model that no party leads; the coordinator then reads it.",
    ),
]


def lead_of(given: Leader | None, file: JobFile) -> Any:
    """Who leads, by the option or else by the file of the training."""
    if given is not None:
        return given.value
    section = file.raw.get("job")
    lead = section.get("lead") if isinstance(section, dict) else None
    if lead is not None and lead not in list(Leader):
        raise ConfigError(f"{file.origin}: job.lead must be 'holder' or 'coordinator', not {lead!r}")
    return lead


@dataclass(frozen=True)
class JobFile:
    """A job.toml as it was read; all of it is optional here.

    Attributes
    ----------
    path : Path or None
        The file, if there is one.
    raw : dict
        Its settings.

    """

    path: Path | None = None
    raw: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None) -> JobFile:
        """Read a file, or nothing."""
        if path is None:
            return cls()
        from woodlot.service.settings import read_toml

        return cls(path, read_toml(path))

    @property
    def folder(self) -> Path:
        """What paths in the file are relative to."""
        return Path.cwd() if self.path is None else self.path.absolute().parent

    @property
    def origin(self) -> str:
        """What errors call it."""
        return "the command line" if self.path is None else str(self.path)


@dataclass(frozen=True)
class Access:
    """Where a coordinator is and who asks it.

    Attributes
    ----------
    address : str
        ``host:port``.
    identity : Path
        The user's folder.
    options : tuple of str
        What a further command must be given to find both.

    """

    address: str
    identity: Path
    options: tuple[str, ...]

    @classmethod
    def find(cls, coordinator: str | None, identity: Path | None, file: JobFile, *, positional: bool = False) -> Access:
        """From options and environment, and then from a job file.

        Parameters
        ----------
        coordinator, identity
            What the options or the environment say.
        file : JobFile
            Asked for what they do not say.
        positional : bool
            Whether the command takes the file as its argument rather than with ``--job``.

        """
        from woodlot.service.settings import Address

        address, folder = coordinator or file.raw.get("coordinator"), identity
        if not address:
            add = "it as the first argument" if positional else "--job FILE"
            raise ConfigError(
                f"no coordinator given: pass --coordinator HOST:PORT, set {COORDINATOR_ENV}, or name a job.toml "
                f"that has it ({add})"
            )
        if folder is None and file.path is not None:
            said = file.raw.get("identity", "identity")
            if not isinstance(said, str) or not said:
                raise ConfigError(f"{file.origin}: identity must be a folder")
            folder = file.folder / Path(said).expanduser()
        if folder is None:
            raise ConfigError(
                f"who are you? Say --identity FOLDER, or set {IDENTITY_ENV}: the folder of `woodlot identity request` "
                "and `install`"
            )
        try:
            Address.parse(address)
        except ValueError as error:
            raise ConfigError(f"coordinator: {error}") from None
        return cls(str(address), folder, _options_again(coordinator, identity, file))

    def command(self, *words: str) -> str:
        """A further command as one types it."""
        return shlex.join([*_prefix.get(), *words, *self.options])


_prefix: ContextVar[tuple[str, ...]] = ContextVar("prefix", default=("woodlot",))


@contextmanager
def command_prefix(*words: str) -> Iterator[None]:
    """Have further commands be shown as they are typed here, where that is not ``woodlot COMMAND``."""
    token = _prefix.set(words)
    try:
        yield
    finally:
        _prefix.reset(token)


def _options_again(coordinator: str | None, identity: Path | None, file: JobFile) -> tuple[str, ...]:
    """What of the environment is not there anyway must be said again."""
    again: list[str] = []
    if coordinator is not None and coordinator != os.environ.get(COORDINATOR_ENV):
        again += ["--coordinator", coordinator]
    if identity is not None and str(identity) != os.environ.get(IDENTITY_ENV):
        again += ["--identity", str(identity)]
    if file.path is not None and (coordinator is None or identity is None):
        again += ["--job", str(file.path)]
    return tuple(again)


@contextmanager
def reach(access: Access) -> Iterator[Client]:
    """A line to the coordinator."""
    from woodlot.service.client import Client

    quiet_logs()
    with Client(access.address, access.identity) as client:
        with connecting(access):
            client.parties()
        yield client


@contextmanager
def connecting(access: Access) -> Iterator[None]:
    """On a terminal, say that the coordinator is being called: one that is not there is waited for."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield
        return
    with console.status(f"calling {access.address}"):
        yield


def quiet_logs() -> None:
    """Keep the library's log lines off the terminal: what matters is raised, and told in one line."""
    logging.getLogger("woodlot").addHandler(logging.NullHandler())


# --- results ---


def print_json(document: Any) -> None:
    """The one JSON document of a command."""
    typer.echo(json.dumps(document, indent=2))


def one_line(error: object) -> str:
    """What an error says, as it is told on standard error and in JSON."""
    return spelled_out(" ".join(str(error).split()))


@contextmanager
def reporting(as_json: bool) -> Iterator[None]:
    """With ``--json`` an error is a document too: a script need not read standard error."""
    try:
        yield
    except WoodlotError as error:
        if as_json:
            print_json({"error": {"kind": type(error).__name__, "message": one_line(error)}})
        raise


def plain(facts: JobFacts | ModelFacts | Approval) -> dict[str, Any]:
    """Facts as JSON has them."""
    import msgspec

    known: dict[str, Any] = msgspec.to_builtins(facts)
    for name in ("settings", "disclosure", "cost", "privacy"):  # of models: JSON within JSON
        if name in known:
            known[name] = json.loads(known[name] or "null")
    return known


# --- names ---


def find_job(client: Client, beginning: str) -> str:
    """The id of the user's job that begins so."""
    if len(beginning) == WHOLE:
        return beginning
    return unique([facts.job for facts in client.all_jobs()], beginning, "job", "woodlot jobs --all")


def unique(ids: Sequence[str], beginning: str, what: str, listing: str) -> str:
    """The one id that begins so."""
    found = [known for known in ids if beginning and known.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(known[: max(SHORT, len(beginning) + 4)] for known in found[:5])
        raise DataError(f"{beginning!r} begins the ids of {len(found)} {what}s ({shown}, ...); give more of it")
    raise DataError(f"there is no {what} {beginning!r} here; `{listing}` shows those there are")


def parse_tables(given: Sequence[str]) -> str | dict[str, str]:
    """``--tables customers``, or ``--tables bank=customers --tables shop=visits``."""
    by_party: dict[str, str] = {}
    for one in given:
        party, equals, name = one.partition("=")
        if not equals and len(given) == 1 and one:
            return one
        if not (party and equals and name) or party in by_party:
            raise ConfigError(
                f"--tables {one}: say one name for all (--tables customers), or one for each party "
                "(--tables bank=customers --tables shop=visits)"
            )
        by_party[party] = name
    return by_party


# --- following ---


def follow(
    client: Client,
    facts: JobFacts,
    access: Access,
    *,
    as_json: bool,
    out: Path | None = None,
    seconds_away: float = _AWAY_SECONDS,
) -> JobFacts:
    """Show a job until it does not move any more. Ctrl-C detaches and ends the command.

    Parameters
    ----------
    client : Client
        Asks the coordinator.
    facts : JobFacts
        How the job stands.
    access : Access
        For the command that attaches again.
    as_json : bool
        Whether the last known facts are printed when the user detaches.
    out : Path or None
        Where the outcome was to go, for the same command.
    seconds_away : float
        How long to wait for a coordinator that is away, at most.

    """
    from woodlot.cli._show import watch_job

    last = facts
    attach = _attach(facts, access, out)

    def news(now: JobFacts) -> None:
        nonlocal last
        last = now
        show(now)

    try:
        with watch_job() as show:
            show(facts)
            return _follow_through_restarts(client, facts.job, news, lambda: show(None), seconds_away)
    except KeyboardInterrupt:
        if as_json:
            print_json(plain(last))
        typer.echo(f"woodlot: detached; job {facts.job[:SHORT]} goes on. To attach again: {attach}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def run_for_me(federation: AnyConnected, order: Order) -> JobFacts:
    """Run a job whose outcome only this process can read, and show how far it is."""
    from woodlot.cli._show import watch_job

    try:
        with watch_job() as show:
            return federation.run(order, show)
    except KeyboardInterrupt:
        typer.echo(
            f"woodlot: interrupted; job {order.job[:SHORT]} goes on, and what it tells is lost: only this command had "
            "the key to it. Order it again.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None


def _follow_through_restarts(
    client: Client, job: str, news: Callable[[JobFacts], None], away: Callable[[], None], patience: float
) -> JobFacts:
    from woodlot.runtime.drivers.grpc_line import CoordinatorAwayError

    until: float | None = None

    def heard(facts: JobFacts) -> None:
        nonlocal until
        until = None
        news(facts)

    while True:
        try:
            return client.follow(job, heard)
        except CoordinatorAwayError as error:
            until = time.monotonic() + patience if until is None else until
            if time.monotonic() >= until:
                raise CoordinatorAwayError(f"{error}; the job goes on when the coordinator is back") from None
            away()


def finish(facts: JobFacts, access: Access, *, as_json: bool, more: Mapping[str, Any] | None = None) -> bool:
    """Say how a job has ended, unless it is done and people read: then its kind says more.

    Returns
    -------
    bool
        Whether there is still to say it.

    """
    if as_json:
        print_json(plain(facts) | dict(more or {}))
    if facts.state == "done":
        return not as_json
    why = f": {one_line(facts.error)}" if facts.error else ""
    again = f"; to resume it: {access.command('jobs', 'resume', facts.job[:SHORT])}"
    typer.echo(
        f"woodlot: job {facts.job[:SHORT]} {facts.standing}{why}{again if facts.state == 'stopped' else ''}", err=True
    )
    raise typer.Exit(1)


def check_place(out: Path) -> None:
    """Refuse an --out whose folder is not there, or that is a folder itself, before anything is asked of others."""
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.absolute().parent}; make it first")
    if out.is_dir():
        raise ConfigError(f"--out {out}: this is a folder; name a file")


def detached(facts: JobFacts, access: Access, *, as_json: bool, out: Path | None = None) -> None:
    """Say that a job was taken, and how to look at it and have its outcome in the file that was named."""
    if as_json:
        print_json(plain(facts))
        return
    typer.echo(f"Job {facts.job} {facts.standing}. To follow it:")
    typer.echo(f"  {_attach(facts, access, out)}")


def _attach(facts: JobFacts, access: Access, out: Path | None) -> str:
    """The command that attaches to a job again."""
    return access.command("jobs", "attach", facts.job[:SHORT], *([] if out is None else ["--out", str(out)]))


def refuse_options_before(ctx: typer.Context, example: str) -> None:
    """An option between a group and its command would be lost in silence."""
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"options stand behind the command, as in: {example}")
