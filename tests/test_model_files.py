"""Saved models: one folder per role, checked to the last byte: there and back, and apart."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import woodlot as wl
from model_parts import DEALING, FED, FRAME, Y, classifier
from woodlot.exceptions import DataError, ModelFileError, PolicyError
from woodlot.protocols.vertical.files import StoredTrees
from woodlot.protocols.vertical.sight import sight_of_tree

# --- there and back ---


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


def test_saved_models_are_private_whatever_the_umask(federated: wl.FederatedForestClassifier, tmp_path: Path) -> None:
    linear = wl.FederatedLinearRegression().fit(FRAME[["bank_age", "shop_visits"]], 1.0 * (Y == "yes"))
    before = os.umask(0)
    try:
        federated.save(tmp_path / "forest")
        linear.save(tmp_path / "linear")
    finally:
        os.umask(before)
    paths = [path for folder in ("forest", "linear") for path in (tmp_path / folder, *(tmp_path / folder).rglob("*"))]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}


def test_a_loaded_model_is_the_same(dealt: wl.FederatedForestClassifier, tmp_path: Path) -> None:
    dealt.save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model")
    assert isinstance(loaded, wl.FederatedForestClassifier)
    for method in ("local", "one-round", "classical"):
        np.testing.assert_array_equal(loaded.predict_proba(FRAME, method=method), dealt.predict_proba(FRAME))
    np.testing.assert_array_equal(loaded.predict(FRAME), dealt.predict(FRAME))
    assert loaded.get_params() == dealt.get_params()
    assert loaded.oob_score_ == dealt.oob_score_
    np.testing.assert_array_equal(loaded.oob_curve_, dealt.oob_curve_)
    assert loaded.feature_names_in_.tolist() == list(FRAME)
    assert loaded.n_features_in_ == 4
    assert loaded.n_classes_ == 2
    np.testing.assert_array_equal(loaded.feature_importances_, dealt.feature_importances_)
    np.testing.assert_array_equal(loaded.importance_owners_, dealt.importance_owners_)
    assert list(loaded.disclosure_) == list(dealt.disclosure_)
    assert loaded.cost_ == dealt.cost_
    with pytest.raises(ValueError, match="Feature names unseen at fit time"):
        loaded.predict(FRAME.assign(more=1))
    loaded.save(tmp_path / "again")
    for path in sorted(p.relative_to(tmp_path / "model") for p in (tmp_path / "model").rglob("*.*")):
        assert (tmp_path / "model" / path).read_bytes() == (tmp_path / "again" / path).read_bytes()


def test_parties_keep_their_order(tmp_path: Path) -> None:
    """The eleventh party's name sorts before the second's, the holder of labels may be the last in the alphabet."""
    frame = FRAME[["bank_age", "shop_visits"]].assign(**{f"noise {j}": FRAME.bank_age * j % 1 for j in range(10)})
    named = {"z": ["bank_age", "noise 0"], "b": [c for c in frame if c not in ("bank_age", "noise 0")]}
    for number, parties in enumerate((11, named)):
        model = classifier(parties=parties).fit(frame, Y)
        model.save(tmp_path / str(number))
        loaded = wl.load(tmp_path / str(number))
        np.testing.assert_array_equal(loaded.feature_importances_, model.feature_importances_)
        np.testing.assert_array_equal(loaded.importance_owners_, model.importance_owners_)
    with pytest.raises(DataError, match="'z' holds the labels"):
        loaded.revoke("z", data=(frame, Y))
    model.revoke("b", level=3)
    loaded.revoke("b", level=3, data=(frame, Y))
    np.testing.assert_array_equal(
        loaded.predict_proba(frame[["bank_age", "noise 0"]]), model.predict_proba(frame[["bank_age", "noise 0"]])
    )


def test_a_tree_is_read_alone(federated: wl.FederatedForestClassifier, saved: Path) -> None:
    forest = federated.forest_
    for role, whole in (("coordinator", forest.coordinator), *forest.parts.items()):
        trees = StoredTrees(saved / (role if role == "coordinator" else f"party-{role}"))
        assert trees.n_trees == whole.structure.n_trees
        for tree, start in enumerate(whole.structure.offset[:-1].tolist()):
            alone = trees.coordinators(tree) if role == "coordinator" else trees.partys(tree)
            expected = sight_of_tree(whole, tree)["nodes"]
            for node in expected:
                node |= {key: node[key] - start for key in ("id", "left", "right") if key in node}
            assert sight_of_tree(alone, 0)["nodes"] == expected
        with pytest.raises(DataError, match="there is no tree 99"):
            trees.partys(99)


def test_a_tree_of_a_damaged_file_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved / "coordinator", tmp_path / "coordinator")
    data = (folder / "arrays.npz").read_bytes()
    (folder / "arrays.npz").write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(ModelFileError, match="has been changed"):
        StoredTrees(folder)


def test_a_loaded_regressor(tmp_path: Path) -> None:
    X = FRAME[["bank_age", "shop_visits"]].to_numpy()
    model = wl.FederatedForestRegressor(20, oob_score=True, random_state=0).fit(X, FRAME.bank_age)
    model.save(tmp_path / "model")
    loaded = wl.load(str(tmp_path / "model"))
    assert isinstance(loaded, wl.FederatedForestRegressor)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.predict_interval(X), model.predict_interval(X))
    assert loaded.oob_score_ == model.oob_score_
    assert not hasattr(loaded, "feature_names_in_")
    exported = loaded.combine().to_sklearn()
    np.testing.assert_array_equal(exported.predict(X.astype(np.float32)), model.predict(X))


@pytest.mark.parametrize(
    "classes",
    [
        np.array([3, 7]),
        np.array([0.0, 1.0]),
        np.array([False, True]),
        np.array(["å", "b\n"]),
        np.array(["x", "y"], object),
        np.array([1, 2], np.int8),
        np.array([-1, 200], np.int16),
    ],
)
def test_classes_of_any_type(classes: Any, tmp_path: Path) -> None:
    model = classifier().fit(FRAME, classes[(FRAME.bank_age > 0).astype(int)])
    model.save(tmp_path / "model")
    loaded: Any = wl.load(tmp_path / "model")
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert loaded.predict(FRAME).tolist() == model.predict(FRAME).tolist()


def test_parameters_that_json_does_not_know(tmp_path: Path) -> None:
    model = classifier(
        n_estimators=np.int64(4),
        max_features=np.float64(0.5),
        random_state=np.random.RandomState(0),
        class_weight={"yes": np.float32(2), "no": 1},
        parties={"bank": ("bank_age", "bank_colour"), "shop": np.array(["shop_visits", "shop_town"])},
    ).fit(FRAME, Y)
    model.save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model")
    params = loaded.get_params()
    assert params["n_estimators"] == 4
    assert params["random_state"] is None
    assert params["class_weight"] == {"yes": 2.0, "no": 1}
    assert params["parties"] == DEALING
    np.testing.assert_array_equal(loaded.predict(FRAME), model.predict(FRAME))
    numbered = classifier(class_weight={0: 1, 1: 2.5}).fit(FRAME, (Y == "yes").astype(int))
    numbered.save(tmp_path / "numbered")
    assert wl.load(tmp_path / "numbered").get_params()["class_weight"] == {0: 1, 1: 2.5}


def test_what_cannot_be_saved_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    model = classifier().fit(FRAME, Y).set_params(memory_limit=object())
    with pytest.raises(ModelFileError, match="'memory_limit' holds a object, which cannot be saved"):
        model.save(tmp_path / "model")

    class Mine(wl.FederatedForestClassifier):
        pass

    with pytest.raises(ModelFileError, match="can be saved, not Mine"):
        Mine(2).fit(FRAME, Y).save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_nan_score_survives(tmp_path: Path) -> None:
    X = np.arange(4.0)[:, None]
    with pytest.warns(UserWarning, match="OOB"):
        model = wl.FederatedForestRegressor(1, oob_score=True, max_samples=200, random_state=0).fit(X, X[:, 0])
    model.save(tmp_path / "model")
    assert np.isnan(wl.load(tmp_path / "model").oob_score_)


def test_party_names_that_are_no_file_names(tmp_path: Path) -> None:
    names = ["/up", "a/b", "C:\\x", "*", "é t", "CON"]
    dealing = {name: [column] for name, column in zip(names, [*FRAME, "more", "most"], strict=True)}
    X = FRAME.assign(more=1.0, most=FRAME.bank_age * 2)
    model = classifier(parties=dealing).fit(X, Y)
    model.save(tmp_path / "deep" / "model")
    assert [p.name for p in tmp_path.iterdir()] == ["deep"]
    assert len(list((tmp_path / "deep" / "model").iterdir())) == 7
    loaded = wl.load(tmp_path / "deep" / "model")
    assert set(loaded.forest_.parts) == set(names)
    np.testing.assert_array_equal(loaded.predict(X, method="one-round"), model.predict(X))


# --- roles apart ---


def test_federation_and_folder(saved: Path, federated: wl.FederatedForestClassifier) -> None:
    assert sorted(p.relative_to(saved).as_posix() for p in saved.rglob("*") if p.is_file()) == [
        f"{role}/{file}" for role in ("coordinator", "party-bank", "party-shop") for file in ("arrays.npz", "part.json")
    ]
    loaded = wl.load(saved)
    np.testing.assert_array_equal(loaded.predict_proba(FED), federated.predict_proba(FED))
    assert loaded.score(FED) == federated.score(FED)
    with pytest.raises(PolicyError, match=r"\['bank', 'shop'\] did not agree to share"):
        loaded.combine()  # to find both folders in one place is not consent
    complete = loaded.combine([saved / "party-shop", saved / "party-bank"])
    np.testing.assert_array_equal(complete.predict_proba(FRAME), federated.predict_proba(FED))


def test_the_coordinators_folder_alone(saved: Path, tmp_path: Path, federated: wl.FederatedForestClassifier) -> None:
    shutil.copytree(saved / "coordinator", tmp_path / "elsewhere")
    for folder in (tmp_path / "elsewhere", saved / "coordinator"):
        alone = wl.load(folder)
        assert alone.forest_.parts == {}
        with pytest.raises(ValueError, match=r"has a part of this forest; their folders were not loaded.*combine\(\)"):
            alone.predict(FED)
        complete = alone.combine([saved / "party-bank", saved / "party-shop"])
        np.testing.assert_array_equal(complete.predict(FRAME), federated.predict(FED))


def test_missing_parts(tmp_path: Path, dealt: wl.FederatedForestClassifier, saved: Path) -> None:
    dealt.save(tmp_path / "model")
    shutil.move(tmp_path / "model" / "party-shop", tmp_path / "shop-moved")
    loaded = wl.load(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"the parts of \['shop'\] are missing"):
        loaded.predict(FRAME)
    np.testing.assert_array_equal(loaded.combine(tmp_path / "shop-moved").predict(FRAME), dealt.predict(FRAME))  # type: ignore[arg-type]
    with pytest.warns(wl.UncertainPredictionWarning, match=r"\['shop'\] are absent"):
        loaded.predict(FRAME, method="one-round")


def test_by_consent_the_coordinators_folder_has_the_model(tmp_path: Path) -> None:
    members = {"bank": FRAME[DEALING["bank"]].assign(label=Y), "shop": FRAME[DEALING["shop"]]}
    fed = wl.Federation.local(members, shares_model=True)
    model = classifier().fit(fed, y="bank.label")
    model.save(tmp_path / "model")
    alone = wl.load(tmp_path / "model" / "coordinator")
    np.testing.assert_array_equal(alone.predict_proba(FRAME), model.predict_proba(fed))
    assert set(alone.forest_.shared) == {"bank", "shop"}
    assert not list((tmp_path / "model" / "party-bank").glob("*shop*"))


@pytest.mark.parametrize("which", ["dealt", "federated"])
def test_a_partys_folder_holds_nothing_of_another(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(which)
    model.save(tmp_path / "model")
    own = {"bank": ["bank_age", "bank_colour", "crimson", "teal"], "shop": ["shop_visits", "shop_town", "Oslo", "Lima"]}
    for party, other in (("bank", "shop"), ("shop", "bank")):
        content = contents(tmp_path / "model" / f"party-{party}")
        for word in own[party]:
            assert word.encode() in content
        for word in [*own[other], other]:
            assert word.encode() not in content
        thresholds = model.forest_.parts[other].splits.threshold
        for threshold in thresholds[~np.isnan(thresholds)]:
            assert np.float64(threshold).tobytes() not in content
            assert np.float32(threshold).tobytes() not in content
        for answer in np.unique(model.forest_.coordinator.leaves.value):
            if answer not in (0.0, 1.0):
                assert np.float64(answer).tobytes() not in content
    if which == "federated":
        coordinator = contents(tmp_path / "model" / "coordinator")
        for word in ("bank_age", "crimson", "shop_visits", "Oslo"):
            if word not in str(model.parties):  # the user's own parameter
                assert word.encode() not in coordinator


def contents(folder: Path) -> bytes:
    """All bytes of a folder's files, packed arrays unpacked too."""
    content = b""
    for path in folder.rglob("*"):
        if path.is_file():
            content += path.read_bytes()
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as file:
                content += b"".join(file.read(name) for name in file.namelist())
    return content


# --- writing ---


def test_save_never_overwrites(dealt: wl.FederatedForestClassifier, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(ModelFileError, match=f"{name} is not an empty folder; save into a new one"):
            dealt.save(tmp_path / name)
    with pytest.raises(ModelFileError, match=r"below cannot be made: .*; save into a folder that can"):
        dealt.save(tmp_path / "file" / "below")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "full", "notes.txt"]
    (tmp_path / "empty").mkdir()
    dealt.save(tmp_path / "empty")
    with pytest.raises(ModelFileError, match="not an empty folder"):
        dealt.save(tmp_path / "empty")
    wl.load(tmp_path / "empty")


def test_a_failed_save_leaves_nothing(
    dealt: wl.FederatedForestClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="no space left"):
        dealt.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
