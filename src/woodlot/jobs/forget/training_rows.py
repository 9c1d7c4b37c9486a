"""Which rows of a training stay when some ids are forgotten, also where their owner has deleted these rows already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.data.ids import CanonicalIds
from woodlot.data.sources import LoadedTable
from woodlot.exceptions import DataError
from woodlot.jobs.party_store import PartyStore, read_alignment

Points = NDArray[np.uint64]
_NOT_APART = "the rows of the training cannot be told apart; train the model again"


class KeptRows(NamedTuple):
    """The rows of a training without some of them.

    Attributes
    ----------
    rows : int64 array
        Own row of each that stays.
    kept : int64 array
        Its number among the rows of the training: the same at every party.
    gone, unknown : int
        Rows that do not stay, and ids that are of no row of the training.
    """

    rows: NDArray[np.int64]
    kept: NDArray[np.int64]
    gone: int
    unknown: int


def kept_rows(store: PartyStore, model: str, table: LoadedTable, own: CanonicalIds, ids: Sequence[bytes]) -> KeptRows:
    """Find the rows of a training that stay.

    Parameters
    ----------
    store : PartyStore
        What the party has kept of the training.
    model : str
        The job that it was.
    table : LoadedTable
        The table as it is now: it may lack rows that are forgotten, and no others.
    own : CanonicalIds
        Its ids.
    ids : sequence of bytes
        What is to be forgotten, in canonical form.
    """
    facts, rows = read_alignment(store.folder, model)
    if facts.table != table.name:
        raise DataError("the order names another table than the training")
    _check_kind(own, ids)
    named = store.trained_points(ids)
    points = store.trained_on(model)
    if facts.digest == table.digest:
        if points is None:
            points = store.trained_points([own.values[row] for row in rows.tolist()])
    elif points is None:
        raise DataError(
            "its table has changed since the training, and which rows were in it is not recorded; put the table back, "
            "forget, and delete the rows then"
        )
    if len(points) != len(rows):
        raise DataError(_NOT_APART)
    _check_apart(points)
    stays = ~np.isin(points, named)
    kept = np.flatnonzero(stays).astype(np.int64)
    if facts.digest != table.digest:
        rows = _found_again(points, store.trained_points(own.values), stays)
    return KeptRows(rows[kept], kept, int((~stays).sum()), int((~np.isin(named, points)).sum()))


class OwnRows(NamedTuple):
    """The rows of a training over rows without some of them.

    Attributes
    ----------
    rows : int64 array
        Own row of each that stays, in the order of the training.
    gone : int
        Rows that do not stay.
    found : tuple of bytes
        Those of the ids that are of a row of the training.
    """

    rows: NDArray[np.int64]
    gone: int
    found: tuple[bytes, ...]


def own_rows_left(store: PartyStore, model: str, own: CanonicalIds, ids: Sequence[bytes]) -> OwnRows:
    """Find the rows of a training over rows that stay.

    Parameters
    ----------
    store, model, own
        As for `kept_rows`.
    ids : sequence of bytes
        What this party is to forget, in canonical form; none where it was not asked to look.
    """
    points = store.trained_on(model)
    if points is None:
        raise DataError("which rows this forest was grown on is not recorded; train it again without the rows")
    _check_kind(own, ids)
    _check_apart(points)
    named = store.trained_points(ids)
    stays = ~np.isin(points, named)
    rows = _found_again(points, store.trained_points(own.values), stays)
    found = np.isin(named, points).tolist()
    return OwnRows(rows[stays], int((~stays).sum()), tuple(id for id, known in zip(ids, found, strict=True) if known))


def _check_kind(own: CanonicalIds, ids: Sequence[bytes]) -> None:
    kind = b"i" if own.kind == "whole numbers" else b"t"
    if len(own) and not all(value.startswith(kind) for value in ids):
        raise DataError(f"its ids are {own.kind}; give ids of that kind")


def _check_apart(points: Points) -> None:
    if len(np.unique(points)) < len(points):
        raise DataError(_NOT_APART)


def _found_again(points: Points, here: Points, stays: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Own row of each row of the training, by the ids of a table that has changed."""
    order = np.argsort(here, kind="stable")
    at = np.minimum(np.searchsorted(here[order], points), max(len(here) - 1, 0))
    rows = order[at].astype(np.int64) if len(here) else np.zeros(len(points), np.int64)
    found = here[rows] == points if len(here) else np.zeros(len(points), bool)
    if (stays & ~found).any():
        raise DataError(
            "its table lacks rows of the training that the order does not name: put them back, or name their ids, too"
        )
    return rows
