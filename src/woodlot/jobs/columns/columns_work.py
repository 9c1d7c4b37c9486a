"""Jobs between parties with different columns of the same rows: align, train and predict."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from woodlot.data.ids import canonical_ids
from woodlot.data.labels import check_classes, check_targets, check_weights
from woodlot.data.tables import Table
from woodlot.data.values import natural_type
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.row_selection import own_row_key, seen_points, selected_rows
from woodlot.jobs.drift.drift_references import ColumnsReference
from woodlot.jobs.hidden.hidden_part import HIDDEN, HiddenPart, hidden_leader
from woodlot.jobs.hidden_roles import named_dealer
from woodlot.jobs.home import TakenOrder, private_errors, score_of
from woodlot.jobs.key_store import KEYS_FOLDER, KeyStore, forest_of_model
from woodlot.jobs.label_query import label_query
from woodlot.jobs.linear.linear_orders import PredictLinearOrder
from woodlot.jobs.ordered import Once, OrderedPrediction, OrderedReveal, OrderedScore, OrderedTraining, PlanWatch
from woodlot.jobs.orders import AlignedOrder, AlignOrder, PredictOrder, RevokeOrder, TrainOrder
from woodlot.privacy.accounting import UNITS, Unit
from woodlot.protocols.align import AlignParty, align_messages
from woodlot.protocols.align.align_party import AlignState
from woodlot.protocols.core.forest_parts import PartyForest, forget_values
from woodlot.protocols.core.forest_plan import ForestPlan, Task
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.hidden.hidden_messages import OpenHidden
from woodlot.protocols.hidden.hidden_train import HiddenLeader
from woodlot.protocols.revocable.key_messages import TestRows
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.protocols.revocable.row_test import RowTester, require_every_row
from woodlot.protocols.sums import SumClient
from woodlot.protocols.vertical import forest_messages
from woodlot.protocols.vertical.answers import match_columns
from woodlot.protocols.vertical.column_block import ColumnBlock
from woodlot.protocols.vertical.explain_messages import Explains
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.sealed import Sealer
from woodlot.protocols.vertical.spread import SpreadColumns
from woodlot.runtime.cluster import ClusterBlocks
from woodlot.trees.sampling import feature_key

D = TypeVar("D", bound=AlignedOrder)


OPENING = (forest_messages.OpenTraining, forest_messages.StartForest)
"""What opens a training; a party's policy is asked first."""
FOREST = tuple(kind for kind in VerticalParty.handlers if kind not in OPENING)
"""What is for the forest that is grown or used here."""
ALIGNMENT = tuple(kind for kind in AlignParty.handlers if kind is not align_messages.OpenAlignment)
"""What is for an alignment that is open."""


class ColumnsWork(MessageHandler):
    """What a party does for an order to align, to train or to predict."""

    _explains: Explains = "none"  # only a job that is ordered as an explanation shows anything

    def __init__(self, taken: TakenOrder[AlignedOrder]) -> None:
        self.home = taken.home
        self.job = taken.job
        self._taken = taken
        self._order = order = taken.order
        if self.home.cluster is not None:
            _check_spread(order)
        self._rows = self._known_rows()
        self._query = label_query(taken, self._rows)
        self._align: AlignParty | None = None
        self._forest: VerticalParty | None = None
        self._tester: RowTester | None = None
        self._watch: PlanWatch = OrderedScore()
        self._used, self._scored = Once(), Once()
        self._hidden: HiddenPart | None = None
        if isinstance(order, TrainOrder):
            self.home.policy.check_plan(order.plan)
            self.home.policy.check_protection(order.plan.protection)
            self.home.policy.check_dealer(named_dealer(order.dealer))

    def _known_rows(self) -> NDArray[np.int64] | None:
        """Own row of each common row, where these were found before or there is nobody to align with."""
        order, taken = self._order, self._taken
        if order.alignment is not None:
            rows = taken.home.store.alignment(order.alignment, order.row_parties, taken.loaded)
            if order.every_row and (rows < 0).any():
                raise DataError(
                    "it lacks rows of the alignment, and a training needs every row: align with join='inner'"
                )
        elif len(order.row_parties) == 1:
            rows = np.arange(taken.loaded.n_rows)
        else:
            return None
        return selected_rows(taken, rows)

    @property
    def n_aligned(self) -> int | None:
        """Rows that were aligned before, or need no alignment."""
        return None if self._rows is None else len(self._rows)

    @property
    def uncovered(self) -> tuple[Unit, ...]:
        """Of what the job tells something without differential privacy; an alignment knows no labels."""
        return ("rows",) if isinstance(self._order, AlignOrder) else UNITS

    # --- aligning ---

    @takes(align_messages.OpenAlignment)
    def _on_OpenAlignment(self, message: align_messages.OpenAlignment) -> Message:
        order = self._order
        ordered = (order.row_parties, order.method, order.join)
        if (
            order.alignment is not None
            or order.names_rows
            or (message.parties, message.method, message.join) != ordered
        ):
            raise RemoteProtocolError("the order does not ask for this alignment")
        return self._alignment().handle(message)

    @takes(*ALIGNMENT)
    def _align_on(self, message: Message) -> Message:
        return self._alignment().handle(message)

    def _alignment(self) -> AlignParty:
        if self._align is None:
            home = self.home
            self._align = AlignParty(
                home.identity.name,
                self._taken.loaded.ids,
                entropy=lambda purpose: home.store.secret_for(self.job, purpose),
                lasting=lambda purpose: home.store.secret_for("alignment", purpose),
                shared_secret=home.shared_secret,
                signer=home.signer(self.job),
                job=self.job,
            )
        return self._align

    def _common_rows(self) -> NDArray[np.int64]:
        """Own row of each common row; what the policy asks of their number is checked."""
        rows = self._rows
        if rows is None:
            if self._align is None or self._align.state != AlignState.aligned:
                raise RemoteProtocolError("the rows are not aligned yet")
            rows = self._align.rows
        self.home.policy.check_rows(len(rows))
        return rows

    @takes(msg.KeepAlignment)
    def _on_KeepAlignment(self, message: msg.KeepAlignment) -> msg.AlignmentKept:
        self.home.store.keep_alignment(
            self.job, self._order.row_parties, self._taken.loaded, self._common_rows(), row_key=self._row_key()
        )
        return msg.AlignmentKept()

    def _row_key(self) -> bytes:
        """The key by which parts of the common rows are selected."""
        if self._rows is None and self._align is not None:  # they are aligned in this job
            return self._align.row_key
        if self._order.alignment is None:
            return own_row_key(self._taken)
        return self.home.store.row_key(self._order.alignment, needed=False)

    @takes(*FOREST)
    def _ask_forest(self, message: Message) -> Message:
        if self._forest is None:
            raise RemoteProtocolError(
                f"Unexpected {type(message).__name__}; expected after a training or a model has been opened"
            )
        return self._ask(self._forest, message)

    def _ask(self, forest: VerticalParty, message: Message) -> Message:
        """Ask the forest that is grown or used here, unless the user has ordered something else."""
        self._watch.check(message)
        reply = forest.handle(message)
        self._watch.note(message)
        return reply

    def most_bytes(self, reply: Message) -> int:
        """As long as its answer to a prediction could be for so many rows; see `Work`."""
        return 0 if self._forest is None else self._forest.most_bytes(reply)

    def _due(self, kind: type[D]) -> D:
        if not isinstance(self._order, kind):
            raise RemoteProtocolError("the order does not ask for that")
        return self._order

    # --- training ---

    @takes(forest_messages.OpenTraining)
    def _on_OpenTraining(self, message: forest_messages.OpenTraining) -> Message:
        order = self._due(TrainOrder)
        if order.is_hidden:
            raise RemoteProtocolError("the order asks for a hidden training, and this one is open")
        return self._grow_by(order.plan, order.holder, message)

    def _grow_by(self, plan: ForestPlan, holder: str, message: forest_messages.OpenTraining) -> Message:
        """Open a training by a plan."""
        if self._forest is None:
            rows = self._common_rows()
            watch = OrderedTraining(plan, len(rows))
            watch.check(message)
            with private_errors(self.job, "its labels or its table cannot be used"):
                table = self._table(rows, self._features())
                self._forest = VerticalParty(
                    self.home.identity.name,
                    table,
                    target=self._target(plan.task, holder, rows),
                    secret=self.home.store.secret_for("forest", "codes"),
                    job_secret=self.home.store.secret_for(self.job, "labels"),
                    shares_model=self.home.policy.share_model,
                    sealed_only="decisions" not in self.home.policy.wire_forms,
                    min_leaf=self.home.policy.min_samples_leaf,
                    n_jobs=self.home.n_jobs,
                    room=self.home.room,
                    spread=self._spread(rows, table.names),
                    device=self.home.device,
                )
            self._watch = watch
        return self._ask(self._forest, message)

    def _table(self, rows: NDArray[np.int64], columns: Sequence[str]) -> Table:
        """The job's rows of some columns; a row that the party does not have (-1) is missing everywhere."""
        loaded, room = self._taken.loaded, self.home.room
        if room is not None:
            return loaded.stored(columns, rows, room.spool)
        return loaded.table().select(columns).take_or_missing(rows)

    def _spread(self, rows: NDArray[np.int64], columns: Sequence[str]) -> SpreadColumns | None:
        """The columns on the party's cluster, if it has one: each block reads its own from the source."""
        if self.home.cluster is None or not columns:
            return None
        source, name = self.home.tables[self._taken.part.table], self.home.identity.name
        secret = self.home.store.secret_for("forest", "codes")
        keys = np.array([feature_key(column, name, secret) for column in columns], np.uint64)

        def block(of: range) -> tuple[Any, ...]:
            return source, columns[of.start : of.stop], rows, keys[of.start : of.stop]

        return SpreadColumns(ClusterBlocks(self.home.cluster(), ColumnBlock, len(columns), block))

    def _target(self, task: Task, holder: str, rows: NDArray[np.int64]) -> Target | None:
        return self._own_target(task == "classes", rows) if holder == self.home.identity.name else None

    def _own_target(self, classes: bool, rows: NDArray[np.int64]) -> Target:
        """The label holder's labels and weights."""
        part, loaded = self._taken.part, self._taken.loaded
        if part.label is None:
            raise DataError("the order names no column of labels")
        labels = natural_type(loaded.values(part.label)[rows])
        weights = None if part.weight is None else loaded.values(part.weight)[rows]
        checked = check_weights(weights, labels)
        if classes:
            target = Target.of_classes(check_classes(labels), checked)
        else:
            target = Target.of_values(check_targets(labels), checked)
        self._taken.pay_training()  # last of what can refuse here: labels that cannot be used cost nothing
        return target

    @takes(forest_messages.StartForest)
    def _start_training(self, message: forest_messages.StartForest) -> Message:
        self.home.policy.check_leaf(message.min_samples_leaf)
        if isinstance(plan := self._plan(), ForestPlan):
            self.home.policy.check_cells(plan, len(self._common_rows()))
        return self._ask(self._training(), message)

    def _training(self) -> VerticalParty:
        if isinstance(self._order, PredictOrder) or self._forest is None:
            raise RemoteProtocolError("no training is open here")
        return self._forest

    # --- hidden training ---

    @takes(*HIDDEN)
    def _on_hidden(self, message: Message) -> Message:
        """Answer as a party that is not the label holder."""
        order = self._hidden_order()
        if not order.is_hidden or order.holder == self.home.identity.name:
            raise RemoteProtocolError(f"the order does not ask this party for {type(message).__name__}")
        if self._hidden is None and isinstance(message, OpenHidden):
            part = HiddenPart(*self._hidden_rows(order))
            reply = part.handle(message)
            self._hidden = part
            return reply
        if self._hidden is None:
            raise RemoteProtocolError(f"Unexpected {type(message).__name__}; expected after OpenHidden")
        reply = self._hidden.handle(message)
        if (grown := self._hidden.grown(message)) is not None:
            self.keep_hidden(grown)
        return reply

    def hidden_leader(self) -> HiddenLeader:
        """This party as the label holder that leads a hidden training."""
        order = self._hidden_order()
        taken, rows, table = self._hidden_rows(order)
        with private_errors(self.job, "its labels or its table cannot be used"):
            return hidden_leader(taken, rows, table, self._own_target(order.plan.task == "classes", rows))

    def _hidden_order(self) -> TrainOrder:
        """The training that was ordered."""
        return self._due(TrainOrder)

    def _hidden_rows(self, order: TrainOrder) -> tuple[TakenOrder[TrainOrder], NDArray[np.int64], Table]:
        rows, taken = self._common_rows(), self._taken
        self.home.policy.check_leaf(order.plan.rules(len(rows), len(rows)).min_samples_leaf)
        self.home.policy.check_cells(order.plan, len(rows))
        with private_errors(self.job, "its labels or its table cannot be used"):
            table = self._table(rows, self._features())
        self._check_difference(order.plan, rows)
        return TakenOrder(taken.home, order, taken.user, taken.certificate, taken.part, taken.loaded), rows, table

    def _check_difference(self, plan: ForestPlan, rows: NDArray[np.int64]) -> None:
        """Refuse a hidden training on nearly the same rows as another one: the difference of its counts tells of few.

        A partner that leaves out one of its ids, or a user who names parts, could have single rows counted.
        """
        least = self.home.policy.min_difference
        least = plan.cell(len(rows)) if least is None else least
        if self._features():
            self.home.store.evaluated.take_whole(self._taken.loaded.name, self._seen_points(rows), max(least, 1))

    def _seen_points(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        with private_errors(self.job, "its ids cannot be used"):
            return seen_points(self._taken, rows)

    def keep_hidden(self, part: PartyForest) -> None:
        """Take this party's part of a forest that was grown hidden; it is kept as any other."""
        with private_errors(self.job, "its table cannot be used"):
            table = self._table(self._common_rows(), self._features())
            self._forest = VerticalParty(
                self.home.identity.name,
                table,
                forest=part,
                secret=self.home.store.secret_for("forest", "codes"),
                shares_model=self.home.policy.share_model,
                n_jobs=self.home.n_jobs,
            )
        self._watch = OrderedReveal()

    @takes(msg.KeepModel)
    def _on_KeepModel(self, message: msg.KeepModel) -> msg.ModelKept:
        forest = self._training()
        if forest.state not in forest.grown_in:
            raise RemoteProtocolError("Unexpected KeepModel; expected after the forest has grown")
        part = forget_values(forest.grown_forest())
        digest = self.home.store.keep_model(self.job, message.forest, part, self._order.leader)
        # a party may leave later: the forest is then regrown on the same rows, by the same plan
        self.home.store.keep_alignment(
            self.job,
            self._order.row_parties,
            self._taken.loaded,
            self._common_rows(),
            self._plan(),
            self._taken.part.label,
            row_key=self._row_key(),
            features=self._features(),
        )
        self._keep_seen()
        if "forget" in self.home.policy.protocols:  # to know its rows again when some are deleted from the table
            ids = canonical_ids(self._taken.loaded.ids).values
            self.home.store.keep_trained_on(self.job, [ids[row] for row in self._common_rows().tolist()])
        if "drift" in self.home.policy.protocols and forest.table.names:
            self.home.store.keep_reference(self.job, ColumnsReference.of(forest.table))
        secret = self.home.store.secret_for("forest", "fingerprint")
        return msg.ModelKept(digest=hmac.new(secret, digest.encode(), hashlib.sha256).hexdigest())

    def _keep_seen(self) -> None:
        """Keep which rows the labels of this party were learnt from, to say so when the model is scored on them."""
        if self._taken.part.label is not None:
            self.home.store.keep_seen(self.job, self._seen_points(self._common_rows()))

    def _features(self) -> list[str]:
        """The columns that are learnt from here."""
        return self._taken.features

    def _plan(self) -> ForestPlan | RevocablePlan | None:
        """By which plan the forest of this job is grown."""
        return self._order.plan if isinstance(self._order, TrainOrder) else None

    # --- predicting ---

    @takes(msg.UseModel)
    def _on_UseModel(self, message: msg.UseModel) -> msg.ModelReady:
        order, home = self._due(PredictOrder), self.home
        self._used.check(message)
        if self._used.answered:
            return msg.ModelReady()  # a forest that is opened again would forget on which paths rows have gone
        rows = self._rows_to_predict(order, message)
        home.policy.check_wire_form(order.form)
        part = home.store.model(message.model, message.forest)
        tested = order.how == "encrypted-splits"
        tester = self._make_tester(part, forest_of_model(message.model, message.forest), rows) if tested else None
        forest = None if tested else self._make_predictor(order, part, rows)
        self._spend(rows)
        self._tester, self._forest, self._watch = tester, forest, self._watch_for(order)
        self._used.note(message)
        return msg.ModelReady()

    def _watch_for(self, order: PredictOrder) -> PlanWatch:
        """What the parties may be asked for this order."""
        return OrderedPrediction(order)

    def _make_predictor(self, order: PredictOrder, part: PartyForest, rows: NDArray[np.int64]) -> VerticalParty:
        home = self.home
        with self._private_table():
            return VerticalParty(
                home.identity.name,
                self._table(rows, self._taken.loaded.features),
                forest=part,
                known=None if (rows >= 0).all() else rows >= 0,
                secret=home.store.secret_for("forest", "codes"),
                sealer=self._sealer(order, rows) if order.how == "sealed" else None,
                explains=self._explains,
                n_jobs=home.n_jobs,
            )

    def _make_tester(self, part: PartyForest, fingerprint: str, rows: NDArray[np.int64]) -> RowTester:
        """This party in FRF-Test, with the keys that the order names to it."""
        require_every_row(rows >= 0)
        keys, _ = KeyStore(self.home.store.folder / KEYS_FOLDER).load(self._taken.part.keys, self.job)
        if keys is None:
            raise DataError("it has no keys of this model, or not under the name that the order gives")
        with self._private_table():
            columns = match_columns(part.names, part.codings, self._table(rows, self._taken.loaded.features))
        store, job = self.home.store, self.job
        return RowTester(
            part,
            columns,
            keys,
            fingerprint=fingerprint,
            threads=self.home.n_jobs,
            # what was answered before the first wrong copy is answered again when the job is rebuilt
            deceived=lambda: not self.home.replays(job) and store.was_deceived(job),
            note_deceived=lambda: store.note_deceived(job),
        )

    @takes(TestRows)
    def _on_TestRows(self, message: TestRows) -> Message:
        if self._tester is None:
            raise RemoteProtocolError("Unexpected TestRows; expected after a model has been opened to be tested")
        self._watch.check(message)
        if not self.home.replays(self.job):
            KeyStore(self.home.store.folder / KEYS_FOLDER).check_present(self._taken.part.keys, self._tester.keys)
        return self._tester.handle(message)

    def _rows_to_predict(self, order: PredictOrder | PredictLinearOrder, message: msg.UseModel) -> NDArray[np.int64]:
        """Own row of each row to predict, -1 where it is missing; what was not ordered is refused."""
        if order.model != message.model:
            raise RemoteProtocolError("the order is for another model")
        rows = self._common_rows()
        if message.n_rows != len(rows):
            raise RemoteProtocolError(f"the coordinator speaks of {message.n_rows} rows, there are {len(rows)} here")
        return rows

    def _private_table(self) -> AbstractContextManager[None]:
        return private_errors(self.job, "its table does not have the columns that the model was trained with")

    def _spend(self, rows: NDArray[np.int64]) -> None:
        self.home.store.spend_predictions(self.job, self._taken.user, int((rows >= 0).sum()), datetime.now(UTC))

    def _sealer(self, order: PredictOrder, rows: NDArray[np.int64]) -> Sealer:
        """Secrets of this job's sealed answers: other data or another model would have others."""
        home = self.home

        def entropy(purpose: str) -> bytes:
            return home.store.secret_for(self.job, purpose)

        about = f"{self._taken.loaded.digest} {order.model}".encode()
        digest = hashlib.sha256(about + rows.tobytes()).digest()
        sums = SumClient(
            home.identity.name,
            job=self.job,
            entropy=entropy,
            signer=home.signer(self.job),
            shared_secret=home.shared_secret,
            allow_two=True,
            data_digest=digest,
        )
        return Sealer(home.identity.name, sums, entropy=entropy, data_digest=digest)

    @takes(msg.TakeAnswers)
    def _on_TakeAnswers(self, message: msg.TakeAnswers) -> msg.AnswersTaken:
        order, name, rows = self._order, self.home.identity.name, self._common_rows()
        if not isinstance(order, PredictOrder | PredictLinearOrder):
            raise RemoteProtocolError("the order does not ask for that")
        if len(message.outputs) != len(rows):
            raise RemoteProtocolError("the answers do not fit the rows of this job")
        if (message.keep and order.deliver_to != name) or (message.score and order.score_at != name):
            raise RemoteProtocolError("the order does not give the answers to this party")
        if message.outputs.shape[1] != max(1, len(message.classes)) or not np.isfinite(message.outputs).all():
            raise RemoteProtocolError("the answers are not those of a model")
        score = None
        if message.score:
            self._scored.check(message)
            query = self._query
            if query is None:
                raise RemoteProtocolError("the order does not ask this party for a score")
            told = query.check_rows(rows)
            with private_errors(self.job, "its labels cannot be used"):
                score = self._score(message.outputs[told], message.classes, rows[told])
            query.pay(rows[told])
        if message.keep:
            self.home.store.keep_answers(
                self.job, self._taken.loaded, rows, message.outputs, message.classes, model=order.model
            )
        if message.score:
            self._scored.note(message)
        return msg.AnswersTaken(score=score)

    def _score(self, outputs: NDArray[np.float64], classes: Sequence[Any], rows: NDArray[np.int64]) -> float:
        labels = natural_type(self._taken.loaded.values(str(self._taken.part.label))[rows])
        return score_of(labels, outputs, classes)


def _check_spread(order: AlignedOrder) -> None:
    """Refuse what is not done on a cluster."""
    if isinstance(order, TrainOrder) and order.is_hidden:
        refused = "protection='hidden'"
    elif isinstance(order, RevokeOrder):
        refused = "revoking a partner"
    else:
        return
    raise PolicyError(
        f"this party's columns are on a cluster, where {refused} is not supported: let the party take the setting "
        "cluster out for this job"
    )
