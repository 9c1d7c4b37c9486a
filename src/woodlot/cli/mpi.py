"""``woodlot mpi``: jobs of one cluster, with a rank for each party; rank 0 coordinates."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    COORDINATOR_ENV,
    IDENTITY_ENV,
    LEAD_ENV,
    TABLES_ENV,
    Access,
    AsJson,
    command_prefix,
    follow,
    reporting,
)
from woodlot.exceptions import ConfigError, ModelFileError, WoodlotError

if TYPE_CHECKING:
    from woodlot.connected import ConnectedFederation
    from woodlot.engines.mpi import MpiJob
    from woodlot.service.client import Client

# Typer's own parser has had several homes, and what it raises has no public name.
_WrongLine: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

STATE = "mpi-state"
"""The state folder beside the job file, unless another is named."""


def mpi(
    job: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job, with a section [mpi.PARTY] per party.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND ...]", help="What to do at rank 0 instead of training: -- predict ..."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where a copy of the trained model goes; its name, or model, if omitted."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help=f"Where ranks keep models and journals; {STATE} beside the job file if omitted."
        ),
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Secret of the parties, not read by rank 0; random if omitted."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model on one cluster: `mpirun -n 3 woodlot mpi job.toml`.

    Rank 0 coordinates; ranks 1, 2, ... are the parties of the sections [mpi.PARTY] in their order. Each reads only its
    own table, checks every order against its own policy, and keeps its own part of the model.

    Then use the model, or run any other command of a user: `mpirun -n 3 woodlot mpi job.toml -- predict --model risk
    --out answers.csv`.
    """
    from woodlot.engines.mpi import MpiJob, OtherRankFailedError, run_ranks
    from woodlot.runtime.drivers.mpi_carrier import rank

    number = rank()
    _log_errors(number)
    made: list[MpiJob] = []
    folder: list[Path] = []

    def make() -> MpiJob:
        made.append(MpiJob(job, state or job.absolute().parent / STATE, secret))
        if command:
            _check_command(command, out, as_json)
        else:
            folder.append(_out_folder(out or Path(made[0].config.job.name or "model")))
        return made[0]

    def main(federation: ConnectedFederation) -> str:
        from woodlot.cli._show import is_terminal

        is_terminal.set(False)  # mpirun gives ranks a terminal, whoever reads its own output
        options = [] if state is None else ["--state", str(state)]
        prefix = ["mpirun", "-n", str(1 + len(made[0].parties)), "woodlot", "mpi", str(job), *options, "--"]
        with command_prefix(*prefix):
            if command:
                return _run_command(command, federation.client, made[0])
            return _train(made[0], federation, folder[0], as_json=as_json)

    with reporting(as_json and number == 0):
        try:
            model = run_ranks(make, main)
        except _CommandEnded as ended:
            raise typer.Exit(ended.code) from None
        except OtherRankFailedError:
            raise typer.Exit(1) from None
        if number > 0 and model and folder:
            _copy_part(made[0], made[0].parties[number - 1], model, folder[0])


class _CommandEnded(WoodlotError):  # noqa: N818 - what has happened
    """A command at rank 0 has ended with this code, and has said why."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the command has ended with {code}")
        self.code = code


def _log_errors(number: int) -> None:
    """Errors of a rank go to its standard error, which mpirun passes on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.ERROR)
    handler.setFormatter(logging.Formatter(f"woodlot: rank {number}: %(message)s"))
    logging.getLogger("woodlot").addHandler(handler)


# --- training ---


def _out_folder(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelFileError(f"{folder} is not an empty folder; name a new one with --out")
    return folder


def _train(job: MpiJob, federation: ConnectedFederation, folder: Path, *, as_json: bool) -> str:
    """Train, and write the coordinator's part; returns the model's id."""
    from woodlot.cli.train import order_maker, say_trained

    client = federation.client
    access = Access(client.address, job.user, ())
    facts = client.submit(order_maker(job.config, str(job.path))(federation))
    facts = follow(client, facts, access, as_json=as_json)
    more = None
    if facts.state == "done":
        _write_part(client, facts.model, folder)
        more = {"out": str(folder)}
    try:
        say_trained(client, facts, access, as_json=as_json, config=job.config, more=more)
    except typer.Exit as ended:
        raise _CommandEnded(ended.exit_code) from None
    if not as_json:
        _say_where(folder, job)
    return facts.model


def _write_part(client: Client, model: str, folder: Path) -> None:
    """Put the coordinator's part beside those that the parties write, if they see the same disk."""
    from woodlot.connected.connected_estimators import save_part

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as scratch:
            save_part(client.model(model), Path(scratch) / "model")
            for part in (Path(scratch) / "model").iterdir():
                part.rename(folder / part.name)
    except OSError as error:
        raise ModelFileError(f"the model cannot be written to {folder}: {error.strerror}") from None


def _copy_part(job: MpiJob, party: str, model: str, folder: Path) -> None:
    own, target = job.model_folder(party, model), folder / job.party_folder(party).name
    try:
        if own.is_dir():  # a party without a split, or of a model that is whole, has none
            shutil.copytree(own, target)
    except OSError as error:
        raise ModelFileError(f"the part of {party} cannot be written to {target}: {error.strerror}") from None


def _say_where(folder: Path, job: MpiJob) -> None:
    by_columns = job.config.job.layout == "columns"
    parts = ", with a folder beside it for the part of each party" if by_columns else ""
    lines = [f"The model is in {folder / 'coordinator' if by_columns else folder}{parts}."]
    lines += ["In Python:", f"  model = woodlot.load({str(folder)!r})"]
    if by_columns and "kind" not in job.config.forest:
        named = ", ".join(repr(str(folder / job.party_folder(party).name)) for party in job.parties)
        lines += [f"  whole = model.combine([{named}])"]
    if job.config.forest.get("random_state") is not None and job.secret is None:
        lines += [
            "",
            "Codes of columns and the order of rows follow from secrets of this state folder and of this run. With "
            "--secret FILE the same random_state gives the same model again.",
        ]
    typer.echo("\n" + "\n".join(lines))


# --- other commands ---


def _check_command(command: list[str], out: Path | None, as_json: bool) -> None:
    if command[0] == "mpi":
        raise ConfigError("woodlot mpi cannot run itself; name another command after --")
    if out is not None or as_json:
        raise ConfigError("with a command, --out and --json belong to it: write them after --")


def _run_command(command: list[str], client: Client, job: MpiJob) -> str:
    """Run a user's command at rank 0, as `woodlot` does elsewhere; it finds the coordinator in the environment."""
    from woodlot.cli import app

    access = {COORDINATOR_ENV: client.address, IDENTITY_ENV: str(job.user), TABLES_ENV: _table()}
    os.environ |= access | {LEAD_ENV: "coordinator"}  # one owner has all ranks, and rank 0 runs all jobs
    group = typer.main.get_command(app)
    try:
        code = group.main(command, prog_name="woodlot", standalone_mode=False)
    except _WrongLine as error:
        error.show()
        code = error.exit_code
    if isinstance(code, int) and code:
        raise _CommandEnded(code)
    return ""


def _table() -> str:
    from woodlot.engines.mpi import TABLE

    return TABLE
