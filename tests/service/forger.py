"""A coordinator that brings parties a forest of its own: what it answers for their rows asks about columns and labels.

To be run in a coordinator's process first (`processes.Processes.scripts`), or used by a test's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.jobs.evaluate import pooled_jobs
from woodlot.jobs.evaluate.pooled_messages import AnswerOwnRows
from woodlot.jobs.row_job_messages import PredictRows
from woodlot.jobs.rows import rows_jobs
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.vertical.files import StoredForest, load_parts, save_parts, write_files

Whole = tuple[CoordinatorForest, PartyForest]


def made_up(
    files: Mapping[str, bytes], change: Callable[[CoordinatorForest, PartyForest], Whole]
) -> dict[str, NDArray[np.uint8]]:
    """The files of a forest that the coordinator has changed, as sound as those that it had."""
    with tempfile.TemporaryDirectory() as scratch:
        write_files(Path(scratch) / "before", files)
        stored = load_parts(Path(scratch) / "before")
        forest, part = change(stored.coordinator, stored.shared[HOLDER])
        save_parts(Path(scratch) / "after", StoredForest(forest, {}, {HOLDER: part}, {}))
        root = Path(scratch) / "after" / "coordinator"
        found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        return {name: np.frombuffer(path.read_bytes(), np.uint8) for name, path in found.items()}


def other_thresholds(forest: CoordinatorForest, part: PartyForest) -> Whole:
    """A question about columns: the answers tell on which side of these a row is."""
    return forest, replace(part, splits=replace(part.splits, threshold=part.splits.threshold + 1.0))


def other_answers(forest: CoordinatorForest, part: PartyForest) -> Whole:
    """A question about labels: one leaf answers alone."""
    return replace(forest, leaves=replace(forest.leaves, value=forest.leaves.value[::-1].copy())), part


def one_class_more(forest: CoordinatorForest, part: PartyForest) -> Whole:
    """Whether a client refuses would tell whether it has a label that is not in the list."""
    leaves = replace(forest.leaves, n_outputs=3)
    return replace(forest, classes=(*forest.classes, "zombie"), leaves=leaves), part


def a_class_renamed(forest: CoordinatorForest, part: PartyForest) -> Whole:
    return replace(forest, classes=(forest.classes[0], "zombie")), part


def _forging(message: Callable[..., Any]) -> Callable[..., Any]:
    def forged(*, model: str, files: Mapping[str, NDArray[np.uint8]]) -> Any:
        own = {name: data.tobytes() for name, data in files.items()}
        return message(model=model, files=made_up(own, other_answers))

    return forged


if __name__ == "service":
    setattr(rows_jobs, "PredictRows", _forging(PredictRows))  # noqa: B010 - no name of these modules' own
    setattr(pooled_jobs, "AnswerOwnRows", _forging(AnswerOwnRows))  # noqa: B010
