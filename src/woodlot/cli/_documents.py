"""What each command prints with ``--json``: the types from which ``woodlot schema`` makes JSON schemas."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from woodlot.jobs.approvals import Approval
from woodlot.jobs.job_messages import JobFacts, ModelFacts
from woodlot.service.party_check import CheckedItem

_PARSED = ("settings", "disclosure", "cost", "privacy")  # JSON within the facts of a model: parsed by `plain`

JobDocument = JobFacts
ModelDocument = msgspec.defstruct(
    "ModelDocument",
    [
        (field.name, Any if field.name in _PARSED else field.type, msgspec.UNSET)
        for field in msgspec.structs.fields(ModelFacts)
    ],
    kw_only=True,
)


class _Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One JSON document."""


class ErrorFacts(_Document):
    kind: str
    message: str


class ErrorDocument(_Document):
    """Every command, where it fails."""

    error: ErrorFacts


class JobsDocument(_Document):
    jobs: list[JobDocument]


class ModelsDocument(_Document):
    models: list[ModelDocument]  # type: ignore[valid-type]


class ExportedDocument(_Document):
    model: str
    name: str
    folder: str
    complete: bool


class DeletedDocument(_Document):
    model: str
    name: str
    job: str
    deleted: Literal[True]


class ConnectedParty(_Document):
    name: str
    connected: bool
    since: float | None
    alarm: str | None
    alarm_at: float | None


class PartiesDocument(_Document):
    parties: list[ConnectedParty]


class ApprovalsDocument(_Document):
    approvals: list[Approval]


class CheckDocument(_Document):
    ok: bool
    findings: list[CheckedItem]


class BackupDocument(_Document):
    file: str
    files: int
    made: float
    stopped: bool
    secret: bool
    epoch_keys: bool
    identity: bool


class RestoreDocument(_Document):
    state: str
    files: int
    made: float


class BudgetDocument(_Document):
    tables: list[dict[str, Any]]


class CatalogDocument(_Document):
    columns: list[dict[str, Any]]
    labels: list[str]
    rows: dict[str, int | None]
    not_told: list[str]


class ScoreDocument(_Document):
    job: str
    answers: dict[str, list[Any]]


class SearchDocument(_Document):
    best: dict[str, Any]
    score: float
    model: str | None
    results: list[dict[str, Any]]


class EvaluateDocument(_Document):
    job: str
    model: str
    report: dict[str, Any]


class ExplainDocument(_Document):
    job: str
    model: str
    explanation: dict[str, Any]
    by_party: dict[str, Any]
    reasons: list[list[str]] | msgspec.UnsetType = msgspec.UNSET


class DriftDocument(_Document):
    job: str
    model: str
    drift: dict[str, Any]
    shifted: list[str]


class RevokeDocument(_Document):
    model: str
    party: str
    level: int
    removed: int | None
    regrown: int | None
    rows: Any
    receipt: str | None


class ForgetDocument(_Document):
    rows: int
    unknown: int
    proved: Any
    model: str


class OrderDocument(_Document):
    job: str
    parties: list[str]
    out: str


class AuditDocument(_Document):
    """A job, or all jobs of a state folder; or what became of a receipt, which has further fields."""

    verified: bool
    problem: str | msgspec.UnsetType | None = msgspec.UNSET
    job: str | msgspec.UnsetType = msgspec.UNSET
    records: int | msgspec.UnsetType = msgspec.UNSET
    head: str | msgspec.UnsetType = msgspec.UNSET
    messages: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    problems: list[str] | msgspec.UnsetType = msgspec.UNSET
    jobs: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class PlanDocument(_Document):
    rounds: int
    bytes_by_party: dict[str, int]
    memory_by_party: dict[str, int]
    compute_seconds: float
    network_seconds: float
    opened: Any
    measured: dict[str, Any] | None


class BenchDocument(_Document):
    rows: int
    test_rows: int
    columns: int
    trees: int
    depth: int | None
    task: Literal["classification", "regression"]
    repeats: int
    seed: int
    threads: int
    results: dict[str, dict[str, Any]]
    nodes: Any
    identical: bool


class WarmUpDocument(_Document):
    cases: int
    compiled: int
    seconds: float


class LeakDocument(_Document):
    rows: int
    task: str
    parties: dict[str, list[str]]
    parameters: dict[str, Any]
    seconds: float
    findings: list[dict[str, Any]]


class ProvisionDocument(_Document):
    kind: Literal["provision"]
    federation: str
    authority: str
    organisations: dict[str, dict[str, Any]]


class JoinDocument(_Document):
    kind: Literal["join"]
    folder: str
    request: str | None
    fingerprint: str | None
    new_files: list[str]


class IdentityDocument(_Document):
    """What was made or is shown; further fields depend on the kind."""

    kind: str


class DemoDocument(_Document):
    """The comparison; further fields are its tables."""

    version: str


class Document(NamedTuple):
    """The type of a document, and whether it may have further fields: a job has those of its outcome."""

    type: Any
    open: bool = False


_JOB = Document(JobDocument, open=True)
_IDENTITY = Document(IdentityDocument, open=True)

DOCUMENTS = {
    "error": Document(ErrorDocument),
    "train": _JOB,
    "align": _JOB,
    "predict": _JOB,
    "mpi": _JOB,
    "jobs": Document(JobsDocument),
    "jobs attach": _JOB,
    "jobs resume": _JOB,
    "jobs cancel": _JOB,
    "jobs show": _JOB,
    "models": Document(ModelsDocument),
    "models list": Document(ModelsDocument),
    "models show": Document(ModelDocument),
    "models export": Document(ExportedDocument),
    "models delete": Document(DeletedDocument),
    "parties": Document(PartiesDocument),
    "approvals": Document(ApprovalsDocument),
    "approvals allow": Document(Approval),
    "approvals refuse": Document(Approval),
    "check": Document(CheckDocument),
    "backup": Document(BackupDocument),
    "restore": Document(RestoreDocument),
    "budget show": Document(BudgetDocument),
    "catalog": Document(CatalogDocument),
    "score": Document(ScoreDocument),
    "search": Document(SearchDocument),
    "evaluate": Document(EvaluateDocument),
    "explain": Document(ExplainDocument),
    "drift": Document(DriftDocument),
    "revoke": Document(RevokeDocument),
    "forget": Document(ForgetDocument),
    "order": Document(OrderDocument),
    "audit": Document(AuditDocument, open=True),
    "plan": Document(PlanDocument),
    "bench": Document(BenchDocument),
    "warm-up": Document(WarmUpDocument),
    "leak-test": Document(LeakDocument),
    "provision": Document(ProvisionDocument),
    "join": Document(JoinDocument),
    "demo": Document(DemoDocument, open=True),
    **{
        f"identity {name}": _IDENTITY
        for name in ("init", "request", "sign", "install", "show", "revoke", "revocations")
    },
}
"""By the name of the command."""


def json_schema(name: str) -> dict[str, Any]:
    """The JSON schema (2020-12) of what a command prints."""
    document = DOCUMENTS[name]
    (top,), parts = msgspec.json.schema_components([document.type], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "description" in part:
            part["description"] = part["description"].partition("\n\n")[0]
    if document.open:
        parts[document.type.__name__].pop("additionalProperties", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"woodlot {name} --json", **top} | (
        {"$defs": parts} if parts else {}
    )
