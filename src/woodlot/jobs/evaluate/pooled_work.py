"""A client in an evaluation over rows: its policy first, then counts of answers beside its labels, for sums."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from woodlot.data.labels import check_classes, check_targets
from woodlot.data.values import natural_type
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs.evaluate import pooled_messages as msg
from woodlot.jobs.evaluate.report_seal import ReportSeal
from woodlot.jobs.evaluate.sum_pads import PAD_BOUND, padded
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.label_query import LabelQuery
from woodlot.jobs.ordered import Once
from woodlot.jobs.rows.brought_forest import brought_forest, check_named
from woodlot.jobs.rows.own_rows import count_seen, every_row, own_rows
from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder
from woodlot.metrics.class_numbers import ClassNumbers
from woodlot.metrics.pooled_classes import GRID, check_cuts, class_vector, grid_counts, ranked_classes, vector_length
from woodlot.metrics.pooled_targets import centre_of, target_length, target_vector
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import summarise
from woodlot.metrics.target_numbers import TargetNumbers
from woodlot.privacy.accounting import UNITS
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.rows.releases import digest_of
from woodlot.protocols.sums.sum_client import SumClient
from woodlot.protocols.sums.sum_messages import MaskedVector, OpenSums, PlainVector, StartSums
from woodlot.protocols.vertical.answers import match_columns
from woodlot.trees.predict import Predictor

logger = logging.getLogger(__name__)


class EvaluateRowsWork(MessageHandler):
    """What a client does for an order to evaluate a whole forest.

    What can be refused is refused when it is made, before any client has been asked for anything.
    """

    n_aligned = None
    uncovered = UNITS

    def __init__(self, taken: TakenOrder[EvaluateRowsOrder]) -> None:
        home, order = taken.home, taken.order
        check_named(order)
        self._taken = taken
        self._answered, self._counted, self._asked_for = Once(), Once(), Once()
        self._numbers: ClassNumbers | TargetNumbers | None = None
        self._centre = 0.0
        try:
            self._resampling = Resampling(order.bootstrap.n, order.bootstrap.confidence, order.bootstrap.seed)
        except ValueError as error:
            raise DataError(str(error)) from None
        self._seal = ReportSeal(taken.part.key, taken.job, home.identity.name)
        home.policy.check_sums(plain=False, two=len(order.parties) == 2)
        self._query = LabelQuery(taken)
        self._query.check_day()
        self._rows = own_rows(taken)
        self._numbered = every_row(taken, self._rows)
        home.policy.check_rows(len(self._numbered), "rows")
        with private_errors(taken.job, "its ids cannot be used"):
            self._query.points(self._numbered)
        told = self._query.check_rows(self._numbered)
        if not told.all():
            self._rows = self._numbered = self._numbered[told]
        self._seen = count_seen(taken, self._rows)
        self._sums = SumClient(
            home.identity.name,
            job=taken.job,
            entropy=lambda purpose: home.store.secret_for(taken.job, purpose),
            signer=home.signer(taken.job),
            shared_secret=home.shared_secret,
            allow_two=order.allow_two and home.policy.allow_two,
            data_digest=bytes.fromhex(taken.loaded.digest),
        )

    @takes(OpenSums)
    def _on_OpenSums(self, message: OpenSums) -> Message:
        if set(message.clients) != set(self._taken.order.parties):
            raise RemoteProtocolError("sums are over all parties of the order, and over nobody else")
        return self._sums.handle(message)

    @takes(StartSums)
    def _on_StartSums(self, message: StartSums) -> Message:
        return self._sums.handle(message)

    @takes(msg.AnswerOwnRows)
    def _on_AnswerOwnRows(self, message: msg.AnswerOwnRows) -> msg.OwnRowsAnswered:
        taken, home = self._taken, self._taken.home
        self._answered.check(message)
        numbers, centre = self._beside_labels(message)
        report = None
        if home.policy.own_evaluations:
            drawn = replace(self._resampling, seed=self._query.seed(self._numbered, self._resampling.seed))
            own = summarise(numbers, drawn, self._seen, home.policy.round_counts)
            report = np.frombuffer(self._seal.seal(own), np.uint8)
        # last of what can refuse: an order that comes to nothing costs nothing
        self._query.pay(self._numbered)
        if self._numbers is None:  # were another client brought another forest, the masks would not cancel
            self._sums.note(digest_of(message))
        self._numbers, self._centre = numbers, centre
        self._answered.note(message)
        if self._seen:
            logger.warning(
                "job %s evaluates on rows of the training: %d of %d", taken.job, self._seen, len(numbers),
                extra={"job": taken.job, "user": taken.user},
            )  # fmt: skip
        return msg.OwnRowsAnswered(round_counts=home.policy.round_counts, report=report)

    def _beside_labels(self, message: msg.AnswerOwnRows) -> tuple[ClassNumbers | TargetNumbers, float]:
        """The answers of a forest beside the labels, and the centre of its answers."""
        taken, job = self._taken, self._taken.job
        forest, part = brought_forest(taken.order, message)
        loaded = taken.loaded
        with private_errors(job, "its table does not have the columns that the model was trained with"):
            table = loaded.table().select(loaded.features)
            table = table if self._rows is None else table.take(self._rows)
            columns = match_columns(part.names, part.codings, table)
        predictor = Predictor(forest.structure, part.splits, forest.leaves)
        outputs = predictor.predict_outputs(columns, table.n_rows, "soft", taken.home.n_jobs)
        with private_errors(job, "its labels cannot be used"):
            labels = loaded.values(str(taken.part.label))
            labels = natural_type(labels if self._rows is None else labels[self._rows])
            if not forest.classes:
                return TargetNumbers(check_targets(labels), outputs[:, 0]), centre_of(forest.leaves.value.tolist())
            labels = check_classes(labels)
        with private_errors(job, "some of its rows have classes that the model was not trained with"):
            return ClassNumbers(labels, outputs, np.array(forest.classes, object)), 0.0

    @takes(msg.CountScores)
    def _on_CountScores(self, message: msg.CountScores) -> MaskedVector | PlainVector:
        numbers = self._rated(message)
        if not isinstance(numbers, ClassNumbers):
            raise RemoteProtocolError("the model predicts numbers, which have no probabilities")
        self._counted.check(message)
        if message.order.length != GRID * len(ranked_classes(len(numbers.classes))):
            raise RemoteProtocolError("the order of the sum does not fit the bins")
        reply = self._sums.answer(message.order, grid_counts(numbers), digest_of(message), whole=True)
        self._counted.note(message)
        return reply

    @takes(msg.RateOwnRows)
    def _on_RateOwnRows(self, message: msg.RateOwnRows) -> MaskedVector | PlainVector:
        numbers, taken, to = self._rated(message), self._taken, self._taken.home.policy.round_counts
        self._asked_for.check(message)
        if isinstance(numbers, ClassNumbers):
            check_cuts(message.cuts, len(numbers.classes))
            length = vector_length(len(numbers.classes), message.cuts)
        else:
            length = target_length()
        if message.order.length != length or message.order.bound < PAD_BOUND:
            raise RemoteProtocolError("the order of the sum does not fit the report")
        with private_errors(taken.job, "its labels cannot be used"):
            if isinstance(numbers, ClassNumbers):
                vector = class_vector(numbers, message.cuts, self._seen, to)
            else:
                vector = target_vector(numbers, self._centre, self._seen, to)
        hidden = padded(vector, taken.part.key, taken.job, taken.home.identity.name)
        reply = self._sums.answer(message.order, hidden, digest_of(message), whole=True)
        self._asked_for.note(message)
        return reply

    def _rated(self, message: Message) -> ClassNumbers | TargetNumbers:
        if self._numbers is None:
            raise RemoteProtocolError(f"Unexpected {type(message).__name__}; expected after AnswerOwnRows")
        return self._numbers
