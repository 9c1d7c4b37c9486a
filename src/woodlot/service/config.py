"""The configuration files, one per role: TOML in, frozen settings out, or an error that names file and setting.

Relative paths are relative to the file that names them. ``docs/configuration.md`` lists every setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec

from woodlot.data.sources import ROLES, TableSource, read_private
from woodlot.exceptions import ConfigError
from woodlot.identity.list_source import ListSource
from woodlot.jobs.kind import known
from woodlot.jobs.model_names import check_model_name
from woodlot.jobs.policy import EVERYBODY, Policy, refuse_retired, refuse_unknown, refuse_unwritten
from woodlot.jobs.privacy_rules import PrivacyConfig
from woodlot.service.settings import (
    DEFAULT_PORT,
    Address,
    ClusterAddress,
    Duration,
    Section,
    Size,
    anchored,
    convert,
    read_toml,
    refuse_missing,
)


def member_protocols() -> tuple[str, ...]:
    """What helpers and key services take part in if nothing is written: kinds of other packages must be named."""
    from woodlot.jobs.kinds import KINDS  # here: it loads what kinds need

    return tuple(kind.name for kind in KINDS if kind.with_members)


_SHORTEST_SECRET = 16
"""Bytes. Ids can be guessed one by one, so the secret must be what cannot be."""


class _ConfigFile(Section, frozen=True, kw_only=True):
    """A whole configuration file."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a configuration file.

        Raises
        ------
        ConfigError
            The message names the file, the setting and what it may be.

        """
        path = Path(path)
        return cls.parse(read_toml(path), folder=path.absolute().parent, origin=str(path))

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, folder: Path, origin: str) -> Self:
        """Check settings that have been read, or that come from elsewhere.

        Parameters
        ----------
        raw : mapping
            Settings as TOML has them.
        folder : Path
            What relative paths are relative to.
        origin : str
            What errors call the file.

        """
        cls.refuse_other_role(raw, origin)
        return anchored(convert(cls, raw, origin), folder)

    @classmethod
    def refuse_other_role(cls, raw: Mapping[str, Any], origin: str) -> None:
        """Say whose file this is, where it is another's: that it has a setting too many would mislead."""
        if raw.keys() <= set(cls.__struct_fields__):
            return
        for other, command in _COMMANDS.items():
            if other is not cls and raw.keys() <= set(other.__struct_fields__):
                raise ConfigError(f"{origin} is the file of another role; run it with: {command} {origin}")


class MonitorConfig(Section, frozen=True, kw_only=True):
    """The section ``[monitor]`` of every service.

    Attributes
    ----------
    listen : Address or None
        Where ``/health`` and ``/metrics`` are served over HTTP, such as ``"127.0.0.1:9464"``; None: nowhere.

    """

    listen: Address | None = None


class CoordinatorConfig(_ConfigFile, frozen=True, kw_only=True):
    """``coordinator.toml``.

    Attributes
    ----------
    listen : Address
        Where parties and users find the coordinator. Port 0: any that is free.
    identity : Path
        Folder of key and certificate.
    revocations : Path or None
        List of revoked certificates, if it is not in the identity folder. See `revocation_file`.
    state : Path
        Folder of journal, jobs and models.
    message_limit : Size
        The largest message that is sent or accepted.
    wait_for_parties : Duration
        How long a job waits for a party that is away.
    max_running_jobs : int
        Jobs that run at the same time; others wait.
    log_format : {"text", "json"}
        How log lines are written.
    monitor : MonitorConfig
        Where health and metrics are served.

    """

    listen: Address = Address(f"0.0.0.0:{DEFAULT_PORT}")
    identity: Path = Path("identity")
    revocations: Path | None = None
    state: Path = Path("state")
    message_limit: Size = Size(1 << 30)
    wait_for_parties: Duration = Duration(3600)
    max_running_jobs: Annotated[int, msgspec.Meta(ge=1)] = 2
    log_format: Literal["text", "json"] = "text"
    monitor: MonitorConfig = MonitorConfig()

    @property
    def revocation_file(self) -> Path:
        """Where the list of revoked certificates is; unless it was configured, it may not be there (yet)."""
        from woodlot.identity.certificates import REVOKED

        return self.revocations or self.identity / REVOKED

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, folder: Path, origin: str) -> Self:
        """Check settings; a list of revocations that was promised must be there. See the base class."""
        config = super().parse(raw, folder=folder, origin=origin)
        if config.revocations is not None and not config.revocations.is_file():
            raise ConfigError(
                f"{origin}: revocations names {config.revocations}, which is not there; without it the revoked would "
                "be let in: restore it, or take the setting out if nobody has been revoked"
            )
        return config


class AlignmentConfig(Section, frozen=True, kw_only=True):
    """The section ``[alignment]`` of a party.

    Attributes
    ----------
    secret_file : Path or None
        File of the secret under which ids are hashed: the same at every party, never at the coordinator.

    """

    secret_file: Path | None = None

    def read_secret(self) -> bytes | None:
        """The secret, None where there is no file. ConfigError: it is open to others, too short or not there."""
        if self.secret_file is None:
            return None
        secret = read_private(self.secret_file, "the secret of the alignment (secret_file)")
        if len(secret) < _SHORTEST_SECRET:
            raise ConfigError(
                f"the secret of the alignment in {self.secret_file} has {len(secret)} bytes; at least "
                f"{_SHORTEST_SECRET} are needed: openssl rand -hex 32 makes a good one"
            )
        return secret


class ComputeConfig(Section, frozen=True, kw_only=True):
    """The section ``[compute]`` of a party.

    Attributes
    ----------
    device : {"cpu", "cuda", "auto"}
        Where trees grow. "cuda": on the graphics card, and an error if there is none. "auto": on the card for large
        tables, and on the CPU where there is none or it fails; the log then says so.

    """

    device: Literal["cpu", "cuda", "auto"] = "cpu"


class PartyConfig(_ConfigFile, frozen=True, kw_only=True):
    """``party.toml``.

    Attributes
    ----------
    coordinator : Address
        Where to dial.
    identity, state : Path
        Folders of key and certificate; of journal, alignments and parts of models.
    revocations : ListSource or None
        Where the party looks for newer lists of revocations itself: a file, which is read again and again, or an
        address ``https://...``.
    n_jobs : int
        Threads, as in scikit-learn; -1: as many as there are cores.
    memory : Size or None
        What a training may have in memory, the process included; what is larger is kept on disk, in the folder `state`.
    cluster : ClusterAddress or None
        Scheduler of a Dask cluster of the party's own, over which the columns or rows of a training are spread.
    message_limit : Size
        The largest message that is sent or accepted.
    log_format : {"text", "json"}
        How log lines are written.
    alignment : AlignmentConfig
        How ids are hidden.
    tables : dict of str to TableSource
        What the party has, by the names that jobs use.
    policy : Policy
        Who may do what.
    privacy : PrivacyConfig
        What differentially private releases may cost.
    compute : ComputeConfig
        On what trees grow.
    monitor : MonitorConfig
        Where health and metrics are served.

    """

    coordinator: Address
    identity: Path = Path("identity")
    state: Path = Path("state")
    revocations: ListSource | None = None
    n_jobs: int = -1
    memory: Size | None = None
    cluster: ClusterAddress | None = None
    message_limit: Size = CoordinatorConfig().message_limit
    log_format: Literal["text", "json"] = "text"
    alignment: AlignmentConfig = AlignmentConfig()
    tables: dict[str, TableSource] = msgspec.field(default_factory=dict)
    policy: Policy = Policy()
    privacy: PrivacyConfig = PrivacyConfig()
    compute: ComputeConfig = ComputeConfig()
    monitor: MonitorConfig = MonitorConfig()

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, folder: Path, origin: str) -> Self:
        """Check settings, those of every table included. See the base class."""
        raw, tables = _without_tables(cls, raw, "tables", folder, origin)
        refuse_retired(raw.get("policy"), origin)
        config = super().parse(raw, folder=folder, origin=origin)
        refuse_unwritten(raw.get("policy", {}), origin)
        refuse_unknown(config.policy, origin)
        if config.n_jobs == 0:
            raise ConfigError(f"{origin}: n_jobs must not be 0; 1 is one thread, -1 is one for every core")
        if not tables:
            raise ConfigError(f"{origin}: there is no table; add a section such as [tables.customers]")
        return msgspec.structs.replace(config, tables=tables)


class MemberConfig(_ConfigFile, frozen=True, kw_only=True):
    """``helper.toml`` and ``keys.toml``: the two roles that encrypted forests need besides parties.

    A helper can also deal for hidden trainings.

    Attributes
    ----------
    coordinator, identity, state, revocations, n_jobs, message_limit, log_format, monitor
        As for `PartyConfig`.
    policy : Policy
        Who may do what: `train`, `predict` and `weak_keys` matter here.
    allow_same_host : bool
        Whether this member may run on the coordinator's host. Together they can read requests and splits.

    """

    coordinator: Address
    identity: Path = Path("identity")
    state: Path = Path("state")
    revocations: ListSource | None = None
    n_jobs: int = -1
    message_limit: Size = CoordinatorConfig().message_limit
    log_format: Literal["text", "json"] = "text"
    policy: Policy = msgspec.field(default_factory=lambda: Policy(protocols=member_protocols()))
    allow_same_host: bool = False
    monitor: MonitorConfig = MonitorConfig()

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, folder: Path, origin: str) -> Self:
        """Check settings; of the protocols there are, only two are a member's. See the base class."""
        policy = raw.get("policy", {})
        if isinstance(policy, Mapping):
            raw = {**raw, "policy": {"protocols": member_protocols(), **policy}}
        config = super().parse(raw, folder=folder, origin=origin)
        refuse_unknown(config.policy, origin)
        return config


class JobSettings(Section, frozen=True, kw_only=True):
    """The section ``[job]``.

    Attributes
    ----------
    y : str
        The label: ``"party.column"``; with layout "rows" the column, which every party has.
    task : {"classification", "regression"}
        What to learn.
    kind : {"train"}
        What to do.
    layout : {"columns", "rows"}
        Whether the parties have different columns of the same rows, or different rows of the same columns.
    parties : tuple of str or None
        Who takes part; None: those that `tables` names, or all that have ever been connected.
    tables : str or dict of str to str
        Name of the table, the same at all parties or by party.
    sample_weight : str or None
        Weights of rows, ``"party.column"``, at the party of the label; with layout "rows" the column.
    name : str or None
        What to call the model.
    helper, key_service : str or None
        The members that forests with encrypted splits need besides parties.
    lead : {"holder", "coordinator"} or None
        Whose process runs the training; None: the label holder's, where a party can lead.
    server : str or None
        The second server of a training with ``protection = "hidden"``; None: the first party without the label.
    dealer : str or None
        The helper that deals for a training with ``protection = "hidden"``; None: the coordinator.
    split : float or None
        Share of the common rows that is held out; None: all are learnt from.
    split_seed : int
        Which rows these are.
    features : dict of str to (tuple of str or "*") or None
        By party the columns to learn from, or "*" for all; None: all of every party.
    exclude : dict of str to tuple of str
        By party columns not to learn from.

    """

    y: str
    task: Literal["classification", "regression"]
    kind: Literal["train"] = "train"
    layout: Literal["columns", "rows"] = "columns"
    parties: tuple[str, ...] | None = None
    tables: str | dict[str, str] = ""
    sample_weight: str | None = None
    name: str | None = None
    helper: str | None = None
    key_service: str | None = None
    lead: Literal["coordinator", "holder"] | None = None
    server: str | None = None
    dealer: str | None = None
    split: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    split_seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    features: dict[str, tuple[str, ...] | Literal["*"]] | None = None
    exclude: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def choice(self) -> dict[str, Any]:
        """``features`` and ``exclude`` as estimators take them, where they are given."""
        chosen: dict[str, Any] = {}
        if self.features is not None:
            chosen["features"] = {party: None if names == "*" else names for party, names in self.features.items()}
        if self.exclude:
            chosen["exclude"] = dict(self.exclude)
        return chosen

    def __post_init__(self) -> None:
        if self.layout == "rows" and self.choice:
            raise ValueError("features and exclude are for layout 'columns'")
        if self.layout == "rows" and self.lead == "holder":
            raise ValueError("lead = 'holder' is for layout 'columns'; over rows every party has labels")
        party = None if self.layout == "rows" else _party_of("y", self.y)
        if (
            self.sample_weight is not None
            and party is not None
            and _party_of("sample_weight", self.sample_weight) != party
        ):
            raise ValueError(f"sample_weight must be at the party of y, {party!r}, not {self.sample_weight!r}")
        if isinstance(self.tables, dict) and self.parties is None and self.tables:
            msgspec.structs.force_setattr(self, "parties", tuple(self.tables))
        if self.parties is not None:
            self._check_parties(party, self.parties)
        if self.name is not None:
            check_model_name(self.name)

    def _check_parties(self, holder: str | None, parties: tuple[str, ...]) -> None:
        if len(set(parties)) < len(parties) or not parties:
            raise ValueError("parties must name at least one party, and none twice")
        if holder is not None and holder not in parties:
            raise ValueError(f"y is at {holder!r}, who is not among the parties {', '.join(parties)}; add it")
        if isinstance(self.tables, dict) and set(self.tables) != set(parties):
            odd = sorted(set(self.tables) ^ set(parties))
            raise ValueError(f"tables must name one table for each of the parties; {', '.join(odd)} is in one only")


class AlignSettings(Section, frozen=True, kw_only=True):
    """The section ``[align]``: how the common rows are found."""

    method: Literal["keyed-hash", "psi"] = "keyed-hash"


class RankConfig(NamedTuple):
    """A section ``[mpi.PARTY]``.

    Attributes
    ----------
    table : TableSource
        The party's table.
    policy : Policy
        What may be done with it, from ``[mpi.PARTY.policy]``: all ranks are of one owner, so what is not written is
        open.

    """

    table: TableSource
    policy: Policy


class JobConfig(_ConfigFile, frozen=True, kw_only=True):
    """``job.toml``, for ``woodlot train`` and ``woodlot mpi``.

    Attributes
    ----------
    job : JobSettings
        What to do.
    coordinator : Address or None
        Where to send it; not needed with MPI.
    identity : Path
        Folder of the user's key and certificate.
    align : AlignSettings
        How the common rows are found.
    forest : dict
        Parameters of the estimator by name, unchecked.
    mpi : dict of str to RankConfig
        For MPI, the table and the policy of each party.

    """

    job: JobSettings
    coordinator: Address | None = None
    identity: Path = Path("identity")
    align: AlignSettings = AlignSettings()
    forest: dict[str, Any] = msgspec.field(default_factory=dict)
    mpi: dict[str, RankConfig] = msgspec.field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, folder: Path, origin: str) -> Self:
        """Check settings; either a coordinator or tables for MPI must be there. See the base class."""
        raw, policies = _without_policies(raw, origin)
        raw, tables = _without_tables(cls, raw, "mpi", folder, origin)
        config = super().parse(raw, folder=folder, origin=origin)
        if tables:
            if config.job.lead == "holder":
                raise ConfigError(
                    f"{origin}: lead = 'holder' is not for MPI, where all ranks have one owner; take it out"
                )
            _check_named(config.job, tables, origin)
        elif config.coordinator is None:
            refuse_missing(origin, "coordinator")
        elif not config.job.tables:
            refuse_missing(origin, "job.tables")
        ranks = {party: RankConfig(table, policies[party]) for party, table in tables.items()}
        return msgspec.structs.replace(config, mpi=ranks)


_COMMANDS: dict[type[_ConfigFile], str] = {
    CoordinatorConfig: "woodlot coordinator",
    PartyConfig: "woodlot party",
    JobConfig: "woodlot train",
}
"""What the files are run with."""


class _TableSettings(Section, frozen=True, kw_only=True):
    """A section ``[tables.NAME]`` or ``[mpi.NAME]``."""

    id: str
    columns: str | tuple[str, ...]
    labels: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    features: tuple[str, ...] | None = None
    path: Path | None = None
    sql: str | None = None
    url: str | None = None
    password_env: str | None = None
    password_file: Path | None = None


def _without_tables(
    kind: type[msgspec.Struct], raw: Mapping[str, Any], section: str, folder: Path, origin: str
) -> tuple[dict[str, Any], dict[str, TableSource]]:
    """Other settings, and the tables, which are read one by one so that errors can name them."""
    sections = raw.get(section, {})
    if not isinstance(sections, dict) or not all(isinstance(fields, dict) for fields in sections.values()):
        raise ConfigError(f"{origin}: {section} must be sections such as [{section}.customers]")
    tables = {}
    for name, fields in sections.items():
        settings = convert(_TableSettings, fields, origin, prefix=f"{section}.{name}.", whole=kind)
        if isinstance(settings.columns, str) and settings.columns != "*":
            raise ConfigError(f'{origin}: {section}.{name}.columns must be a list of names, or "*" for all columns')
        columns = None if isinstance(settings.columns, str) else settings.columns
        others = {field: getattr(settings, field) for field in ("id", "path", "sql", "url", *ROLES)}
        passwords = {field: getattr(settings, field) for field in ("password_env", "password_file")}
        try:
            tables[name] = TableSource(name, columns=columns, folder=folder, **others, **passwords)
        except ConfigError as error:
            raise ConfigError(f"{origin}: [{section}.{name}]: {error}") from None
    return {key: value for key, value in raw.items() if key != section}, tables


def _without_policies(raw: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], dict[str, Policy]]:
    """Other settings, and the policy of each section ``[mpi.PARTY]``."""
    sections = raw.get("mpi", {})
    if not isinstance(sections, Mapping) or not all(isinstance(fields, Mapping) for fields in sections.values()):
        return dict(raw), {}  # what is wrong with it is said where the tables are read
    policies = {}
    for party, fields in sections.items():
        said = fields.get("policy", {})
        if not isinstance(said, Mapping):
            raise ConfigError(f"{origin}: mpi.{party}.policy must be a section: [mpi.{party}.policy]")
        everything = tuple(dict.fromkeys(kind.listed for kind in known().values()))
        usual = {"protocols": everything, "lead": ("coordinator",)}
        usual |= dict.fromkeys(("train", "predict", "receive"), (EVERYBODY,))
        policies[party] = convert(Policy, usual | dict(said), origin, prefix=f"mpi.{party}.policy.")
        refuse_unknown(policies[party], f"{origin}: [mpi.{party}]")
    tables = {party: {k: v for k, v in fields.items() if k != "policy"} for party, fields in sections.items()}
    return {**raw, "mpi": tables}, policies


def _check_named(job: JobSettings, tables: Mapping[str, TableSource], origin: str) -> None:
    """Refuse a job for MPI whose label or weight its tables do not name as such."""
    for setting, role in (("y", "labels"), ("sample_weight", "weights")):
        said = getattr(job, setting)
        if said is None:
            continue
        holder, _, column = ("", "", said) if job.layout == "rows" else said.partition(".")
        if holder and holder not in tables:
            raise ConfigError(
                f"{origin}: job.{setting} is at {holder!r}, but there is no section [mpi.{holder}]; add it"
            )
        for party in [holder] if holder else tables:
            table = tables[party]
            if not (table.may_label if role == "labels" else table.may_weigh)(column):
                raise ConfigError(
                    f"{origin}: job.{setting} is the column {column!r}, which mpi.{party}.{role} does not list; add "
                    f"{role} = [{msgspec.json.encode(column).decode()}] to the section [mpi.{party}]"
                )


def _party_of(setting: str, column: str) -> str:
    party, dot, name = column.partition(".")
    if not (party and dot and name):
        raise ValueError(f"{setting} must be written 'party.column', not {column!r}")
    return party
