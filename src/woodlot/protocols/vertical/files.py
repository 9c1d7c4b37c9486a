"""Model files: one folder per role, no pickle, every byte under a digest.

::

    model/
      coordinator/   part.json, arrays.npz      structure, leaves, owners, codes of features
      party-bank/    part.json, arrays.npz      structure, bank's splits, names and categories: nothing of others
      party-shop/    ...
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import ModelFileError
from woodlot.protocols.vertical.model import CoordinatorForest, PartyForest
from woodlot.trees.encoding import CategoryCoding, Coding, NumericCoding
from woodlot.trees.forest import Leaves, Splits, Structure

FORMAT = "woodlot-vertical-forest"
VERSION = 1
COORDINATOR = "coordinator"
PARTY = "party-"


def save_parts(
    folder: str | os.PathLike[str],
    coordinator: CoordinatorForest,
    parts: Mapping[str, PartyForest],
    extra: Mapping[str, Any],
) -> None:
    """Write every part into a folder of its own below ``folder``, which must not hold another model.

    The whole model appears at once or not at all: it is written beside and moved into place.
    """
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise ModelFileError(f"{target} is not empty; save into a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        forest_id = _forest_id(coordinator.structure)
        _write(staging / COORDINATOR, forest_id, COORDINATOR, *_pack_coordinator(coordinator, extra))
        for name, part in parts.items():
            _write(staging / f"{PARTY}{name}", forest_id, name, *_pack_party(part))
        if target.exists():
            target.rmdir()
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def load_parts(
    folder: str | os.PathLike[str],
) -> tuple[CoordinatorForest, dict[str, PartyForest], dict[str, Any]]:
    """Read the coordinator's part, and those of the parties that are there."""
    root = Path(folder)
    if (root / "part.json").exists():  # the folder of one role
        root = root.parent if root.name == COORDINATOR else root
    if not (root / COORDINATOR / "part.json").exists():
        raise ModelFileError(f"{root} holds no coordinator's part; give the folder that save() wrote")
    header, arrays = _read(root / COORDINATOR)
    coordinator, extra = _unpack_coordinator(header, arrays)
    parts = {}
    for part_folder in sorted(root.glob(f"{PARTY}*")):
        name, part = load_party(part_folder, coordinator)
        parts[name] = part
    return coordinator, parts, extra


def load_party(folder: str | os.PathLike[str], coordinator: CoordinatorForest) -> tuple[str, PartyForest]:
    """Read one party's part, which must belong to the coordinator's forest."""
    header, arrays = _read(Path(folder))
    if header["forest"] != _forest_id(coordinator.structure):
        raise ModelFileError(f"{folder} belongs to another forest")
    name = header["role"]
    if name not in coordinator.parties:
        raise ModelFileError(f"{folder} is the part of {name!r}, who is not a party of this forest")
    return name, _unpack_party(header, arrays)


def _forest_id(structure: Structure) -> str:
    digest = hashlib.sha256()
    for array in (structure.offset, structure.right):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _write(folder: Path, forest_id: str, role: str, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    folder.mkdir()
    path = folder / "arrays.npz"
    np.savez_compressed(path, allow_pickle=False, **arrays)
    full = {
        "format": FORMAT,
        "version": VERSION,
        "forest": forest_id,
        "role": role,
        "arrays_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        **header,
    }
    text = json.dumps(full, indent=1, sort_keys=True)
    full["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "part.json").write_text(json.dumps(full, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        header = json.loads((folder / "part.json").read_text(encoding="utf-8"))
        packed = (folder / "arrays.npz").read_bytes()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{folder} cannot be read as part of a model: {error}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelFileError(f"{folder} is not part of a Woodlot forest")
    if header.get("version") != VERSION:
        raise ModelFileError(f"{folder} has version {header.get('version')}; this Woodlot reads version {VERSION}")
    claimed = header.pop("sha256", None)
    if claimed != hashlib.sha256(json.dumps(header, indent=1, sort_keys=True).encode()).hexdigest():
        raise ModelFileError(f"{folder / 'part.json'} has been changed: its digest does not match")
    if header.get("arrays_sha256") != hashlib.sha256(packed).hexdigest():
        raise ModelFileError(f"{folder / 'arrays.npz'} has been changed: its digest does not match")
    try:
        with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
            return header, {name: arrays[name] for name in arrays.files}
    except (ValueError, zipfile.BadZipFile, OSError) as error:
        raise ModelFileError(f"{folder / 'arrays.npz'} cannot be read: {error}") from None


def _pack_coordinator(
    forest: CoordinatorForest, extra: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    header = {
        "parties": list(forest.parties),
        "classes": list(forest.classes),
        "n_rows": forest.n_rows,
        "n_outputs": forest.leaves.n_outputs,
        "extra": dict(extra),
    }
    arrays = {
        "offset": forest.structure.offset,
        "right": forest.structure.right,
        "owner": forest.owner,
        "feature": forest.feature,
        "gain": forest.gain,
        "feature_keys": forest.feature_keys,
        "feature_party": forest.feature_party,
        "leaf_weight": forest.leaves.weight,
        "leaf_start": forest.leaves.start,
        "leaf_output": forest.leaves.output,
        "leaf_value": forest.leaves.value,
    }
    return header, arrays


def _unpack_coordinator(
    header: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> tuple[CoordinatorForest, dict[str, Any]]:
    leaves = Leaves(
        weight=arrays["leaf_weight"],
        start=arrays["leaf_start"],
        output=arrays["leaf_output"],
        value=arrays["leaf_value"],
        n_outputs=int(header["n_outputs"]),
    )
    forest = CoordinatorForest(
        structure=Structure(arrays["offset"], arrays["right"]),
        owner=arrays["owner"],
        feature=arrays["feature"],
        gain=arrays["gain"],
        leaves=leaves,
        parties=tuple(header["parties"]),
        feature_keys=arrays["feature_keys"],
        feature_party=arrays["feature_party"],
        classes=tuple(header["classes"]),
        n_rows=int(header["n_rows"]),
        sampling=None,
    )
    return forest, header["extra"]


def _pack_party(part: PartyForest) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    header = {
        "names": list(part.names),
        "categories": [list(c.categories) if isinstance(c, CategoryCoding) else None for c in part.codings],
    }
    arrays = {
        "offset": part.structure.offset,
        "right": part.structure.right,
        "node": part.splits.node,
        "feature": part.splits.feature,
        "threshold": part.splits.threshold,
        "missing_left": part.splits.missing_left,
        "set_start": part.splits.set_start,
        "sets": part.splits.sets,
    }
    return header, arrays


_NO_VALUES = np.empty(0, np.float32)


def _unpack_party(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> PartyForest:
    # the training's values are not kept: prediction needs the thresholds only
    codings: list[Coding] = [
        NumericCoding(_NO_VALUES, _NO_VALUES) if categories is None else CategoryCoding(tuple(categories))
        for categories in header["categories"]
    ]
    splits = Splits(*(arrays[k] for k in ("node", "feature", "threshold", "missing_left", "set_start", "sets")))
    return PartyForest(
        Structure(arrays["offset"], arrays["right"]), splits, tuple(header["names"]), tuple(codings)
    )
