"""A whole forest that the coordinator brings to a party: it must be the one that the user has ordered."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, ModelFileError, RemoteProtocolError
from woodlot.jobs.evaluate.pooled_messages import AnswerOwnRows
from woodlot.jobs.row_job_messages import PredictRows
from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder, PredictRowsOrder
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.vertical.files import load_parts, whole_forest_id, write_files


def check_named(order: PredictRowsOrder | EvaluateRowsOrder) -> None:
    """Refuse an order that does not say which forest is to be brought: the coordinator could then bring any."""
    if not order.forest:
        raise DataError(
            "the order does not name the fingerprint of its forest, so that the coordinator could bring another one; "
            "it was made by an earlier version: order it again with this one"
        )


def brought_forest(
    order: PredictRowsOrder | EvaluateRowsOrder, message: PredictRows | AnswerOwnRows
) -> tuple[CoordinatorForest, PartyForest]:
    """The forest that was ordered, of the files that the coordinator has sent.

    Any other forest is refused before it meets a row: a made-up one asks about columns and labels by its splits.
    """
    if message.model != order.model:
        raise RemoteProtocolError("the order is for another model")
    forest, part = _read_forest(message.files)
    found = whole_forest_id(forest, part)
    if found != order.forest:
        raise RemoteProtocolError(
            f"the coordinator has brought another forest (fingerprint {found:.16}...) than the user has ordered "
            f"({order.forest:.16}...), and nothing was answered"
        )
    return forest, part


def _read_forest(files: Mapping[str, NDArray[np.uint8]]) -> tuple[CoordinatorForest, PartyForest]:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            write_files(Path(scratch), {name: data.tobytes() for name, data in files.items()})
            stored = load_parts(scratch)
            return stored.coordinator, stored.shared[HOLDER]
        except (ModelFileError, KeyError):
            raise RemoteProtocolError("what the coordinator has sent is no whole forest") from None
