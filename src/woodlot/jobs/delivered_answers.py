"""Answers that a party was given, in files beside its ids: how they are written, and how some of them are erased."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.ids import canonical_ids
from woodlot.data.sources import LoadedTable
from woodlot.data.whole_files import write_whole

ANSWERS = "answers"
"""The folder of a party's state that they are in."""
_MODEL = b"woodlot.model"


def write_answers(
    path: Path,
    table: LoadedTable,
    rows: NDArray[np.int64],
    outputs: NDArray[np.float64],
    classes: Sequence[Any],
    model: str,
) -> None:
    """Write answers beside the ids of own rows; the file names the model that has given them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    own = np.flatnonzero(rows >= 0)
    columns: dict[str, Any] = {table.id: table.ids.take(pa.array(rows[own]))}
    if classes:
        columns["prediction"] = pa.array([classes[k] for k in outputs[own].argmax(axis=1)])
        columns |= {f"probability_{c}": pa.array(outputs[own, k]) for k, c in enumerate(classes)}
    else:
        columns["prediction"] = pa.array(outputs[own, 0])
    told = pa.table(columns)
    if model:
        told = told.replace_schema_metadata({_MODEL: model.encode()})
    write_whole(path, lambda file: pq.write_table(told, file))


def erase_answers(folder: Path, model: str, successor: str, ids: Collection[bytes]) -> None:
    """Erase the answers for some ids that a model has given, or of which it is not known which model has.

    Parameters
    ----------
    folder : Path
        The files.
    model, successor : str
        Who has given the answers, and in whose name those that stay are kept: the next ids that are forgotten are those
        of the successor.
    ids : collection of bytes
        In canonical form.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    gone = set(ids)
    for path in sorted(folder.glob("[!.]*.parquet")):
        told = pq.read_table(path)
        by = (told.schema.metadata or {}).get(_MODEL, b"")
        if by not in (b"", model.encode()):
            continue
        stays = [value not in gone for value in canonical_ids(told.column(0)).values]
        if all(stays) and not by:
            continue
        metadata = {**(told.schema.metadata or {}), **({_MODEL: successor.encode()} if by else {})}
        left = told.filter(pa.array(stays, pa.bool_())).replace_schema_metadata(metadata)
        write_whole(path, partial(pq.write_table, left))
