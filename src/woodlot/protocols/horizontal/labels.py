"""A client's labels, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.labels import check_classes, check_targets
from woodlot.protocols.messages.horizontal import Task
from woodlot.protocols.vertical.model import ClassName
from woodlot.protocols.vertical.target import Target

UNLISTED = -1
"""The number of a label that is not in the public list of classes, or is missing."""


def target_of(y: NDArray[Any], task: Task, public: tuple[ClassName, ...] | None = None) -> Target:
    """Labels, checked; of no rows too, which have no classes.

    Parameters
    ----------
    y : array
        The labels.
    task : {"classes", "targets"}
        What they are.
    public : tuple, optional
        The public list of classes, under differential privacy. Any label is then taken, since to refuse one would tell
        of its row: what is not in the list is `UNLISTED`.
    """
    if len(y) == 0:
        return Target((), np.empty(0, np.int64), np.empty(0))
    if public is not None and task == "classes":
        return Target(public, listed_numbers(y.tolist(), public), np.empty(0))
    return Target.of_classes(check_classes(y)) if task == "classes" else Target.of_values(check_targets(y))


def listed_numbers(labels: Sequence[Any], public: tuple[ClassName, ...]) -> NDArray[np.int64]:
    """The place of each label in the public list, `UNLISTED` where it is not in it."""
    place = {label: number for number, label in enumerate(public)}
    return np.array([place.get(label, UNLISTED) for label in labels], np.int64)
