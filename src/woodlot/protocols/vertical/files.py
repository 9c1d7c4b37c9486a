"""Model files: one folder per role, no pickle, every byte under a digest.

::

    model/
      coordinator/   part.json, arrays.npz    structure, leaves, owners, codes of features
        shared/party-bank/ ...                only where all parties share the model: what they have revealed
      party-bank/    part.json, arrays.npz    structure, bank's splits, names and categories: nothing of others
      party-shop/    ...

The digests tell damage, not forgery: who can write the folder can write its digests. So what is read is checked to be
a sound forest as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import ModelFileError
from woodlot.protocols.vertical.model import CoordinatorForest, PartyForest
from woodlot.protocols.vertical.reveal import categories_of, codings_of
from woodlot.protocols.vertical.soundness import check_coordinator, check_splits, check_structure
from woodlot.trees.forest import Leaves, Splits, Structure

FORMAT = "woodlot-vertical-forest"
VERSION = 1
COORDINATOR = "coordinator"
SHARED = "shared"
PARTY = "party-"
HEADER = "part.json"
ARRAYS = "arrays.npz"

_Packed = tuple[dict[str, Any], dict[str, NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class StoredForest:
    """What a folder holds: the coordinator's part, the parties' own, those they have shared, and notes on the model."""

    coordinator: CoordinatorForest
    parts: dict[str, PartyForest]
    shared: dict[str, PartyForest]
    extra: dict[str, Any]


def save_parts(folder: str | os.PathLike[str], forest: StoredForest) -> None:
    """Write every part into a folder of its own below ``folder``, which must not hold anything yet.

    The whole model appears at once or not at all: it is written beside and moved into place.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelFileError(f"{target} is not an empty folder; save into a new one")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        forest_id = forest_id_of(forest.coordinator)
        _write(staging / COORDINATOR, forest_id, COORDINATOR, _pack_coordinator(forest.coordinator, forest.extra))
        _write_parties(staging / COORDINATOR / SHARED, forest_id, forest.shared)
        _write_parties(staging, forest_id, forest.parts)
        if target.exists():
            target.rmdir()
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def load_parts(folder: str | os.PathLike[str]) -> StoredForest:
    """Read what ``save_parts`` has written; of a coordinator's own folder, its part alone."""
    root = Path(folder)
    own = root if (root / HEADER).exists() else root / COORDINATOR
    if not (own / HEADER).exists():
        raise ModelFileError(f"{root} holds no coordinator's part; give the folder that save() wrote")
    header, arrays = _read(own)
    if header["role"] != COORDINATOR:
        raise ModelFileError(
            f"{root} is the part of {header['role']!r}; load the coordinator's and combine() it with this"
        )
    coordinator, extra = _guarded(own, _unpack_coordinator, header, arrays)
    parts = {} if own is root else _read_parties(root, coordinator)
    return StoredForest(coordinator, parts, _read_parties(own / SHARED, coordinator), extra)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files that somebody has sent, by their paths below ``folder``; one that leads out of it is refused."""
    for name, data in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ModelFileError(f"the coordinator sent a file that leads out of its folder: {name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def load_party(folder: str | os.PathLike[str], coordinator: CoordinatorForest) -> tuple[str, PartyForest]:
    """Read one party's part, which must belong to the coordinator's forest."""
    path = Path(folder)
    header, arrays = _read(path)
    if header["forest"] != forest_id_of(coordinator):
        raise ModelFileError(f"{path} belongs to another forest")
    name = header["role"]
    if name not in coordinator.parties:
        raise ModelFileError(
            f"{path} is the part of {name!r}; the parties of this forest are {list(coordinator.parties)}"
        )
    part: PartyForest = _guarded(path, _unpack_party, header, arrays, coordinator, coordinator.parties.index(name))
    return name, part


def save_own_part(folder: Path, party: str, forest: str, part: PartyForest) -> str:
    """Write a party's part where it is, for a forest whose fingerprint is ``forest``; returns the part's fingerprint.

    What is there already is replaced at once or not at all.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    packed = _pack_party(part)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(staging / "part", forest, party, packed)
        if folder.exists():
            folder.rename(staging / "old")
        (staging / "part").rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return _digest_of(packed)


def load_own_part(folder: Path, party: str, forest: str) -> PartyForest:
    """Read what ``save_own_part`` has written; another party's or another forest's is refused."""
    header, arrays = _read(folder)
    if header["forest"] != forest or header["role"] != party:
        raise ModelFileError(f"{folder} belongs to another forest or party")
    part: PartyForest = _guarded(folder, _unpack_own, header, arrays)
    return part


def _unpack_own(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> PartyForest:
    structure = Structure(arrays["offset"], arrays["right"])
    check_structure(structure)
    node = arrays["node"]
    if node.ndim != 1 or (len(node) and not 0 <= node.min() <= node.max() < structure.n_nodes):
        raise ValueError("a split is at no node")
    if (structure.right[node] < 0).any():
        raise ValueError("a leaf is split")
    return _party_part(header, arrays, structure, node)


def _digest_of(packed: _Packed) -> str:
    """Fingerprint of a part, whatever the version of the library that compresses the arrays."""
    header, arrays = packed
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def fingerprint_of(part: PartyForest) -> str:
    """Fingerprint of a party's part."""
    return _digest_of(_pack_party(part))


def _write_parties(root: Path, forest_id: str, parts: Mapping[str, PartyForest]) -> None:
    for name, part in parts.items():
        # a name may hold what a path may not; the header has it as it is
        _write(root / f"{PARTY}{quote(name, safe=' ')}", forest_id, name, _pack_party(part))


def _read_parties(root: Path, coordinator: CoordinatorForest) -> dict[str, PartyForest]:
    return dict(load_party(folder, coordinator) for folder in sorted(root.glob(f"{PARTY}*")))


def forest_id_of(forest: CoordinatorForest) -> str:
    """Two forests of the same shape are not the same: owners, gains and answers count too."""
    digest = hashlib.sha256()
    for array in _pack_coordinator(forest, {})[1].values():
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _write(folder: Path, forest_id: str, role: str, packed: _Packed) -> None:
    header, arrays = packed
    folder.mkdir(parents=True)
    path = folder / ARRAYS
    # numpy's own way compresses three times as long for a few percent, which a user waits for after every training
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    full = {
        "format": FORMAT,
        "version": VERSION,
        "forest": forest_id,
        "role": role,
        "arrays_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        **header,
    }
    (folder / HEADER).write_bytes(_signed(full).encode())


def _signed(header: Mapping[str, Any]) -> str:
    """The one way to write a header, with its own digest in it: any other byte is a change."""
    text = json.dumps(header, indent=1, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({**header, "sha256": digest}, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _read(folder: Path) -> _Packed:
    header_path, arrays_path = folder / HEADER, folder / ARRAYS
    try:
        text = header_path.read_bytes().decode()
        header = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{header_path} cannot be read as part of a model: {error}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelFileError(f"{header_path} is not part of a Woodlot forest")
    if header.get("version") != VERSION:
        raise ModelFileError(f"{header_path} has version {header.get('version')}; this Woodlot reads version {VERSION}")
    header.pop("sha256", None)
    try:
        unchanged = text == _signed(header)
    except ValueError:  # NaN and infinity, which are no JSON
        unchanged = False
    if not unchanged:
        raise ModelFileError(f"{header_path} has been changed: its digest does not match")
    try:
        packed = arrays_path.read_bytes()
        if header.get("arrays_sha256") != hashlib.sha256(packed).hexdigest():
            raise ModelFileError(f"{arrays_path} has been changed: its digest does not match")
        with np.load(arrays_path, allow_pickle=False) as arrays:
            return header, {name: arrays[name] for name in arrays.files}
    except (ValueError, EOFError, zipfile.BadZipFile, OSError) as error:
        raise ModelFileError(f"{arrays_path} cannot be read: {error}") from None


def _guarded(folder: Path, unpack: Any, header: dict[str, Any], arrays: dict[str, NDArray[Any]], *context: Any) -> Any:
    try:
        return unpack(header, arrays, *context)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModelFileError(f"{folder} is not a sound part of a forest: {error}") from None


def _pack_coordinator(forest: CoordinatorForest, extra: Mapping[str, Any]) -> _Packed:
    header: dict[str, Any] = {
        "parties": list(forest.parties),
        "classes": list(forest.classes),
        "n_rows": forest.n_rows,
        "extra": dict(extra),
        **({"outside": forest.outside} if forest.outside else {}),
    }
    arrays: dict[str, NDArray[Any]] = {
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
    classes = tuple(header["classes"])
    leaves = Leaves(
        weight=arrays["leaf_weight"],
        start=arrays["leaf_start"],
        output=arrays["leaf_output"],
        value=arrays["leaf_value"],
        n_outputs=max(1, len(classes)),
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
        classes=classes,
        n_rows=int(header["n_rows"]),
        sampling=None,
        outside={str(name): int(count) for name, count in header.get("outside", {}).items()},
    )
    check_coordinator(forest)
    return forest, dict(header["extra"])


def _pack_party(part: PartyForest) -> _Packed:
    header: dict[str, Any] = {"names": list(part.names), "categories": categories_of(part.codings)}
    arrays: dict[str, NDArray[Any]] = {
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


def _unpack_party(
    header: dict[str, Any], arrays: dict[str, NDArray[Any]], coordinator: CoordinatorForest, number: int
) -> PartyForest:
    structure = Structure(arrays["offset"], arrays["right"])
    for mine, theirs in (
        (structure.offset, coordinator.structure.offset),
        (structure.right, coordinator.structure.right),
    ):
        if mine.dtype != theirs.dtype or not np.array_equal(mine, theirs):
            raise ValueError("its trees have another shape")
    return _party_part(header, arrays, coordinator.structure, np.flatnonzero(coordinator.owner == number))


def _party_part(
    header: dict[str, Any], arrays: dict[str, NDArray[Any]], structure: Structure, nodes: NDArray[Any]
) -> PartyForest:
    splits = Splits(*(arrays[k] for k in ("node", "feature", "threshold", "missing_left", "set_start", "sets")))
    codings = codings_of(header["categories"])
    names = tuple(header["names"])
    if len(names) != len(codings) or len(set(names)) != len(names):
        raise ValueError("its columns are not named one by one")
    check_splits(splits, nodes, codings)
    return PartyForest(structure, splits, names, codings)
