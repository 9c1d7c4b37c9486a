"""Files of a linear model: intercepts at the coordinator; columns and weights in a folder of each party."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from woodlot.exceptions import ModelFileError
from woodlot.protocols.core.part_files import (
    COORDINATOR,
    PARTY,
    Arrays,
    Header,
    Packed,
    coordinators_folder,
    digest_of,
    guarded,
    new_folder,
    party_folder,
    read_part,
    write_own,
    write_part,
)
from woodlot.protocols.linear.linear_model import CoordinatorLinear, LinearColumns, PartyLinear

FORMAT = "woodlot-linear-model"


@dataclass(frozen=True, eq=False)
class StoredLinear:
    """What a folder holds: the coordinator's part, the parties' own, and notes on the model."""

    coordinator: CoordinatorLinear
    parts: dict[str, PartyLinear]
    extra: dict[str, Any]


def linear_id_of(model: CoordinatorLinear) -> str:
    """Fingerprint that all parts of a model have in common."""
    return digest_of(_pack_coordinator(model, {}))


def save_linear(folder: str | os.PathLike[str], stored: StoredLinear) -> None:
    """Write every part into a folder of its own below ``folder``, which must not hold anything yet."""
    with new_folder(folder) as staging:
        model = linear_id_of(stored.coordinator)
        packed = _pack_coordinator(stored.coordinator, stored.extra)
        write_part(staging / COORDINATOR, FORMAT, model, COORDINATOR, packed)
        for name, part in stored.parts.items():
            write_part(staging / party_folder(name), FORMAT, model, name, _pack_party(part))


def load_linear(folder: str | os.PathLike[str]) -> StoredLinear:
    """Read what ``save_linear`` has written; of a coordinator's own folder, its part alone."""
    root, own = Path(folder), coordinators_folder(folder)
    header, arrays = read_part(own, FORMAT)
    if header["role"] != COORDINATOR:
        raise ModelFileError(f"{root} is the part of {header['role']!r}; load the coordinator's")
    model, extra = guarded(own, _unpack_coordinator, (header, arrays))
    parts = {}
    for path in sorted(root.glob(f"{PARTY}*")) if own != root else ():
        head, own_arrays = read_part(path, FORMAT)
        name = str(head["role"])
        if head["forest"] != linear_id_of(model) or name not in model.parties:
            raise ModelFileError(f"{path} belongs to another model")
        parts[name] = guarded(path, _unpack_party, (head, own_arrays))
        if parts[name].weights.shape != (model.n_columns[name], len(model.intercept)):
            raise ModelFileError(f"{path} has weights of another shape than the model")
    return StoredLinear(model, parts, extra)


def save_own_linear(
    folder: Path, party: str, model: str, part: PartyLinear, beside: Mapping[str, bytes] | None = None
) -> str:
    """Write a party's part where it is, together with the files ``beside`` it; returns the part's fingerprint."""
    return write_own(folder, FORMAT, model, party, _pack_party(part), beside)


def load_own_linear(folder: Path, party: str, model: str) -> PartyLinear:
    """Read what ``save_own_linear`` has written; another party's or another model's is refused."""
    header, arrays = read_part(folder, FORMAT)
    if header["forest"] != model or header["role"] != party:
        raise ModelFileError(f"{folder} belongs to another model or party")
    return guarded(folder, _unpack_party, (header, arrays))


def _pack_coordinator(model: CoordinatorLinear, extra: Mapping[str, Any]) -> Packed:
    header: Header = {
        "parties": list(model.parties),
        "n_columns": dict(model.n_columns),
        "classes": list(model.classes),
        "unit": repr(float(model.unit)),
        "centred": model.centred,
        "n_rows": model.n_rows,
        "n_iter": model.n_iter,
        "converged": model.converged,
        "extra": dict(extra),
    }
    return header, {"intercept": model.intercept}


def _unpack_coordinator(header: Header, arrays: Arrays) -> tuple[CoordinatorLinear, dict[str, Any]]:
    model = CoordinatorLinear(
        parties=tuple(header["parties"]),
        n_columns={str(p): int(n) for p, n in header["n_columns"].items()},
        classes=tuple(header["classes"]),
        intercept=np.asarray(arrays["intercept"], np.float64),
        unit=float(header["unit"]),
        centred=bool(header["centred"]),
        n_rows=int(header["n_rows"]),
        n_iter=int(header["n_iter"]),
        converged=bool(header["converged"]),
    )
    n_scores = len(model.classes) if len(model.classes) > 2 else 1
    if model.intercept.shape != (n_scores,) or not np.isfinite([*model.intercept, model.unit]).all():
        raise ValueError("its intercepts do not fit its classes")
    if set(model.n_columns) != set(model.parties) or min(model.n_columns.values()) < 0:
        raise ValueError("it does not have a number of columns for each party")
    return model, dict(header["extra"])


def _pack_party(part: PartyLinear) -> Packed:
    columns = part.columns
    header: Header = {
        "names": list(columns.names),
        "categories": [None if names is None else list(names) for names in columns.categories],
    }
    arrays: Arrays = {
        "fill": columns.fill,
        "centre": columns.centre,
        "scale": columns.scale,
        "weights": part.weights,
    }
    return header, arrays


def _unpack_party(header: Header, arrays: Arrays) -> PartyLinear:
    columns = LinearColumns(
        names=tuple(header["names"]),
        categories=tuple(None if names is None else tuple(names) for names in header["categories"]),
        fill=arrays["fill"],
        centre=arrays["centre"],
        scale=arrays["scale"],
    )
    width = sum(1 if names is None else len(names) for names in columns.categories)
    if len(columns.names) != len(columns.categories) or len(set(columns.names)) != len(columns.names):
        raise ValueError("its columns are not named one by one")
    numbers = [columns.fill, columns.centre, columns.scale, part_weights := arrays["weights"]]
    if any(a.dtype != np.float64 or len(a) != width or not np.isfinite(a).all() for a in numbers):
        raise ValueError("its numbers do not fit its columns")
    if part_weights.ndim != 2 or any(a.ndim != 1 for a in numbers[:3]) or not (columns.scale > 0).all():
        raise ValueError("its numbers do not fit its columns")
    return PartyLinear(columns, part_weights)
