"""Messages around a job: its order, the models and alignments that stay behind, and what users ask the coordinator.

A user's order is signed, and each party checks the signature by itself: the coordinator passes it on and cannot make
one up. What only one party needs (the names of its table and columns) is sealed to that party.
"""

from __future__ import annotations

import json
from typing import Annotated, ClassVar, Literal

import msgspec

from woodlot.protocols.core.message import (
    F64,
    FROM_PARTY,
    FROM_USER,
    MAX_REASON,
    TO_PARTY,
    TO_USER,
    U8,
    Disclosure,
    F64x2,
    Finite,
    Message,
    Name,
)

LINEAR_ESTIMATORS = ("FederatedLogisticRegression", "FederatedLinearRegression")
"""What settings call linear models."""

# --- between coordinator and parties ---


class OpenJob(Message):
    """Begins a job at a party: the user's signed order, and that the coordinator it is for has passed it on."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "who ordered what, and with whom: kind of job, parties, settings, over rows also what was declared of columns "
        "and classes; sealed to this party alone: which of its tables and which label",
        "clear",
    )
    order: bytes
    signature: bytes
    certificate: bytes
    coordinator: bytes
    """The coordinator's certificate."""
    passed: bytes
    """The coordinator's signature under the order."""


class JobOpened(Message):
    """The party takes part. A party whose table has changed when it is restarted would answer otherwise: it stops."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "that the party's policy allows the job; the number of rows aligned before, where they are used; a keyed "
        "fingerprint of the table, another one in every job",
        "clear",
    )
    n_aligned: int | None
    fingerprint: str


class KeepAlignment(Message):
    """Asks a party to keep the common rows for later jobs."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "that the common rows will be used again", "clear")


class AlignmentKept(Message):
    """The party has stored which of its rows are the common ones."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that it is stored", "clear")


class KeepModel(Message):
    """Asks a party to store its part of the forest for predictions."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "the fingerprint of the forest", "clear")
    forest: str


class ModelKept(Message):
    """The party has stored its part."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "a keyed fingerprint of the party's part of the forest", "encoded")
    digest: str


class DropModel(Message):
    """Tells a party that another has left a forest: the new one is complete, and the former is to be erased."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "who has left which forest", "clear")
    model: str
    leaver: str


class ModelDropped(Message):
    """The party has erased its part of the former forest."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that it is erased", "clear")


class AskReceipt(Message):
    """Asks for the receipt of a revocation."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which revocation the user looks at", "clear")
    job: Name


class ReceiptText(Message):
    """A receipt, as JSON."""

    discloses: ClassVar = Disclosure(
        *TO_USER, "who has left which model, nodes removed and regrown, cost, scores and fingerprints", "clear"
    )
    text: str


class UseModel(Message):
    """Asks a party to get its part of a forest ready, for the rows of this job."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "which forest is to be used, and for how many rows", "clear")
    model: str
    forest: str
    n_rows: int


class ModelReady(Message):
    """The party has its part and its rows ready."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that it is ready", "clear")


class TakeAnswers(Message):
    """Brings the forest's answers to a party: to keep them with its ids, to score them with its labels, or both."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "the forest's answer for each row", "clear")
    outputs: F64x2
    classes: tuple[str | int | float | bool, ...]
    keep: bool
    score: bool


class AnswersTaken(Message):
    """The party has the answers."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "accuracy or R2 of the answers, where it was asked for", "clear")
    score: float | None


class LeaveNotice(Message):
    """Tells a party that it has left a forest: the user's signed order is the proof."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "who has had it leave which forest, and how", "clear")
    repeatable: ClassVar[bool] = True
    order: bytes
    signature: bytes
    certificate: bytes
    coordinator: bytes
    passed: bytes


class LeaveNoted(Message):
    """The party has erased its part of the forest, and its keys."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that it is erased", "clear")


class ForgetJob(Message, omit_defaults=True):
    """Tells a party that a job has ended, so that it can let go of its work space.

    ``done`` is whether a forest over rows has grown, of which parties keep records; None of other jobs.
    """

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(
        *TO_PARTY, "that a job has ended, and of a forest over rows whether it has grown", "clear"
    )
    repeatable: ClassVar[bool] = True
    job: str
    done: bool | None = None


class JobForgotten(Message):
    """The party has let go."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that it has", "clear")


# --- between users and coordinator ---


class Declined(Message):
    """What the coordinator answers a user instead of a result."""

    discloses: ClassVar = Disclosure(*TO_USER, "why the coordinator does not do what was asked", "clear")
    kind: Literal["data", "epoch", "protocol", "policy", "internal"]
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)]


class SubmitJob(Message):
    """A user's signed order."""

    discloses: ClassVar = Disclosure(
        *FROM_USER,
        "kind of job, parties and settings, over rows also what was declared of columns and classes; names of tables "
        "and labels are sealed to their parties",
        "clear",
    )
    order: bytes
    signature: bytes


class AskJob(Message):
    """Asks how a job stands, and waits a while for news."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which job the user looks at", "clear")
    job: Name
    seen: int
    wait: Finite


class ListJobs(Message):
    """Asks for the user's jobs, newest first: those below one (when it was ordered, and its id)."""

    discloses: ClassVar = Disclosure(*FROM_USER, "nothing but that the user looks at its jobs", "clear")
    below: tuple[Finite, Name] | None = None
    limit: int = 200


class CancelJob(Message):
    """Asks to end a job."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which job is to end", "clear")
    job: Name


class ResumeJob(Message):
    """Asks to go on with a job that gave up waiting or failed for a reason that has gone."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which job is to go on", "clear")
    job: Name


class JobFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a job stands, for its user.

    Attributes
    ----------
    state : str
        "queued", "running", "stopped" (can be resumed), "failed", "cancelled" or "done".
    version : int
        Grows with every change of what is told here.
    waiting_for : tuple of str
        Parties that are away and needed now.
    network_seconds : float
        How much of its time the network took, since it was last resumed.
    score, scores
        Accuracy or R2, and by party where each has its own rows.
    score_epsilon : float or None
        Where numbers of rows and scores have noise: its epsilon.
    told : str
        What a kind of another package tells of its outcome, as JSON.
    leader : str
        The party that leads it: what is not told here is asked of that party; empty: the coordinator runs it.
    protection : str, unset by default
        "hidden" where the forest grows on secret shares, and no message tells which row goes where.
    approval : tuple of str, unset by default
        Parties whose owner has yet to approve the job.

    """

    job: str
    kind: str
    user: str
    state: str
    version: int
    created: float
    started: float | None = None
    ended: float | None = None
    parties: tuple[str, ...] = ()
    phase: str = ""
    done: int = 0
    total: int = 0
    note: str = ""
    rounds: int = 0
    bytes_by_party: dict[str, int] = {}
    network_seconds: float = 0.0
    waiting_for: tuple[str, ...] = ()
    error: str = ""
    model: str = ""
    name: str = ""
    n_rows: int | None = None
    common: dict[str, int] = {}
    rows: dict[str, int] = {}
    score: float | None = None
    scores: dict[str, float] = {}
    score_epsilon: float | None = None
    told: str = "null"
    leader: str = ""
    protection: Literal["hidden"] | msgspec.UnsetType = msgspec.UNSET
    approval: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def waits(self) -> str:
        """For what the job waits, in words; empty where it waits for nobody."""
        if self.waiting_for:
            return f"waiting for {', '.join(self.waiting_for)}"
        return f"waiting for the approval of {', '.join(self.approval)}" if self.approval else ""

    @property
    def standing(self) -> str:
        """The state with its verb, as in "has failed" and "is running"."""
        return f"{'has' if self.state in ('failed', 'stopped') else 'is'} {self.state}"


class JobStatus(Message):
    """How one job stands."""

    discloses: ClassVar = Disclosure(*TO_USER, "progress, bytes and outcome of the user's own job", "clear")
    facts: JobFacts


class JobList(Message):
    """Some of the user's jobs, and whether there are more."""

    discloses: ClassVar = Disclosure(*TO_USER, "progress, bytes and outcome of the user's own jobs", "clear")
    jobs: tuple[JobFacts, ...]
    more: bool = False


class AskFederation(Message):
    """Asks who belongs to the federation."""

    discloses: ClassVar = Disclosure(*FROM_USER, "nothing but that the user looks at the parties", "clear")


class PartyFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A party that has connected before: since when it is connected now, and its certificate.

    ``alarm`` is empty unless two processes have used the party's key at once lately; ``alarm_at`` says when.
    """

    name: str
    since: float | None
    certificate: bytes
    alarm: str = ""
    alarm_at: float | None = None


class FederationFacts(Message):
    """The parties of the federation."""

    discloses: ClassVar = Disclosure(
        *TO_USER,
        "names and certificates of the parties and the coordinator, who is connected, and the addresses of two "
        "processes that have used one party's key at once",
        "clear",
    )
    parties: tuple[PartyFacts, ...]
    coordinator: bytes
    """The coordinator's certificate."""


class ListModels(Message):
    """Asks for the models that the coordinator keeps, newest first: those below one, as for `ListJobs`."""

    discloses: ClassVar = Disclosure(*FROM_USER, "nothing but that the user looks at the models", "clear")
    below: tuple[Finite, Name] | None = None


class FindModel(Message):
    """Asks for one model, by its id, by the beginning of its id, or by its name."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which model the user looks for", "clear")
    name: Name


class ModelFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the coordinator tells of a model.

    Attributes
    ----------
    holder : str
        The party with the labels; "" where every party has its own.
    layout : str
        Whether its parties have different "columns" of the same rows, or different "rows" of the same columns.
    settings : str
        The estimator and its parameters, as JSON.
    disclosure : str
        Who saw what while it grew, as JSON.
    cost : str
        What it cost, as JSON.
    privacy : str
        What a forest over rows may claim of differential privacy, as JSON.
    epoch : int
        How many parties have left it.
    replaced_by : str
        The model that took its place when a party left, or rows were forgotten; empty while it is in use.
    revocable : bool
        Whether it is a revocable forest (RevFRF).
    led_by : str, unset by default
        The party that keeps it and leads its jobs. A coordinator knows of a model that another keeps only what its
        order says.
    grown : str, unset by default
        "hidden" where it has grown on secret shares, and no message has told which row goes where.
    dealer : str, unset by default
        The helper that has dealt for it; unset: the coordinator, or nobody.
    forgets : str, unset by default
        The model that it has taken the place of when rows were forgotten.
    left_at : dict of str to int, unset by default
        Clients that dropped out while it grew, and in how many trees of a private forest, or levels of a lossless one,
        each took part.
    whole : str, unset by default
        Fingerprint of a forest over rows with its splits (`whole_forest_id`): orders that bring it to parties name it.

    """

    model: str
    name: str
    user: str
    created: float
    forest: str
    parties: tuple[str, ...]
    holder: str
    n_rows: int
    n_trees: int
    n_nodes: int
    splits: dict[str, int]
    classes: tuple[str | int | float | bool, ...]
    complete: bool
    unwilling: tuple[str, ...]
    oob_score: float | None
    settings: str
    disclosure: str
    cost: str
    layout: Literal["columns", "rows"] = "columns"
    privacy: str = "null"
    epoch: int = 0
    replaced_by: str = ""
    revocable: bool = False
    oob_curve: tuple[tuple[int, float], ...] = ()
    """Number of trees, and the out-of-bag score of as many."""
    led_by: str | msgspec.UnsetType = msgspec.UNSET
    grown: Literal["hidden"] | msgspec.UnsetType = msgspec.UNSET
    dealer: str | msgspec.UnsetType = msgspec.UNSET
    forgets: str | msgspec.UnsetType = msgspec.UNSET
    left_at: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    whole: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def dropped_out(self) -> dict[str, int]:
        """Clients that dropped out while it grew, with ``left_at`` of each."""
        return {} if isinstance(self.left_at, msgspec.UnsetType) else self.left_at

    @property
    def former(self) -> str:
        """The model that it has taken the place of when rows were forgotten; empty where none were."""
        return "" if isinstance(self.forgets, msgspec.UnsetType) else self.forgets

    @property
    def leader(self) -> str:
        """The party that keeps it and leads its jobs; empty: the coordinator does."""
        return "" if isinstance(self.led_by, msgspec.UnsetType) else self.led_by

    @property
    def is_hidden(self) -> bool:
        """Whether it has grown on secret shares."""
        return self.grown == "hidden"

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear model, and no forest, as its user has written."""
        try:
            found = json.loads(self.settings)
        except (ValueError, RecursionError):
            return False
        return isinstance(found, dict) and found.get("estimator") in LINEAR_ESTIMATORS


class ModelList(Message):
    """Some of the models that the coordinator keeps, and whether there are more; in lists they have no accounts."""

    discloses: ClassVar = Disclosure(*TO_USER, "names, sizes, settings and costs of the models", "clear")
    models: tuple[ModelFacts, ...]
    more: bool = False


class AskModel(Message):
    """Asks for the coordinator's part of a model."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which model the user looks at", "clear")
    model: Name


class ModelPart(Message):
    """The coordinator's part of a model, as the files in which it is kept; and quantiles of the out-of-bag residuals.

    The out-of-bag answers are not in it: they are predictions, and parties name who may receive those.
    """

    discloses: ClassVar = Disclosure(
        *TO_USER,
        "to the user who ordered it: structure, answers of the leaves, gains, and whose coded feature splits each "
        "node; the splits themselves only where all parties share them",
        "clear",
    )
    facts: ModelFacts
    files: dict[str, U8]
    residuals: F64


class AskPredictions(Message):
    """Asks for the answers of a prediction."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which job the user looks at", "clear")
    job: Name


class Predictions(Message):
    """The answers of a prediction, row by row in the common order; ids stay with the parties."""

    discloses: ClassVar = Disclosure(
        *TO_USER, "the forest's answer for each row, and which rows are uncertain", "clear"
    )
    outputs: F64x2
    uncertain: U8
    classes: tuple[str | int | float | bool, ...]
    score: float | None
    disclosure: str
    cost: str


class AskAudit(Message):
    """Asks for the record of a job."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which job the user looks at", "clear")
    job: Name


class AuditReport(Message):
    """Who was sent what in a job, and whether the chain of records is whole."""

    discloses: ClassVar = Disclosure(*TO_USER, "kinds, numbers and sizes of the job's messages", "clear")
    rows: str
    records: int
    head: str
    problem: str
