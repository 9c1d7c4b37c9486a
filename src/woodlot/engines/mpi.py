"""Jobs on one cluster of one owner: rank 0 runs the coordinator, every other rank a party (extra ``mpi``).

Coordinator and parties are those of the services: orders are signed, every party checks them against its own policy,
and what they keep stays in their state folders. Only the messages between them travel by MPI. A user at rank 0 reaches
the coordinator on its own machine, as `woodlot.connect` does elsewhere.

Rank 1 keeps the authority that signs identities. So rank 0, which passes on what parties send to each other, can make
no identity of a party.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from woodlot.connected import ConnectedFederation, connect
from woodlot.data.decoding import from_json
from woodlot.data.whole_files import private_folder, write_whole
from woodlot.engines.one_job import EngineCoordinator
from woodlot.exceptions import ConfigError, WoodlotError
from woodlot.identity import certificates as files
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import CertificateRequest, Subject
from woodlot.identity.identity import Identity, install, request
from woodlot.jobs.lasting_secret import SECRET_FILE
from woodlot.protocols.core.part_files import PARTY
from woodlot.runtime.drivers.mpi_carrier import MpiRanks, abort_on_error, check_threads, exchange, n_ranks, rank, serve
from woodlot.service.config import AlignmentConfig, CoordinatorConfig, JobConfig, PartyConfig
from woodlot.service.coordinator import SCORE
from woodlot.service.party import Party
from woodlot.service.settings import Address
from woodlot.trees.parallel import effective_jobs

T = TypeVar("T")

TABLE = "table"
"""What the table of every rank is called in orders."""

COORDINATOR = "coordinator"
USER = "mpi-user"

_AUTHORITY_RANK = 1
_HOST = "127.0.0.1"
_NOWHERE = Address("mpi:0")  # where a party would dial, if it did
_FEDERATION = "mpi"
_AUTHORITY_DAYS = 36_500
_BUNDLE = "from-authority.pem"


class OtherRankFailedError(WoodlotError):
    """A job has ended at this rank because of an error at another, which that rank reports."""


class _Asked(msgspec.Struct, frozen=True, array_like=True):
    """A request for a certificate, and whether it was signed before."""

    pem: bytes
    is_signed: bool


class MpiJob:
    """What every rank knows.

    Parameters
    ----------
    path : Path
        The job file, with a section ``[mpi.PARTY]`` for each party, in the order of ranks from 1.
    state : Path
        Where coordinator and parties keep what stays; every rank uses a folder of its own in it.
    secret : Path, optional
        File with a secret of all parties' ranks, which rank 0 does not read: under it ids are hashed, and in a new
        state folder the codes of columns follow from it. Without it parties agree on the former and draw the latter.

    Raises
    ------
    ConfigError
        If the file cannot be used, or is for another number of ranks.

    """

    def __init__(self, path: Path, state: Path, secret: Path | None = None) -> None:
        self.path, self.state, self.secret = path, state, secret
        self.config = JobConfig.load(path)
        self.parties = tuple(self.config.mpi)
        n_parties, named = len(self.parties), self.config.job.parties
        if not self.parties:
            raise ConfigError(f"{path} has no section [mpi.PARTY]; add one with the table of each party")
        if named is not None and set(named) != set(self.parties):
            raise ConfigError(f"{path}: job.parties must be those of [mpi]: {', '.join(self.parties)}")
        if n_ranks() != n_parties + 1:
            raise ConfigError(
                f"{path} has {n_parties} parties, so {n_parties + 1} ranks are needed, not {n_ranks()}: "
                f"mpirun -n {n_parties + 1} woodlot mpi {path}"
            )
        coordinator = Subject("coordinator", COORDINATOR), state / "coordinator" / "identity"
        self._members = [  # by rank, whose identities it has, and where
            [coordinator, (Subject("user", USER), self.user)],
            *([(Subject("party", party), self.party_folder(party) / "identity")] for party in self.parties),
        ]

    @property
    def user(self) -> Path:
        """At rank 0, the folder of the user's key and certificate."""
        return self.state / "user"

    def party_folder(self, party: str) -> Path:
        """At a party's rank, the folder of its identity and its state."""
        return self.state / f"{PARTY}{party}"

    def model_folder(self, party: str, model: str) -> Path:
        """At a party's rank, its part of a model."""
        return self.party_folder(party) / "state" / "models" / model

    # --- identities ---

    def requests(self) -> bytes:
        """This rank's requests for certificates; its keys are made if they are not there, and stay here."""
        found = []
        for subject, folder in self._members[rank()]:
            if not (folder / files.KEY).exists():
                request(folder, subject.role, subject.name)
            pem = files.read_file(folder / files.REQUEST, "restore it from a copy")
            found.append(_Asked(pem, (folder / files.CERTIFICATE).exists()))
        return msgspec.json.encode(found)

    def sign(self, requests: Sequence[bytes]) -> bytes:
        """Check what all ranks have asked for; at the authority's rank, sign what was not signed before."""
        told = [from_json(data, list[_Asked]) for data in requests]
        asked = [
            [CertificateRequest.parse(one.pem, f"the request of rank {i}") for one in own] for i, own in enumerate(told)
        ]
        if [[one.subject for one in own] for own in asked] != [[one for one, _ in own] for own in self._members]:
            raise ConfigError("the ranks have different job files; give the same one to all")
        if rank() != _AUTHORITY_RANK:
            return b""
        authority = self._authority(is_new=not any(one.is_signed for own in told for one in own))
        # Signed once: a job that goes on after a kill must open with the certificates that it began with. A rank whose
        # folder was lost has a new key: what was signed for the former one is revoked.
        days = (authority.certificate.not_valid_after_utc - datetime.now(UTC)).days

        def answer(one: _Asked, request: CertificateRequest) -> bytes:
            return b"" if one.is_signed else authority.sign(request, days=days, replace=True)

        return msgspec.json.encode([list(map(answer, *both)) for both in zip(told, asked, strict=True)])

    def _authority(self, *, is_new: bool) -> Authority:
        folder = self.state / "authority"
        if folder.exists():
            return Authority.open(folder)
        if not is_new:
            raise ConfigError(
                f"{folder} is missing, which has signed the identities of the ranks; restore it, or name a new state "
                "folder with --state"
            )
        return Authority.create(folder, _FEDERATION, days=_AUTHORITY_DAYS, list_days=_AUTHORITY_DAYS)

    def install(self, signed: bytes) -> Identity:
        """Keep this rank's certificates; returns its first identity."""
        bundles = from_json(signed, list[list[bytes]])[rank()]
        for (_, folder), bundle in zip(self._members[rank()], bundles, strict=True):
            if bundle:
                files.write_file(folder / _BUNDLE, bundle)
                install(folder, folder / _BUNDLE)
        return Identity.load(self._members[rank()][0][1])

    # --- roles ---

    def open_role(self) -> MpiCoordinator | MpiParty:
        """What this rank is."""
        n_jobs = effective_jobs(self.config.forest.get("n_jobs"))
        if rank() > 0:
            party = self.parties[rank() - 1]
            try:
                return MpiParty(self._party_config(party, n_jobs))
            except ConfigError as error:  # mpirun shows the words of all ranks as one
                raise ConfigError(f"party {party!r}: {error}") from None
        check_threads()
        folder = self.state / "coordinator"
        config = CoordinatorConfig(
            listen=Address(f"{_HOST}:0"), identity=folder / "identity", state=folder / "state", max_running_jobs=1
        )
        return MpiCoordinator(config, self, n_jobs)

    def _party_config(self, party: str, n_jobs: int) -> PartyConfig:
        folder, own = self.party_folder(party), self.config.mpi[party]
        alignment = AlignmentConfig(secret_file=self.secret)
        shared, state = alignment.read_secret(), folder / "state"
        if shared is not None and not (state / SECRET_FILE).exists():
            private_folder(state)
            own_secret = hmac.new(shared, f"party {party}".encode(), hashlib.sha256).hexdigest()
            write_whole(state / SECRET_FILE, lambda file: file.write(own_secret.encode()))
        return PartyConfig(
            coordinator=_NOWHERE,
            identity=folder / "identity",
            state=state,
            n_jobs=n_jobs,
            alignment=alignment,
            tables={TABLE: replace(own.table, name=TABLE)},
            policy=own.policy,
        )


class MpiParty(Party):
    """A party that answers rank 0."""

    def work(self, certificates: Sequence[bytes], main: Callable[[ConnectedFederation], str]) -> str:
        """Answer until rank 0 says that no more will come."""
        with self:
            serve(self.identity.name, self.answer)
        return ""


class MpiCoordinator(EngineCoordinator):
    """A coordinator that reaches its parties by MPI, and whose user is on its own machine.

    Parameters
    ----------
    config : CoordinatorConfig
        Identity, state and limits.
    job : MpiJob
        What every rank knows.
    n_jobs : int
        Threads.

    """

    def __init__(self, config: CoordinatorConfig, job: MpiJob, n_jobs: int) -> None:
        self.n_jobs = n_jobs
        super().__init__(config, lambda name: self._ranks.carrier(name), job.parties)
        self._job = job
        self._ranks: MpiRanks
        self._served = False

    def work(self, certificates: Sequence[bytes], main: Callable[[ConnectedFederation], str]) -> str:
        """Coordinate for as long as the user's program takes; the other ranks must serve now."""
        settings = self._job.config
        self._ranks = MpiRanks(limit=self.config.message_limit)
        self._served = True
        with self:
            for party, certificate in zip(self._job.parties, certificates[1:], strict=True):
                self.store.remember_party(party, certificate)
            address = f"{_HOST}:{self.start()}"
            layout = settings.job.layout
            align = "keyed-hash" if layout == "rows" else settings.align.method
            with connect(
                address,
                self._job.user,
                tables=TABLE,
                parties=self._job.parties,
                align=align,
                layout=layout,
                lead="coordinator",
            ) as federation:
                return main(federation)

    def _take_up(self, job: str) -> None:
        """Begin no job that was not asked for: those that were not finished can be resumed."""
        stored = self.store.job(job)
        if stored is None or stored.facts.kind == SCORE:
            super()._take_up(job)
            return
        error, version = "the ranks ended before it did", stored.facts.version + 1
        self.store.update(msgspec.structs.replace(stored.facts, state="stopped", error=error, version=version))

    def close(self) -> None:
        """Tell the parties which jobs have ended, and stop them; a job that still runs can be resumed later."""
        if self._served:
            self._end_jobs()
            self._messenger.close()
            self._closing.set()
            self._ranks.close()
        super().close()


def run_ranks(job: Callable[[], MpiJob], main: Callable[[ConnectedFederation], str]) -> str:
    """Run a program over the ranks that ``mpirun`` has started; every rank calls this.

    Rank 0 runs ``main`` on the federation of all parties, and the other ranks serve as the parties until it returns.

    Parameters
    ----------
    job : callable
        Makes what every rank knows; where it raises, all ranks end.
    main : callable
        What to do with the federation. Orders of any kind can be run: ``federation.run(order)``. Every party's table is
        called `TABLE`.

    Returns
    -------
    str
        What ``main`` has returned, at every rank.

    Raises
    ------
    WoodlotError
        What ``job`` or ``main`` has raised at this rank.
    OtherRankFailedError
        If that was at another rank.

    Examples
    --------
    In a file that is run with ``mpirun -n 3 python count.py``:

    .. code-block:: python

        def main(federation):
            return str(federation.align().n_rows)


        print(run_ranks(lambda: MpiJob(Path("job.toml"), Path("state")), main))

    """
    told: WoodlotError
    with abort_on_error():  # of any other error than these: the other ranks would wait for ever
        try:
            return _run(job, main)
        except _AllRanksKnow as error:
            told = error.problem
    raise told


def _run(make: Callable[[], MpiJob], main: Callable[[ConnectedFederation], str]) -> str:
    def begin() -> tuple[MpiJob, bytes]:
        job = make()
        return job, job.requests()

    def open_role() -> tuple[MpiCoordinator | MpiParty, bytes]:
        identity = job.install(signed[_AUTHORITY_RANK])
        return job.open_role(), identity.certificate

    def work() -> tuple[None, bytes]:
        return None, role.work(certificates, main).encode()

    job, requests = _together(begin)
    _, signed = _together(lambda: (None, job.sign(requests)))
    role, certificates = _together(open_role, undo=lambda role: role.close())
    _, told = _together(work)
    return told[0].decode()


class _AllRanksKnow(Exception):  # noqa: N818 - what has happened
    """A step has failed at some rank, and every rank has left it."""

    def __init__(self, problem: WoodlotError) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _together(
    work: Callable[[], tuple[T, bytes]], undo: Callable[[T], None] = lambda result: None
) -> tuple[T, list[bytes]]:
    """Do something at every rank: what came of it here, and what each rank tells of it. If one fails, all do."""
    problem: WoodlotError | None = None
    done: list[T] = []
    data = b""
    try:
        result, data = work()
        done.append(result)
    except WoodlotError as error:
        problem = error
    told = exchange(bytes([problem is None]) + data)
    failed = [number for number, one in enumerate(told) if not one[0]]
    if not failed:
        return done[0], [one[1:] for one in told]
    for result in done:
        undo(result)
    if problem is not None and (rank() == 0 or 0 not in failed):
        raise _AllRanksKnow(problem)
    if rank() == 0:
        raise _AllRanksKnow(ConfigError("a party's rank cannot begin; its own line says why"))
    raise _AllRanksKnow(OtherRankFailedError("another rank has ended the job, and says why"))
