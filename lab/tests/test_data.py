"""Data sets of the experiments: where they come from, and what is said where they are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn.datasets
from sklearn.utils import Bunch

from woodlot.exceptions import DataError
from woodlot_lab.data import Dataset, DataSource, MissingDataError, waveform
from woodlot_lab.ff_domains import domains
from woodlot_lab.forests import Split, fair_for_sklearn, halves, split
from woodlot_lab.rev_rebuilding import destroyed


def test_a_parquet_file_becomes_numbers(tmp_path: Path) -> None:
    table = pa.table(
        {
            "age": [1.5, None, 3.0],
            "sex": pa.array(["f", None, "m"]).dictionary_encode(),
            "town": ["x", "y", "x"],
            "target": ["no", "yes", "no"],
        }
    )
    pq.write_table(table, tmp_path / "adult.parquet")
    data = DataSource(tmp_path).load("adult")
    assert data.columns == ("age", "sex", "town")
    np.testing.assert_array_equal(data.X, np.array([[1.5, 0, 0], [np.nan, np.nan, 1], [3, 1, 0]], np.float32))
    np.testing.assert_array_equal(data.y, [0, 1, 0])
    assert data.task == "classes"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"letter\.parquet is not in"):
        DataSource(tmp_path).load("letter")
    with pytest.raises(MissingDataError, match="no data set 'leter'"):
        DataSource(tmp_path).load("leter")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "letter.parquet")
    with pytest.raises(MissingDataError, match="no column 'target'"):
        DataSource(tmp_path).load("letter")


def test_without_a_folder_sets_are_fetched_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, **options: Any) -> Bunch:
        assert (name, options["version"]) == ("adult", 2)
        return Bunch(data=pd.DataFrame({"age": [1, 2]}), target=pd.Series(["a", "b"]))

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    np.testing.assert_array_equal(DataSource().load("adult").y, [0, 1])


def test_without_a_network_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fail)
    with pytest.raises(MissingDataError, match=r"pendigits could not be fetched.*no route.*pendigits\.parquet"):
        DataSource().check("pendigits")
    with pytest.raises(MissingDataError, match="not at OpenML: give a folder"):
        DataSource().check("drug_consumption_heroin_ever")
    assert DataSource().load("waveform").X.shape == (5000, 21)


def test_waveforms_are_mixtures_of_two_triangles() -> None:
    X, y = waveform(30_000, seed=1)
    np.testing.assert_allclose(np.bincount(y) / len(y), 1 / 3, atol=0.02)
    triangles = {peak: np.maximum(6 - np.abs(np.arange(1, 22) - peak), 0) for peak in (7, 11, 15)}
    for c, (first, second) in enumerate([(11, 15), (11, 7), (15, 7)]):
        np.testing.assert_allclose(X[y == c].mean(axis=0), (triangles[first] + triangles[second]) / 2, atol=0.1)
    # noise of variance 1, and of the mixture a twelfth of the squared difference
    away = X[y == 0]
    expected = 1 + (triangles[11] - triangles[15]) ** 2 / 12
    np.testing.assert_allclose(away.var(axis=0), expected, rtol=0.08)


def test_columns_too_narrow_for_scikit_learn_are_widened_without_loss() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=50), 1e-9 * rng.normal(size=50), np.zeros(50)]).astype(np.float32)
    rows = Split(X[:40], X[40:], np.zeros(40), np.zeros(10), True)
    fair = fair_for_sklearn(rows)
    np.testing.assert_array_equal(fair.train[:, [0, 2]], rows.train[:, [0, 2]])
    factor = fair.train[:, 1] / rows.train[:, 1]
    assert (factor == factor[0]).all()
    assert np.log2(factor[0]).is_integer()
    assert 0.5 <= np.ptp(np.concatenate([fair.train[:, 1], fair.test[:, 1]])) <= 2


def test_splits_and_halves_are_the_same_for_a_seed() -> None:
    data = DataSource(stand_ins=True).load("wine")
    one, same, other = split(data, 1), split(data, 1), split(data, 2)
    np.testing.assert_array_equal(one.test, same.test)
    assert not np.array_equal(one.test, other.test)
    parties = halves(13, 0)
    assert sorted(parties["one"] + parties["two"]) == list(range(13))
    assert (len(parties["one"]), len(parties["two"])) == (7, 6)


def test_parkinsons_columns_fall_into_its_domains() -> None:
    names = ("gender", "apq3Shimmer", "minIntensity", "f1", "b4", "VFER_std", "mean_MFCC_0th_coef", "Ea2", "Ed2_1_coef",
             "det_LT_entropy_log_9_coef", "tqwt_TKEO_std_dec_3")  # fmt: skip
    X, y = np.zeros((1, len(names)), np.float32), np.zeros(1)
    found = domains(Dataset("parkinson", X, y, "classes", names))
    assert list(found) == [
        "baseline", "intensity", "formant", "bandwidth", "vocal fold", "MFCC", "wavelet", "TQWT",
    ]  # fmt: skip
    assert found["wavelet"] == [7, 8, 9]
    with pytest.raises(DataError, match="column 'x1' of parkinson"):
        domains(Dataset("parkinson", X[:, :1], y, "classes", ("x1",)))
    assert list(map(len, domains(Dataset("other", X, y, "classes", names)).values())) == [3, 3, 3, 2]


def test_a_leavers_nodes_are_destroyed_with_all_under_them() -> None:
    #        0:a
    #    1:b     4:c       leaves: 2, 3, 5 and 7, 8
    #  2   3   5   6:b
    right = np.array([4, 3, -1, -1, 6, -1, 8, -1, -1])
    owner = np.array([0, 1, -1, -1, 2, -1, 1, -1, -1])
    assert [destroyed(right, owner, leavers) for leavers in ([0], [1], [2], [1, 2], [])] == [4, 2, 2, 3, 0]
