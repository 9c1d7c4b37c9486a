"""Saved models that are damaged, foreign or forged."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import woodlot as wl
from model_parts import FED, FRAME, Y, classifier
from woodlot.exceptions import ModelFileError
from woodlot.protocols.core.soundness import check_structure, subtree_ends
from woodlot.trees.forest import Structure


@pytest.fixture(scope="module")
def dealt() -> wl.FederatedForestClassifier:
    return classifier(n_estimators=20, oob_score=True).fit(FRAME, Y)


@pytest.fixture(scope="module")
def federated() -> wl.FederatedForestClassifier:
    return classifier().fit(FED, y="bank.label")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, federated: wl.FederatedForestClassifier) -> Path:
    folder = tmp_path_factory.mktemp("models") / "federated"
    federated.save(folder)
    return folder


def sign_again(part: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a header as somebody would who knows how digests are made."""
    header = json.loads((part / "part.json").read_text())
    change(header)
    header.pop("sha256")
    header["arrays_sha256"] = hashlib.sha256((part / "arrays.npz").read_bytes()).hexdigest()
    text = json.dumps(header, indent=1, sort_keys=True)
    header["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (part / "part.json").write_text(json.dumps(header, indent=1, sort_keys=True) + "\n")


def change_arrays(part: Path, **changed: Any) -> None:
    with np.load(part / "arrays.npz") as file:
        arrays = {name: file[name] for name in file.files}
    np.savez_compressed(part / "arrays.npz", **(arrays | changed))
    sign_again(part, lambda header: None)


@pytest.mark.slow
def test_every_changed_byte_is_noticed(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    for path in sorted((tmp_path / "model").rglob("*.*")):
        original = path.read_bytes()
        positions = np.unique(np.linspace(0, len(original) - 1, 40).astype(int)).tolist()
        for position in positions:
            for mask in (0x01, 0x20, 0xFF):
                damaged = bytearray(original)
                damaged[position] ^= mask
                path.write_bytes(damaged)
                with pytest.raises(ModelFileError, match=str(path)):
                    wl.load(tmp_path / "model")
        for other in (original[:-1], original + b"\n", b"", original.replace(b"\n", b"\r\n")):
            if other != original:
                path.write_bytes(other)
                with pytest.raises(ModelFileError, match=str(path)):
                    wl.load(tmp_path / "model")
        path.write_bytes(original)
    wl.load(tmp_path / "model")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_header_byte_may_be_any_other(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = _model_once(tmp_path_factory)
    path = folder / "party-bank" / "part.json"
    original = path.read_bytes()
    position = data.draw(st.integers(0, len(original) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda v: v != original[position]))
    path.write_bytes(original[:position] + bytes([value]) + original[position + 1 :])
    try:
        with pytest.raises(ModelFileError, match=r"part\.json"):
            wl.load(folder)
    finally:
        path.write_bytes(original)


_made: list[Path] = []


def _model_once(factory: pytest.TempPathFactory) -> Path:
    if not _made:
        folder = factory.mktemp("once") / "model"
        classifier(n_estimators=2, max_depth=2).fit(FRAME, Y).save(folder)
        _made.append(folder)
    return _made[0]


def test_missing_files(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nothing holds no coordinator's part; give the folder that save"):
        wl.load(tmp_path / "nothing")
    with pytest.raises(ModelFileError, match="is the part of 'shop'; load the coordinator's"):
        wl.load(saved / "party-shop")
    shutil.copytree(saved, tmp_path / "model")
    (tmp_path / "model" / "party-shop" / "arrays.npz").unlink()
    with pytest.raises(ModelFileError, match=r"party-shop/arrays\.npz cannot be read"):
        wl.load(tmp_path / "model")


def test_other_versions_and_formats(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    part = tmp_path / "model" / "coordinator"
    sign_again(part, lambda header: header.update(version=2))
    with pytest.raises(ModelFileError, match=r"part\.json has version 2; this Woodlot reads version 1"):
        wl.load(tmp_path / "model")
    sign_again(part, lambda header: header.update(version=1, format="other"))
    with pytest.raises(ModelFileError, match="not part of a Woodlot forest"):
        wl.load(tmp_path / "model")
    (part / "part.json").write_text("[1, 2]")
    with pytest.raises(ModelFileError, match="not part of a Woodlot forest"):
        wl.load(tmp_path / "model")


def test_parts_of_other_forests(tmp_path: Path, federated: wl.FederatedForestClassifier, saved: Path) -> None:
    # stumps all have the same shape: the shape alone does not tell whose they are
    one = classifier(max_depth=1, bootstrap=False, random_state=0).fit(FRAME, Y)
    other = classifier(max_depth=1, bootstrap=False, random_state=0).fit(FRAME, (FRAME.shop_visits > 0).astype(int))
    np.testing.assert_array_equal(one.forest_.coordinator.structure.right, other.forest_.coordinator.structure.right)
    one.save(tmp_path / "one")
    other.save(tmp_path / "other")
    with pytest.raises(ModelFileError, match="party-shop belongs to another forest"):
        one.combine([tmp_path / "other" / "party-shop"])
    shutil.rmtree(tmp_path / "one" / "party-shop")
    shutil.copytree(tmp_path / "other" / "party-shop", tmp_path / "one" / "party-shop")
    with pytest.raises(ModelFileError, match="party-shop belongs to another forest"):
        wl.load(tmp_path / "one")
    with pytest.raises(ModelFileError, match="is the part of 'coordinator'; the parties of this forest are"):
        federated.combine([saved / "coordinator"])
    with pytest.raises(ModelFileError, match="cannot be read as part of a model"):
        federated.combine([tmp_path])


def shifted(name: str, by: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda arrays: {name: arrays[name] + np.array(by, arrays[name].dtype)}


COORDINATOR_FORGERIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "children beyond the forest": lambda a: {"right": np.where(a["right"] >= 0, a["right"] + len(a["right"]), -1)},
    "children before their parents": lambda a: {"right": np.where(a["right"] >= 0, 0, a["right"])},
    "trees of no nodes": shifted("offset", 1),
    "other types": lambda a: {"right": a["right"].astype(np.int64)},
    "owners": lambda a: {"owner": np.where(a["owner"] >= 0, 1 - a["owner"], -1).astype(np.int16)},
    "unknown features": shifted("feature", 9),
    "features of nobody": shifted("feature_party", 5),
    "gains": lambda a: {"gain": a["gain"] * np.nan},
    "leaves without answers": lambda a: {"leaf_start": a["leaf_start"] * 0},
    "answers for no class": shifted("leaf_output", 7),
    "answers that are no numbers": lambda a: {"leaf_value": a["leaf_value"] * np.nan},
    "weightless leaves": lambda a: {"leaf_weight": a["leaf_weight"] * 0},
    "too few leaves": lambda a: {"leaf_weight": a["leaf_weight"][:-1]},
}
PARTY_FORGERIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another shape": lambda a: {"right": a["right"][::-1].copy()},
    "nodes of others": shifted("node", 1),
    "unknown columns": shifted("feature", 3),
    "sets for numbers": lambda a: {"feature": (1 - a["feature"]).astype(np.int32)},
    "thresholds": lambda a: {"threshold": a["threshold"] * np.nan},
    "sets beyond the end": lambda a: {"set_start": a["set_start"] * 2},
    "other types": lambda a: {"missing_left": a["missing_left"].astype(np.int8)},
    "two dimensions": lambda a: {"feature": a["feature"][:, None]},
}


@pytest.mark.parametrize("case", COORDINATOR_FORGERIES)
def test_an_unsound_forest_is_refused_even_with_right_digests(case: str, saved: Path, tmp_path: Path) -> None:
    refuse(saved, tmp_path, "coordinator", COORDINATOR_FORGERIES[case])


@pytest.mark.parametrize("case", PARTY_FORGERIES)
def test_an_unsound_part_is_refused_even_with_right_digests(case: str, saved: Path, tmp_path: Path) -> None:
    refuse(saved, tmp_path, "party-shop", PARTY_FORGERIES[case])


def refuse(saved: Path, tmp_path: Path, role: str, forge: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    shutil.copytree(saved, tmp_path / "model")
    with np.load(tmp_path / "model" / role / "arrays.npz") as file:
        arrays = {name: file[name] for name in file.files}
    change_arrays(tmp_path / "model" / role, **forge(arrays))
    with pytest.raises(ModelFileError, match=f"{role} is not a sound part of a forest"):
        wl.load(tmp_path / "model")


def test_forged_headers(saved: Path, tmp_path: Path) -> None:
    for role, change in (
        ("coordinator", lambda h: h.pop("classes")),
        ("coordinator", lambda h: h.update(classes=["only"])),
        ("coordinator", lambda h: h.update(parties=["bank"])),
        ("party-shop", lambda h: h.update(names=["a"])),
        ("party-shop", lambda h: h.update(names=["a", "a"])),
        ("party-shop", lambda h: h.update(categories=[None, None])),
        ("party-shop", lambda h: h.update(categories=3)),
    ):
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        shutil.copytree(saved, tmp_path / "model")
        sign_again(tmp_path / "model" / role, change)
        with pytest.raises(ModelFileError, match="is not a sound part of a forest"):
            wl.load(tmp_path / "model")
    for extra in (lambda h: h["extra"].pop("params"), lambda h: h["extra"]["params"].update(depth=1)):
        shutil.rmtree(tmp_path / "model")
        shutil.copytree(saved, tmp_path / "model")
        sign_again(tmp_path / "model" / "coordinator", extra)
        with pytest.raises(ModelFileError, match="this Woodlot cannot restore"):
            wl.load(tmp_path / "model")
    sign_again(tmp_path / "model" / "coordinator", lambda h: h["extra"].update(estimator="Gardener"))
    with pytest.raises(ModelFileError, match="unknown kind 'Gardener'"):
        wl.load(tmp_path / "model")


def test_pickled_arrays_are_never_opened(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "model")
    part = tmp_path / "model" / "party-bank"
    packed = io.BytesIO()
    np.savez(packed, node=np.array([{"a": 1}], object))
    (part / "arrays.npz").write_bytes(packed.getvalue())
    sign_again(part, lambda header: None)
    with pytest.raises(ModelFileError, match=r"arrays\.npz cannot be read"):
        wl.load(tmp_path / "model")


def random_structure(rng: np.random.Generator) -> Structure:
    right: list[int] = []

    def grow(depth: int) -> None:
        me = len(right)
        right.append(-1)
        if depth < 6 and rng.random() < 0.6:
            grow(depth + 1)
            right[me] = len(right)
            grow(depth + 1)

    offset = [0]
    for _ in range(rng.integers(1, 4)):
        grow(0)
        offset.append(len(right))
    return Structure(np.array(offset, np.int64), np.array(right, np.int32))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_structures_are_told_from_what_is_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    structure = random_structure(rng)
    check_structure(structure)
    ends = subtree_ends(structure.right)

    def end(node: int) -> int:
        return node + 1 if structure.right[node] < 0 else end(int(structure.right[node]))

    assert ends.tolist() == [end(node) for node in range(structure.n_nodes)]
    inner = np.flatnonzero(structure.right >= 0)
    if len(inner):
        wrong = structure.right.copy()
        at = rng.choice(inner)
        wrong[at] = rng.choice([r for r in range(-3, structure.n_nodes + 3) if r != wrong[at]])
        with pytest.raises(ValueError, match=r"child|branch|nodes|leaf"):
            check_structure(Structure(structure.offset, wrong))
    if structure.n_trees > 1:
        moved = structure.offset.copy()
        moved[1] += 1
        with pytest.raises(ValueError, match=r"child|branch|nodes|leaf"):
            check_structure(Structure(moved, structure.right))
