"""What a party keeps between jobs: its secret, its parts of models, alignments, and the answers it was given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.archives import parse_array
from woodlot.data.decoding import from_json
from woodlot.data.row_rules import row_points
from woodlot.data.sources import LoadedTable
from woodlot.data.whole_files import erase_folder, private_folder, write_whole
from woodlot.exceptions import DataError, JournalError, ModelFileError, PolicyError
from woodlot.jobs.day_budgets import PredictionBudget
from woodlot.jobs.delivered_answers import ANSWERS, erase_answers, write_answers
from woodlot.jobs.drift.drift_references import ColumnsReference
from woodlot.jobs.evaluated_rows import EvaluatedRows
from woodlot.jobs.held_models import HeldModels
from woodlot.jobs.lasting_secret import CHECK_FILE, LastingSecret
from woodlot.jobs.orders import JOB_ID
from woodlot.jobs.policy import UNLIMITED, Limit
from woodlot.jobs.restored import Restored
from woodlot.jobs.rows.row_records import RowTrainingRecord
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.linear.linear_files import load_own_linear, save_own_linear
from woodlot.protocols.linear.linear_model import PartyLinear
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.protocols.vertical.files import load_own_part, save_own_part

AnyPlan = TypeVar("AnyPlan", ForestPlan, RevocablePlan)
P = TypeVar("P")

_SECRET_REMEDY = (
    f"move away this file, {CHECK_FILE}, models and alignments, and nothing else: a new secret is made, and models and "
    "alignments must be made again with the other parties. Keep journal.sqlite, which has what was spent of privacy"
)
LEADER = "leader"
"""Names who has led the training of a model; not there where the coordinator has run it."""
SEEN = "seen.npy"
TRAINED_ON = "trained_on.npy"
"""Which rows a model was trained on: beside its alignment, at the label holder."""
REFERENCE = "reference.json"
ROW_TRAINING = "row_training.json"
"""By what a forest over rows was grown."""
FORMER = "former"
"""Names the model that a forest over rows takes the place of, until the job that grows it has ended."""
DROPPED = "dropped"
"""Marks a model that is to be erased, with the job that has replaced it."""
_DECEIVED = "deceived"
_UNKNOWN_MODEL = "it does not know this model; was it trained with another state folder?"


class PartyStore:
    """The state folder of a party.

    ::

        state/
          secret              32 random bytes: the key of all codes that leave the party
          secret.check        tells a damaged or lost secret from a new one
          predictions.sqlite  how many rows were predicted on which day, and which labels were learnt from
          evaluated.sqlite    which rows were evaluated, compared with a training, or in hidden trainings
          models/JOB/         the party's part of each model
          alignments/JOB/     which rows were common, and of which table
          answers/JOB.parquet answers that were delivered here, with the ids
          restored.json       when the folder was put back from a backup
          deceived/JOB        jobs in which the coordinator's copies of this party's splits were wrong

    Parameters
    ----------
    folder : Path
        Made if it is not there; only its owner may enter.
    party : str
        The party's name.
    predictions_per_day, trainings_per_day, evaluations_per_day, explanations_per_day : int or "unlimited"
        The policy's limits.

    Attributes
    ----------
    evaluated : EvaluatedRows
        Which rows were told of: in evaluations, hidden trainings and comparisons.
    restored : Restored
        When the folder was put back from a backup.

    """

    def __init__(
        self,
        folder: Path,
        party: str,
        predictions_per_day: Limit = UNLIMITED,
        trainings_per_day: Limit = UNLIMITED,
        evaluations_per_day: Limit = UNLIMITED,
        explanations_per_day: Limit = UNLIMITED,
    ) -> None:
        self.folder = folder
        self.party = party
        try:
            private_folder(folder)
            self._secret = LastingSecret(folder, "party", _SECRET_REMEDY)
        except OSError as error:
            raise JournalError(
                f"the state folder {folder} cannot be used: {error}; let this user write there"
            ) from None
        self.restored = Restored(folder)
        self._budget = PredictionBudget(
            folder, predictions_per_day, trainings_per_day, evaluations_per_day, explanations_per_day
        )
        self.evaluated = EvaluatedRows(folder)
        self._held = HeldModels()

    def close(self) -> None:
        """Close what is open."""
        self._budget.close()
        self.evaluated.close()

    def secret_for(self, scope: str, purpose: str) -> bytes:
        """Secret bytes, always the same for this party, scope and purpose."""
        return self._secret.of(self.restored.scope(scope), purpose)

    def spend_predictions(self, job: str, user: str, rows: int, now: datetime) -> None:
        """Take rows from the day's budget; see `PredictionBudget.spend`."""
        self._budget.spend(job, user, rows, now)

    def spend_explanation(self, job: str, user: str, rows: int, now: datetime) -> None:
        """Take rows from the day's budgets; see `PredictionBudget.spend_explanation`."""
        self._budget.spend_explanation(job, user, rows, now)

    def spend_batch(self, job: str, batch: int, digest: bytes, user: str, rows: int, now: datetime) -> None:
        """Take the rows of a scoring's batch from the day's budget; see `PredictionBudget.spend_batch`."""
        self._budget.spend_batch(job, batch, digest, user, rows, now)

    def spend_training(self, job: str, label: str, user: str, now: datetime) -> None:
        """Take a training from the day's budget of a label; see `PredictionBudget.spend_training`."""
        self._budget.spend_training(job, label, user, now)

    def check_evaluation(self, job: str, label: str, now: datetime) -> None:
        """Refuse an evaluation that the day's budget does not allow; see `PredictionBudget.check_evaluation`."""
        self._budget.check_evaluation(job, label, now)

    def spend_evaluation(self, job: str, label: str, user: str, now: datetime) -> None:
        """Take an evaluation from the day's budget of a label; see `PredictionBudget.spend_evaluation`."""
        self._budget.spend_evaluation(job, label, user, now)

    def forget_batches(self, job: str) -> None:
        """No batch of a job will come any more."""
        self._budget.end(job)

    # --- jobs in which the coordinator was wrong ---

    def note_deceived(self, job: str) -> None:
        """Keep that a job's coordinator has sent wrong copies of this party's splits."""
        with _on_disk("that the coordinator was wrong"):
            private_folder(self.folder / _DECEIVED)
            write_whole(self.folder / _DECEIVED / job, lambda file: file.write(b""))

    def was_deceived(self, job: str) -> bool:
        """Whether a job's coordinator has sent wrong copies of this party's splits."""
        return (self.folder / _DECEIVED / job).exists()

    def forget_deceived(self, job: str) -> None:
        """Forget it: the job has ended, and nothing of it is answered any more."""
        with _on_disk("the end of a job"):
            (self.folder / _DECEIVED / job).unlink(missing_ok=True)

    # --- models ---

    def keep_model(self, job: str, forest: str, part: PartyForest, leader: str | None = None) -> str:
        """Store the party's part of a forest, and in one step who has led its training; returns its fingerprint."""
        with _on_disk("its part of the model"):
            return save_own_part(self.folder / "models" / job, self.party, forest, part, _mark_of(leader))

    def model(self, job: str, forest: str, *, by: str = "") -> PartyForest:
        """The party's part of a forest; one that was replaced when a party left serves the job that did so only."""
        self.check_model(job, by=by)
        return self._part(
            job,
            lambda folder: self._held.read(folder, forest, lambda: load_own_part(folder, self.party, forest)),
        )

    def check_model(self, job: str, *, by: str = "") -> None:
        """Refuse a model that is not there any more, or was replaced by another job than this."""
        folder = self.folder / "models" / job
        if not folder.is_dir():
            raise DataError(_UNKNOWN_MODEL)
        dropped = folder / DROPPED
        if dropped.is_file() and dropped.read_bytes() != by.encode():
            raise DataError("this model was replaced when a party left it, or rows were forgotten; use its successor")

    def check_leader(self, model: str, leader: str | None) -> None:
        """Refuse to use a model for anybody but who has led its training: it would learn what only the leader may."""
        folder = self.folder / "models" / model
        path = folder / LEADER
        if folder.is_dir() and (path.read_bytes().decode() if path.is_file() else "") != (leader or ""):
            raise PolicyError("the order does not name who has led the training of this model; only it leads its jobs")

    def has_no_part(self, job: str) -> bool:
        """Whether this party has never kept a part of a forest."""
        return not (self.folder / "models" / job).is_dir()

    def was_grown_hidden(self, job: str) -> bool:
        """Whether this party has a part of a forest that was grown on secret shares."""
        if self.has_no_part(job) or not (self.folder / "alignments" / job / "facts.json").is_file():
            return False  # not here, or a linear model, which is kept without its plan
        plan = read_alignment(self.folder, job)[0].plan
        return plan is not None and plan.protection == "hidden"

    def keep_linear(self, job: str, model: str, part: PartyLinear, leader: str | None = None) -> str:
        """Store the party's part of a linear model, and who has led its training; returns its fingerprint."""
        with _on_disk("its part of the model"):
            return save_own_linear(self.folder / "models" / job, self.party, model, part, _mark_of(leader))

    def linear(self, job: str, model: str) -> PartyLinear:
        """The party's part of a linear model."""
        return self._part(job, lambda folder: load_own_linear(folder, self.party, model))

    def _part(self, job: str, load: Callable[[Path], P]) -> P:
        folder = self.folder / "models" / job
        if not folder.is_dir():
            raise DataError(_UNKNOWN_MODEL)
        try:
            return load(folder)
        except ModelFileError as error:
            raise DataError(f"its part of the model cannot be used: {str(error).replace(str(folder), 'it')}") from None

    def drop_model(self, model: str, job: str) -> None:
        """Use the party's part of a forest no longer; it is erased when the job that replaces it has ended."""
        with _on_disk("the end of its part of a model"):
            write_whole(self.folder / "models" / model / DROPPED, lambda file: file.write(job.encode()))

    def erase_dropped(self, job: str) -> None:
        """Erase what a job has replaced."""
        with _on_disk("the end of its part of a model"):
            kinds = (self.folder / kind for kind in ("alignments", "models"))
            for mark in (mark for folder in kinds for mark in folder.glob(f"[!.]*/{DROPPED}")):
                with suppress(FileNotFoundError):  # another job erases what it has replaced
                    if mark.read_bytes() == job.encode():
                        self.erase_model(mark.parent.name)

    def erase_model(self, model: str) -> None:
        """Erase the party's part of a model, and which rows it was trained on."""
        with _on_disk("the end of its part of a model"):
            self._held.forget(model)
            for kind in ("alignments", "models"):
                erase_folder(self.folder / kind / model)

    # --- alignments ---

    def keep_alignment(
        self,
        job: str,
        parties: Sequence[str],
        table: LoadedTable,
        rows: NDArray[np.int64],
        plan: ForestPlan | RevocablePlan | None = None,
        label: str | None = None,
        *,
        row_key: bytes = b"",
        features: Sequence[str] | None = None,
    ) -> None:
        """Store which rows are the common ones, and where a forest was grown on them, by which plan and label."""
        facts = AlignmentFacts(
            tuple(parties),
            table.name,
            table.digest,
            plan if isinstance(plan, ForestPlan) else None,
            plan if isinstance(plan, RevocablePlan) else None,
            label,
            row_key.hex(),
            None if features is None else tuple(features),
        )
        with _on_disk("the alignment"):
            folder = self.folder / "alignments" / job
            private_folder(folder)
            write_whole(folder / "rows.npy", lambda file: np.save(file, rows, allow_pickle=False))
            write_whole(folder / "facts.json", lambda file: file.write(msgspec.json.encode(facts)))

    def alignment(self, job: str, parties: Sequence[str], table: LoadedTable) -> NDArray[np.int64]:
        """The common rows that were found before, unless the table has changed since."""
        facts, rows = read_alignment(self.folder, job)
        if not set(parties) <= set(facts.parties):
            raise DataError("the alignment was made without some of these parties; align again")
        if facts.table != table.name or facts.digest != table.digest:
            raise DataError("its table has changed since it was aligned, or is another one; align again")
        return rows

    def row_key(self, job: str, *, needed: bool = True) -> bytes:
        """The key by which rows of an alignment are selected; refused where there is none and it is needed."""
        facts, _ = read_alignment(self.folder, job)
        if needed and not facts.row_key:
            raise DataError("its rows were aligned before parts of them could be selected; align again")
        return bytes.fromhex(facts.row_key)

    def features_of(self, model: str) -> tuple[str, ...] | None:
        """The columns that a forest was grown on; None where it was grown before that was recorded."""
        return read_alignment(self.folder, model)[0].features

    # --- rows that models were trained on ---

    def keep_seen(self, model: str, points: NDArray[np.uint64]) -> None:
        """Store which rows a model was trained on, as keyed hashes of their ids, to tell when it is scored on them."""
        with _on_disk("the rows of a training"):
            folder = self.folder / "alignments" / model
            private_folder(folder)
            write_whole(folder / SEEN, lambda file: np.save(file, np.sort(points), allow_pickle=False))

    def count_seen(self, model: str, points: NDArray[np.uint64]) -> int | None:
        """How many rows were in a model's training; None where that is not known here."""
        try:
            seen = parse_array((self.folder / "alignments" / model / SEEN).read_bytes())
        except (OSError, ValueError):
            return None
        return int(np.isin(points, seen).sum())

    def keep_trained_on(self, model: str, ids: Sequence[bytes]) -> None:
        """Store which rows a model was trained on, in their common order, to know them when some are forgotten."""
        with _on_disk("the rows of a training"):
            folder = self.folder / "alignments" / model
            private_folder(folder)
            points = self.trained_points(ids)
            write_whole(folder / TRAINED_ON, lambda file: np.save(file, points, allow_pickle=False))

    def trained_on(self, model: str) -> NDArray[np.uint64] | None:
        """What `keep_trained_on` has stored; None where nothing was."""
        path = self.folder / "alignments" / model / TRAINED_ON
        try:
            return parse_array(path.read_bytes()) if path.is_file() else None
        except (OSError, ValueError):
            raise DataError("its record of the rows of the training is damaged; train the model again") from None

    def trained_points(self, ids: Sequence[bytes]) -> NDArray[np.uint64]:
        """Hashes of ids under a key of this party alone, by which it knows rows of a training again."""
        return row_points(ids, 0, self.secret_for("rows", "trained on"))

    def keep_row_training(self, model: str, training: RowTrainingRecord) -> None:
        """Store by what a forest over rows was grown."""
        with _on_disk("the rows of a training"):
            folder = self.folder / "alignments" / model
            private_folder(folder)
            write_whole(folder / ROW_TRAINING, lambda file: file.write(msgspec.json.encode(training)))

    def row_training(self, model: str, *, by: str = "") -> RowTrainingRecord | None:
        """By what a forest over rows was grown; None where nothing was kept. One that was replaced serves that job."""
        path = self.folder / "alignments" / model / ROW_TRAINING
        dropped = path.with_name(DROPPED)
        if dropped.is_file() and dropped.read_bytes() != by.encode():
            raise DataError("rows of this model were forgotten; use its successor")
        try:
            return from_json(path.read_bytes(), RowTrainingRecord) if path.is_file() else None
        except (OSError, ValueError):
            raise DataError("its record of the training is damaged; train the model again") from None

    def drop_row_training(self, model: str, job: str) -> None:
        """Use this record no longer; it is erased when the job that replaces the model has ended."""
        with _on_disk("the end of a model"):
            write_whole(self.folder / "alignments" / model / DROPPED, lambda file: file.write(job.encode()))

    def keep_former(self, job: str, model: str) -> None:
        """Store which model the forest over rows that a job grows takes the place of."""
        with _on_disk("the rows of a training"):
            folder = self.folder / "alignments" / job
            private_folder(folder)
            write_whole(folder / FORMER, lambda file: file.write(model.encode()))

    def end_row_training(self, job: str, *, done: bool) -> None:
        """Erase the records of the former model where a job over rows is done; where it has failed, its own."""
        if not JOB_ID.fullmatch(job):
            return
        kept = self.folder / "alignments"
        with _on_disk("the end of a model"):
            if not done:
                for mark in kept.glob(f"[!.]*/{DROPPED}"):
                    if mark.read_bytes() == job.encode():
                        mark.unlink()  # the former model stays in use
                _erase_own_rows(kept / job)
            elif (kept / job / FORMER).is_file():
                _erase_own_rows(kept / (kept / job / FORMER).read_bytes().decode())
                (kept / job / FORMER).unlink()

    def keep_reference(self, model: str, reference: ColumnsReference) -> None:
        """Store what new rows are compared with, beside the rows of the training; it goes when the model goes."""
        with _on_disk("what new rows are compared with"):
            folder = self.folder / "alignments" / model
            private_folder(folder)
            write_whole(folder / REFERENCE, lambda file: file.write(msgspec.json.encode(reference)))

    def reference(self, model: str) -> ColumnsReference | None:
        """What new rows are compared with; None where nothing was kept."""
        try:
            return from_json((self.folder / "alignments" / model / REFERENCE).read_bytes(), ColumnsReference)
        except (OSError, ValueError):
            return None

    def check_leaver(self, model: str, leaver: str, label: str | None) -> None:
        """Refuse to grow a forest again for a party that has no part in it, or has left it; or from another label."""
        facts, _ = read_alignment(self.folder, model)
        if leaver not in facts.parties:
            raise PolicyError("who is to leave takes no part in this model")
        if facts.label is not None and label != facts.label:
            raise PolicyError("the order names another label than the one that this model was trained with")

    # --- answers ---

    def plan_of(self, job: str, kind: type[AnyPlan]) -> AnyPlan:
        """The plan that this party has grown a forest by: the one that it was ordered then."""
        facts, _ = read_alignment(self.folder, job)
        for plan in (facts.plan, facts.revocable):
            if isinstance(plan, kind):
                return plan
        raise DataError("it does not know by which plan this forest was grown; train it again")

    def keep_answers(
        self,
        job: str,
        table: LoadedTable,
        rows: NDArray[np.int64],
        outputs: NDArray[np.float64],
        classes: Sequence[Any],
        model: str = "",
    ) -> None:
        """Write the answers for this party's rows beside their ids; ``model``: who has given them."""
        with _on_disk("the answers"):
            folder = self.folder / ANSWERS
            private_folder(folder)
            write_answers(folder / f"{job}.parquet", table, rows, outputs, classes, model)

    def erase_answers_for(self, model: str, successor: str, ids: Collection[bytes]) -> None:
        """Erase the answers for some ids that a model has given; what is left of them is the successor's."""
        with _on_disk("answers that lose rows"):
            erase_answers(self.folder / ANSWERS, model, successor, ids)


class AlignmentFacts(msgspec.Struct, frozen=True):
    """Who took part in an alignment, which table was aligned, and by which plan a forest was grown on these rows.

    ``label`` is the label holder's column; None elsewhere, and where the forest was grown before it was recorded.
    ``row_key`` is the key by which rows are selected, in hexadecimal digits; ``features`` the columns that a forest was
    grown on.
    """

    parties: tuple[str, ...]
    table: str
    digest: str
    plan: ForestPlan | None = None
    revocable: RevocablePlan | None = None
    label: str | None = None
    row_key: str = ""
    features: tuple[str, ...] | None = None


def read_alignment(state: Path, job: str) -> tuple[AlignmentFacts, NDArray[np.int64]]:
    """What a party's state folder holds of an alignment; DataError where it is not there, or damaged."""
    folder = state / "alignments" / job
    try:
        if not JOB_ID.fullmatch(job):
            raise ValueError("not the name of a job")
        facts = from_json((folder / "facts.json").read_bytes(), AlignmentFacts)
        rows = parse_array((folder / "rows.npy").read_bytes())
        if rows.dtype != np.int64 or rows.ndim != 1:
            raise ValueError("not numbers of rows")
    except (OSError, ValueError):
        raise DataError("it does not know this alignment; align again") from None
    return facts, rows


def _erase_own_rows(folder: Path) -> None:
    """Erase the record of a training over rows; what is kept of models over columns no such job ends."""
    if not (folder / "facts.json").is_file():
        erase_folder(folder)


def _mark_of(leader: str | None) -> dict[str, bytes]:
    """The file beside a part of a model that names its leader: never is one there without the other."""
    return {} if leader is None else {LEADER: leader.encode()}


@contextmanager
def _on_disk(what: str) -> Iterator[None]:
    """Turns a failing disk into an error that may travel."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{what} cannot be written: {error.strerror}") from error
