"""The same rows at every party, found by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.values import column_values, is_null, natural_type
from woodlot.exceptions import DataError

_EXACT_IN_A_FLOAT = 2**53
"""Whole numbers below this are told apart by a float64."""


def align_rows(
    tables: Mapping[str, Any], id: str | None, join: str
) -> tuple[NDArray[Any] | None, dict[str, NDArray[np.int64]] | None]:
    """The common ids, and for each party the row of each id (-1: none); None, None without an id column."""
    if id is None:
        if join == "outer":
            raise DataError("join='outer' needs the id column: name it with id=...")
        return None, None
    ids = _same_kind({name: id_values(data, id, f"the table of {name}") for name, data in tables.items()}, id)
    common, *others = ids.values()
    if join == "inner":
        for values in others:
            common = common[np.isin(common, values)]
        if len(common) == 0:
            counts = {name: len(values) for name, values in ids.items()}
            raise DataError(
                f"no id of column {id!r} is at every party, which have {counts} ids; "
                "check that all of them write ids in the same way"
            )
    else:
        for values in others:
            common = np.concatenate([common, values[~np.isin(values, common)]])
    return common, {name: _positions(values, common) for name, values in ids.items()}


def id_values(data: Any, name: str, what: str) -> NDArray[Any]:
    """An id column: whole numbers or text, none missing, none twice."""
    values = column_values(data, name, what)
    missing = int(is_null(values).sum())
    if missing:
        raise DataError(f"{what} has {missing} rows without an id in column {name!r}; drop them or give them ids")
    values = _whole_numbers_or_text(natural_type(values), name, what)
    unique, counts = np.unique(values, return_counts=True)
    if len(unique) < len(values):
        repeated = unique[counts > 1]
        raise DataError(
            f"{what} has {len(repeated)} ids more than once in column {name!r}, such as {repeated[0]}; "
            "keep one row per id"
        )
    return values


def _whole_numbers_or_text(values: NDArray[Any], name: str, what: str) -> NDArray[Any]:
    kind = values.dtype.kind
    if kind in "iu":
        beyond = values.dtype == np.uint64 and values.max(initial=0) >= 2**63
        return values if beyond else values.astype(np.int64)
    if kind == "f" and ((values == np.floor(values)) & (np.abs(values) < _EXACT_IN_A_FLOAT)).all():
        return values.astype(np.int64)
    if kind in "OUT" and all(isinstance(value, str) for value in values.tolist()):
        return values.astype(np.str_)
    kinds = {type(value).__name__ for value in values.tolist()} if kind == "O" else {str(values.dtype)}
    raise DataError(
        f"ids must all be whole numbers or all be text; column {name!r} of {what} holds "
        f"{', '.join(sorted(kinds))}: convert them, for instance to text"
    )


def _same_kind(ids: dict[str, NDArray[Any]], id: str) -> dict[str, NDArray[Any]]:
    """Ids of all parties in one type, so that comparing them rounds nothing."""
    filled = {name: values for name, values in ids.items() if len(values)}  # no rows: ids of no kind
    kinds = {name: "text" if values.dtype.kind == "U" else "numbers" for name, values in filled.items()}
    if len(set(kinds.values())) > 1:
        raise DataError(f"ids in column {id!r} are of different kinds: {kinds}; convert them to the same")
    if not filled:
        return ids
    wanted = np.result_type(*(values.dtype for values in filled.values()))
    if wanted.kind == "f":  # what numpy makes of int64 and uint64
        if any(values.dtype == np.int64 and values.min() < 0 for values in filled.values()):
            raise DataError(
                f"ids in column {id!r} are negative at one party and beyond 2**63 at another; make them text"
            )
        wanted = np.dtype(np.uint64)
    return {name: values.astype(wanted) for name, values in ids.items()}


def _positions(values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """Where each wanted id stands among a party's, -1 where it does not."""
    if len(values) == 0:
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(values, kind="stable")
    at = np.minimum(np.searchsorted(values[order], wanted), len(values) - 1)
    return np.where(values[order][at] == wanted, order[at], -1)
