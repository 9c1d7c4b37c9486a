"""Model files: one folder per role, no pickle, every byte under a digest.

::

    model/
      coordinator/   part.json, arrays.npz    structure, leaves, owners, codes of features
        shared/party-bank/ ...                only where all parties share the model: what they have revealed
      party-bank/    part.json, arrays.npz    structure, bank's splits, names and categories: nothing of others
      party-shop/    ...

What is read is checked to be a sound forest (`woodlot.protocols.core.part_files` has the rest).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, ModelFileError
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, categories_of, codings_of
from woodlot.protocols.core.part_files import (
    COORDINATOR,
    PARTY,
    Packed,
    PartFile,
    coordinators_folder,
    digest_of,
    guarded,
    new_folder,
    party_folder,
    read_part,
    write_own,
    write_part,
)
from woodlot.protocols.core.soundness import check_coordinator, check_splits, check_structure
from woodlot.trees.forest import Leaves, Splits, Structure

FORMAT = "woodlot-vertical-forest"
SHARED = "shared"


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
    with new_folder(folder) as staging:
        forest_id, packed = forest_id_of(forest.coordinator), _pack_coordinator(forest.coordinator, forest.extra)
        write_part(staging / COORDINATOR, FORMAT, forest_id, COORDINATOR, packed)
        _write_parties(staging / COORDINATOR / SHARED, forest_id, forest.shared)
        _write_parties(staging, forest_id, forest.parts)


def load_parts(folder: str | os.PathLike[str]) -> StoredForest:
    """Read what ``save_parts`` has written; of a coordinator's own folder, its part alone."""
    root, own = Path(folder), coordinators_folder(folder)
    header, arrays = read_part(own, FORMAT)
    if header["role"] != COORDINATOR:
        raise ModelFileError(
            f"{root} is the part of {header['role']!r}; load the coordinator's and combine() it with this"
        )
    coordinator, extra = guarded(own, _unpack_coordinator, (header, arrays))
    parts = {} if own == root else _read_parties(root, coordinator)
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
    header, arrays = read_part(path, FORMAT)
    if header["forest"] != forest_id_of(coordinator):
        raise ModelFileError(f"{path} belongs to another forest")
    name = header["role"]
    if name not in coordinator.parties:
        raise ModelFileError(
            f"{path} is the part of {name!r}; the parties of this forest are {list(coordinator.parties)}"
        )
    part = guarded(path, _unpack_party, (header, arrays), coordinator, coordinator.parties.index(name))
    return name, part


def save_own_part(
    folder: Path, party: str, forest: str, part: PartyForest, beside: Mapping[str, bytes] | None = None
) -> str:
    """Write a party's part where it is, for a forest whose fingerprint is ``forest``; returns the part's fingerprint.

    What is there already is replaced at once or not at all, together with the files ``beside`` the part.
    """
    return write_own(folder, FORMAT, forest, party, _pack_party(part), beside)


def load_own_part(folder: Path, party: str, forest: str) -> PartyForest:
    """Read what ``save_own_part`` has written; another party's or another forest's is refused."""
    header, arrays = read_part(folder, FORMAT)
    if header["forest"] != forest or header["role"] != party:
        raise ModelFileError(f"{folder} belongs to another forest or party")
    return guarded(folder, _unpack_own, (header, arrays))


class StoredTrees:
    """The trees of one role's part of a forest on disk, each read alone: a large forest need not be read for one.

    Parameters
    ----------
    folder : Path
        The coordinator's part, or a party's; one that was changed or damaged is refused.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = PartFile(folder, FORMAT)
        self._offset = self._file.read("offset")
        if self._offset.dtype != np.int64 or self._offset.ndim != 1 or len(self._offset) < 2:
            raise ModelFileError(f"{folder} is not a sound part of a forest: trees are not numbered")

    @property
    def n_trees(self) -> int:
        """How many there are."""
        return len(self._offset) - 1

    def shared(self) -> dict[str, StoredTrees]:
        """What parties have shared, in the coordinator's part."""
        parts = [StoredTrees(folder) for folder in sorted((self._folder / SHARED).glob(f"{PARTY}*"))]
        return {str(part._file.header["role"]): part for part in parts}

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, of a party's part."""
        return tuple(self._file.header["names"])

    def feature_party(self) -> NDArray[np.int64]:
        """Number of the party that has each feature, of the coordinator's part."""
        return self._file.read("feature_party")

    def coordinators(self, tree: int) -> CoordinatorForest:
        """A forest of this one tree, of the coordinator's part."""
        (start, end), structure = self._shape(tree)
        # every tree has one leaf more than inner nodes
        first = (start + tree) // 2
        leaf_start = self._file.read("leaf_start", first, first + structure.n_leaves + 1)
        entries = (int(leaf_start[0]), int(leaf_start[-1]))
        arrays = {
            "offset": structure.offset, "right": structure.right, "leaf_start": leaf_start - leaf_start[0],
            "leaf_weight": self._file.read("leaf_weight", first, first + structure.n_leaves),
            **{name: self._file.read(name, start, end) for name in ("owner", "feature", "gain")},
            **{name: self._file.read(name, *entries) for name in ("leaf_output", "leaf_value")},
            **{name: self._file.read(name) for name in ("feature_keys", "feature_party")},
        }  # fmt: skip
        return guarded(self._folder, _unpack_coordinator, (self._file.header, arrays))[0]

    def partys(self, tree: int) -> PartyForest:
        """A forest of this one tree, of a party's part."""
        (start, end), structure = self._shape(tree)
        node = self._file.read("node")
        own = tuple(int(place) for place in np.searchsorted(node, (start, end)))
        set_start = self._file.read("set_start", own[0], own[1] + 1)
        arrays = {
            "offset": structure.offset, "right": structure.right, "set_start": set_start - set_start[0],
            "node": node[slice(*own)] - node.dtype.type(start),
            "sets": self._file.read("sets", int(set_start[0]), int(set_start[-1])),
            **{name: self._file.read(name, *own) for name in ("feature", "threshold", "missing_left")},
        }  # fmt: skip
        return guarded(self._folder, _unpack_own, (self._file.header, arrays))

    def _shape(self, tree: int) -> tuple[tuple[int, int], Structure]:
        if not 0 <= tree < self.n_trees:
            raise DataError(f"there is no tree {tree}; the forest has trees 0 to {self.n_trees - 1}")
        start, end = int(self._offset[tree]), int(self._offset[tree + 1])
        right = self._file.read("right", start, end)
        alone = np.where(right >= 0, right - start, -1).astype(np.int32)
        return (start, end), Structure(np.array([0, end - start], np.int64), alone)


def _unpack_own(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> PartyForest:
    structure = Structure(arrays["offset"], arrays["right"])
    check_structure(structure)
    node = arrays["node"]
    if node.ndim != 1 or (len(node) and not 0 <= node.min() <= node.max() < structure.n_nodes):
        raise ValueError("a split is at no node")
    if (structure.right[node] < 0).any():
        raise ValueError("a leaf is split")
    return _party_part(header, arrays, structure, node)


def fingerprint_of(part: PartyForest) -> str:
    """Fingerprint of a party's part."""
    return digest_of(_pack_party(part))


def whole_forest_id(forest: CoordinatorForest, part: PartyForest) -> str:
    """Fingerprint of all of a forest that one place has: classes, columns and thresholds count, as do answers.

    Parameters
    ----------
    forest : CoordinatorForest
        Structure and answers.
    part : PartyForest
        The splits of all columns.

    Returns
    -------
    str
        Equal for forests that answer alike for all rows, before and after they were stored.
    """
    both = digest_of(_pack_coordinator(forest, {})) + fingerprint_of(part)
    return hashlib.sha256(both.encode()).hexdigest()


def _write_parties(root: Path, forest_id: str, parts: Mapping[str, PartyForest]) -> None:
    for name, part in parts.items():
        write_part(root / party_folder(name), FORMAT, forest_id, name, _pack_party(part))


def _read_parties(root: Path, coordinator: CoordinatorForest) -> dict[str, PartyForest]:
    return dict(load_party(folder, coordinator) for folder in sorted(root.glob(f"{PARTY}*")))


def forest_id_of(forest: CoordinatorForest) -> str:
    """Two forests of the same shape are not the same: owners, gains and answers count too."""
    digest = hashlib.sha256()
    for array in _pack_coordinator(forest, {})[1].values():
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    if forest.leaves.link != "mean":
        digest.update(forest.leaves.link.encode())
    return digest.hexdigest()


def _pack_coordinator(forest: CoordinatorForest, extra: Mapping[str, Any]) -> Packed:
    header: dict[str, Any] = {
        "parties": list(forest.parties),
        "classes": list(forest.classes),
        "n_rows": forest.n_rows,
        "extra": dict(extra),
        **({"outside": forest.outside} if forest.outside else {}),
        **({"left": list(forest.left)} if forest.left else {}),
        **({"left_at": forest.left_at} if forest.left_at else {}),
        **({"link": forest.leaves.link} if forest.leaves.link != "mean" else {}),
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
        link=header.get("link", "mean"),
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
        left=tuple(str(name) for name in header.get("left", ())),
        left_at={str(name): int(count) for name, count in header.get("left_at", {}).items()},
    )
    check_coordinator(forest)
    return forest, dict(header["extra"])


def _pack_party(part: PartyForest) -> Packed:
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
