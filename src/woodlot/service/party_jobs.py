"""One job at a party: the order is checked, then the messages of its protocols are answered.

What the party's policy forbids is refused here. Errors that name columns, files or settings stay in the party's own
log; the coordinator is told where to look.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.labels import check_classes, check_targets, check_weights
from woodlot.data.sources import LoadedTable, TableSource
from woodlot.data.values import natural_type
from woodlot.exceptions import ConfigError, DataError, IdentityError, ModelFileError, PolicyError, RemoteProtocolError
from woodlot.protocols.align import AlignParty
from woodlot.protocols.align.party import State as AlignState
from woodlot.protocols.messages import align, vertical
from woodlot.protocols.messages import jobs as msg
from woodlot.protocols.messages.base import Message
from woodlot.protocols.vertical.party import TAKES as FOREST_TAKES
from woodlot.protocols.vertical.party import State as ForestState
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.reveal import forget_values
from woodlot.protocols.vertical.target import Target
from woodlot.service.identity import Identity, Trust
from woodlot.service.orders import AnyOrder, Part, PredictOrder, TrainOrder, check_order, open_part
from woodlot.service.party_store import PartyStore
from woodlot.service.policy import Policy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PartyHome:
    """What all jobs of a party have in common.

    Attributes
    ----------
    identity, trust
        Who the party is, and whom it believes.
    tables, policy
        What it has, and who may do what with it.
    store : PartyStore
        What stays behind when a job has ended.
    shared_secret : bytes or None
        The configured secret of the alignment.
    end_job : callable
        Lets go of an ended job.
    n_jobs : int
        Threads.

    """

    identity: Identity
    trust: Trust
    tables: dict[str, TableSource]
    policy: Policy
    store: PartyStore
    shared_secret: bytes | None
    end_job: Callable[[str], None]
    n_jobs: int

    @property
    def certificate(self) -> bytes:
        """This party's certificate, for the alignment's signatures."""
        return self.identity.certificate

    def sign(self, purpose: str, data: bytes) -> bytes:
        """Sign as this party."""
        return self.identity.sign(data, purpose)

    def verify(self, name: str, certificate: bytes, purpose: str, data: bytes, signature: bytes) -> None:
        """Check that another party has signed."""
        peer = self.trust.verify(certificate, purpose, data, signature, role="party")
        if peer.name != name:
            raise RemoteProtocolError(f"what {peer.name!r} has signed was passed on as from {name!r}")


class PartyJob:
    """Answers the messages of one job; its state follows from the messages it has answered."""

    def __init__(self, home: PartyHome, job: str) -> None:
        self.home = home
        self.job = job
        self._order: AnyOrder | None = None
        self._user = ""
        self._part = Part(table="")
        self._loaded: LoadedTable | None = None
        self._align: AlignParty | None = None
        self._rows: NDArray[np.int64] | None = None
        self._forest: VerticalParty | None = None

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        kind = type(message)
        if kind is msg.OpenJob or kind is msg.ForgetJob or self._order is not None:
            handler: Callable[[Any], Message] | None = getattr(self, f"_on_{kind.__name__}", None)
            if handler is not None:
                return handler(message)
            if kind in FOREST_TAKES:
                return self._working_forest(message).handle(message)
            if kind.__module__.endswith(".align"):
                return self._alignment().handle(message)
        raise RemoteProtocolError(f"{kind.__name__} is not due in this job")

    # --- the order ---

    def _on_OpenJob(self, message: msg.OpenJob) -> msg.JobOpened:
        home = self.home
        if self._order is not None:
            raise RemoteProtocolError("this job has been opened before")
        try:
            order, user = check_order(message.order, message.signature, message.certificate, home.trust)
        except IdentityError as error:
            raise PolicyError(f"the order is not taken: {error}") from None
        if order.job != self.job or home.identity.name not in order.parties:
            raise RemoteProtocolError("the order is of another job, or not for this party")
        home.policy.check_order(order.kind, user)
        part = open_part(order, home.identity)
        if part.table not in home.tables:
            raise DataError("it has no table of the name that the order gives; ask it for the names of its tables")
        with private_errors(f"job {self.job}: table {part.table!r}", "its table cannot be used"):
            loaded = home.tables[part.table].read()
            for column in (part.label, part.weight):
                if column is not None and column not in loaded.columns:
                    raise DataError(f"there is no column {column!r} in table {part.table!r}, or it may not be used")
        rows: NDArray[np.int64] | None = None
        if len(order.parties) == 1:  # nobody to align with
            rows = np.arange(loaded.n_rows)
        elif order.alignment is not None:
            rows = home.store.alignment(order.alignment, order.parties, loaded)
        self._order, self._user, self._part, self._loaded, self._rows = order, user, part, loaded, rows
        logger.info("job %s: %s, ordered by %s, with %s", self.job, order.kind, user, ", ".join(order.parties))
        key = home.store.secret_for(self.job, "table")
        return msg.JobOpened(
            n_aligned=None if rows is None else len(rows),
            fingerprint=hmac.new(key, loaded.digest.encode(), hashlib.sha256).hexdigest(),
        )

    def _on_OpenAlignment(self, message: align.OpenAlignment) -> Message:
        order = self._due("align", "train", "predict")
        ordered = (order.parties, order.method, order.join)
        if order.alignment is not None or (message.parties, message.method, message.join) != ordered:
            raise RemoteProtocolError("the order does not ask for this alignment")
        return self._alignment().handle(message)

    def _alignment(self) -> AlignParty:
        if self._align is None:
            home = self.home
            self._align = AlignParty(
                home.identity.name,
                self._table().ids,
                entropy=lambda purpose: home.store.secret_for(self.job, purpose),
                lasting=lambda purpose: home.store.secret_for("alignment", purpose),
                shared_secret=home.shared_secret,
                signer=home,
                job=self.job,
            )
        return self._align

    def _table(self) -> LoadedTable:
        if self._loaded is None:
            raise RemoteProtocolError("no job is open here")
        return self._loaded

    def _common_rows(self) -> NDArray[np.int64]:
        """Own row of each common row; what the policy asks of their number is checked."""
        rows = self._rows
        if rows is None:
            if self._align is None or self._align.state != AlignState.aligned:
                raise RemoteProtocolError("the rows are not aligned yet")
            rows = self._align.rows
        self.home.policy.check_rows(len(rows))
        return rows

    def _on_KeepAlignment(self, message: msg.KeepAlignment) -> msg.AlignmentKept:
        order = self._due("align", "train", "predict")
        self.home.store.keep_alignment(self.job, order.parties, self._table(), self._common_rows())
        return msg.AlignmentKept()

    def _due(self, *kinds: str) -> AnyOrder:
        if self._order is None or self._order.kind not in kinds:
            raise RemoteProtocolError("the order does not ask for that")
        return self._order

    # --- training ---

    def _on_OpenTraining(self, message: vertical.OpenTraining) -> Message:
        order = self._due("train")
        if self._forest is None:
            rows, loaded = self._common_rows(), self._table()
            with private_errors(f"job {self.job}", "its labels or its table cannot be used"):
                table = loaded.table().take(rows)
                hidden = (self._part.label, self._part.weight)
                self._forest = VerticalParty(
                    self.home.identity.name,
                    table.select([name for name in table.names if name not in hidden]),
                    target=self._target(order, rows),
                    secret=self.home.store.secret_for("forest", "codes"),
                    shares_model=self.home.policy.share_model,
                    n_jobs=self.home.n_jobs,
                )
        return self._forest.handle(message)

    def _target(self, order: AnyOrder, rows: NDArray[np.int64]) -> Target | None:
        if not isinstance(order, TrainOrder) or order.holder != self.home.identity.name:
            return None
        if self._part.label is None:
            raise DataError("the order names no column of labels")
        loaded = self._table()
        labels = natural_type(loaded.values(self._part.label)[rows])
        weights = None if self._part.weight is None else loaded.values(self._part.weight)[rows]
        checked = check_weights(weights, labels)
        if order.plan.task == "classes":
            return Target.of_classes(check_classes(labels), checked)
        return Target.of_values(check_targets(labels), checked)

    def _on_StartForest(self, message: vertical.StartForest) -> Message:
        self.home.policy.check_leaf(message.min_samples_leaf)
        return self._training().handle(message)

    def _training(self) -> VerticalParty:
        self._due("train")
        if self._forest is None:
            raise RemoteProtocolError("no training is open here")
        return self._forest

    def _on_KeepModel(self, message: msg.KeepModel) -> msg.ModelKept:
        forest = self._training()
        if forest.state != ForestState.trained:
            raise RemoteProtocolError("KeepModel is not due before the forest has grown")
        part = forget_values(forest.grown_forest())
        digest = self.home.store.keep_model(self.job, message.forest, part)
        secret = self.home.store.secret_for("forest", "fingerprint")
        return msg.ModelKept(digest=hmac.new(secret, digest.encode(), hashlib.sha256).hexdigest())

    # --- predicting ---

    def _on_UseModel(self, message: msg.UseModel) -> msg.ModelReady:
        order, home = self._due("predict"), self.home
        if not isinstance(order, PredictOrder) or order.model != message.model:
            raise RemoteProtocolError("the order is for another model")
        rows = self._common_rows()
        if message.n_rows != len(rows):
            raise RemoteProtocolError(f"the coordinator speaks of {message.n_rows} rows, there are {len(rows)} here")
        part = home.store.model(message.model, message.forest)
        with private_errors(f"job {self.job}", "its table does not have the columns that the model was trained with"):
            table = self._table().table().take_or_missing(rows)
            forest = VerticalParty(
                home.identity.name,
                table,
                forest=part,
                known=None if (rows >= 0).all() else rows >= 0,
                secret=home.store.secret_for("forest", "codes"),
                n_jobs=home.n_jobs,
            )
        home.store.spend_predictions(self.job, self._user, int((rows >= 0).sum()), datetime.now(UTC))
        self._forest = forest
        return msg.ModelReady()

    def _working_forest(self, message: Message) -> VerticalParty:
        """The forest that is grown or used here; what the user has not ordered is not asked of it."""
        order, kind = self._order, type(message).__name__
        if self._forest is None:
            raise RemoteProtocolError(f"{kind} is not due before a training or a model is open")
        if isinstance(order, PredictOrder):
            how, form, shuffles = order.how, order.wire, order.shuffled is not None
            ordered = isinstance(message, vertical.AskDecisions if how == "one-round" else vertical.AskNodes)
        else:  # a training asks for decisions only to score out of bag
            form, shuffles = "decisions", False
            ordered = not isinstance(message, vertical.AskNodes)
        if isinstance(message, vertical.AskDecisions):
            ordered &= message.wire == form and (shuffles or message.shuffled is None)
        if not ordered:
            raise RemoteProtocolError(f"the order does not ask for {kind}, or not like this")
        return self._forest

    def _on_TakeAnswers(self, message: msg.TakeAnswers) -> msg.AnswersTaken:
        order, name, rows = self._due("predict"), self.home.identity.name, self._common_rows()
        if not isinstance(order, PredictOrder) or len(message.outputs) != len(rows):
            raise RemoteProtocolError("the answers do not fit the rows of this job")
        if (message.keep and order.deliver_to != name) or (message.score and order.score_at != name):
            raise RemoteProtocolError("the order does not give the answers to this party")
        if message.outputs.shape[1] != max(1, len(message.classes)) or not np.isfinite(message.outputs).all():
            raise RemoteProtocolError("the answers are not those of a forest")
        score = None
        if message.score:
            with private_errors(f"job {self.job}", "its labels cannot be used"):
                score = self._score(message, rows)
        if message.keep:
            self.home.store.keep_answers(self.job, self._table(), rows, message.outputs, message.classes)
        return msg.AnswersTaken(score=score)

    def _score(self, message: msg.TakeAnswers, rows: NDArray[np.int64]) -> float:
        if self._part.label is None:
            raise DataError("the order names no column of labels")
        if (rows < 0).any():
            raise DataError(f"{int((rows < 0).sum())} rows have no label here; use join='inner'")
        labels = natural_type(self._table().values(self._part.label)[rows])
        everything = np.ones(len(rows), bool)
        if not message.classes:
            return Target.of_values(check_targets(labels)).score(message.outputs[:, 0], everything)[0]
        said = np.array(message.classes, dtype=object)[message.outputs.argmax(axis=1)]
        return float((said == check_classes(labels).astype(object)).mean())

    # --- the end ---

    def _on_ForgetJob(self, message: msg.ForgetJob) -> msg.JobForgotten:
        if self._order is not None or self.job != housekeeping_job(message.job):
            raise RemoteProtocolError("ForgetJob is not due in this job")
        self.home.end_job(message.job)
        return msg.JobForgotten()


def housekeeping_job(job: str) -> str:
    """The job under which parties are told that a job has ended: its own record, for that job's is closed."""
    return hashlib.sha256(f"forget {job}".encode()).hexdigest()[:32]


@contextmanager
def private_errors(where: str, told: str) -> Iterator[None]:
    """Errors that may name columns, files or values go to the party's own log; the other side is told less."""
    try:
        yield
    except (DataError, ConfigError, ModelFileError, ValueError, TypeError) as error:
        logger.error("%s: %s", where, error)
        raise DataError(f"{told}; its own log says why") from None
