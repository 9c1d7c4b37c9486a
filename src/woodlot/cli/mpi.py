"""``woodlot mpi``: the parties of one cluster grow a forest, one rank each; rank 0 coordinates."""

from __future__ import annotations

import array
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import AsJson, quiet_logs, reporting
from woodlot.exceptions import ConfigError, ModelFileError, WoodlotError

if TYPE_CHECKING:
    from woodlot.cli._mpi_coordinator import RankZero
    from woodlot.cli._mpi_party import Rank
    from woodlot.service.config import JobConfig

_SECRET_BYTES = 32
_REST_SECONDS = 0.01


def mpi(
    job: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job, with a section [mpi.PARTY] per party.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the model goes; its name, or model, if left.")
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Secret of the parties, not read by rank 0; drawn anew if left."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Grow a forest on one cluster: `mpirun -n 3 woodlot mpi job.toml`.

    Rank 0 coordinates; ranks 1, 2, ... are the parties of the sections [mpi.PARTY] in their order, and each reads only
    its own table. Every party's part goes to FOLDER/party-NAME, the coordinator's to FOLDER/coordinator.
    """
    from woodlot.runtime.drivers.mpi_carrier import abort_on_error, rank

    quiet_logs()
    with reporting(as_json and rank() == 0):
        told: WoodlotError | typer.Exit | None = None
        with abort_on_error():  # of what nobody has thought of: the other ranks would wait for ever
            try:
                _run(job, out, secret, as_json)
            except (WoodlotError, typer.Exit) as error:  # of these all ranks know
                told = error
        if told is not None:
            raise told


def _run(job: Path, out: Path | None, secret: Path | None, as_json: bool) -> None:
    """Read the job at every rank; if one of them cannot, none begins: the others would wait for it for ever."""
    from woodlot.runtime.drivers.mpi_carrier import rank

    place: RankZero | Rank | None = None
    problem: WoodlotError | None = None
    try:
        place = _place(MpiJob(job, out, secret))
    except WoodlotError as error:
        problem = error
    failed, failed_at_zero = _add_up(int(problem is not None), int(problem is not None and rank() == 0))
    if problem is not None and (rank() == 0 or not failed_at_zero):
        raise problem
    if failed and rank() != 0:
        raise typer.Exit(1)  # rank 0 has said why
    if failed or place is None:
        raise ConfigError("a party's rank cannot begin; its own line says why")
    place.run(_share_secret(), as_json=as_json)


class MpiJob:
    """What every rank knows of the job.

    Parameters
    ----------
    path : Path
        The job file.
    out, secret : Path or None
        What the options say.

    """

    def __init__(self, path: Path, out: Path | None, secret: Path | None) -> None:
        from woodlot.service.config import JobConfig

        self.path = path
        self.config: JobConfig = JobConfig.load(path)
        self.parties = tuple(self.config.mpi)
        if not self.parties:
            raise ConfigError(f"{path} has no section [mpi.PARTY]; add one with the table of each party")
        if self.config.job.parties is not None and set(self.config.job.parties) != set(self.parties):
            raise ConfigError(f"{path}: job.parties must be those of [mpi]: {', '.join(self.parties)}")
        self.folder = out or Path(self.config.job.name or "model")
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise ModelFileError(f"{self.folder} is not an empty folder; name a new one with --out")
        size = _library().COMM_WORLD.Get_size()
        if size != len(self.parties) + 1:
            raise ConfigError(
                f"{path} has {len(self.parties)} parties, so {len(self.parties) + 1} ranks are needed, not {size}: "
                f"mpirun -n {len(self.parties) + 1} woodlot mpi {path}"
            )
        self.secret_file = secret


def _place(job: MpiJob) -> RankZero | Rank:
    """This rank's part in the job. All that takes long to load is loaded here: ranks that wait in MPI take a core."""
    from woodlot.runtime.drivers.mpi_carrier import rank

    if rank() == 0:
        from woodlot.cli._mpi_coordinator import RankZero

        return RankZero(job)
    from woodlot.cli._mpi_party import Rank

    return Rank(job, job.parties[rank() - 1])


# --- between the ranks ---


def _library() -> Any:
    from mpi4py import MPI

    return MPI


def _add_up(*own: int) -> list[int]:
    """The sum of each number over all ranks."""
    mpi = _library()
    terms, sums = array.array("i", own), array.array("i", [0] * len(own))  # both must live until all is done
    request = mpi.COMM_WORLD.Iallreduce([terms, mpi.INT], [sums, mpi.INT], mpi.SUM)
    while not request.Test():
        time.sleep(_REST_SECONDS)
    return list(sums)


def _share_secret() -> bytes:
    """A secret of the parties' ranks: rank 1 draws it and gives it to the others; rank 0 is not among them."""
    mpi = _library()
    world = mpi.COMM_WORLD
    among = world.Split(mpi.UNDEFINED if world.Get_rank() == 0 else 1, world.Get_rank())
    if world.Get_rank() == 0:
        return b""
    drawn = bytearray(os.urandom(_SECRET_BYTES) if among.Get_rank() == 0 else bytes(_SECRET_BYTES))
    among.Bcast([drawn, mpi.BYTE], 0)
    among.Free()
    return bytes(drawn)
