"""Accuracy on the papers' data sets, where they are at hand: within noise of scikit-learn.

``benchmarks/accuracy.py`` does the same with 20 seeds on all nine sets; its table is docs/results/accuracy.md.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "accuracy.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_accuracy", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


accuracy = load_script()


@pytest.mark.datasets
@pytest.mark.parametrize(
    "name",
    ["ionosphere", "spambase", "wine_quality_white", pytest.param("superconduct_subset", marks=pytest.mark.slow)],
)
def test_within_noise(name: str) -> None:
    if not (accuracy.folder() / f"{name}.parquet").exists():
        pytest.skip(
            f"{name}.parquet is not in {accuracy.folder().name}/: set WOODLOT_DATASETS to the data sets' folder"
        )
    result = accuracy.compare(name, range(3), 25)
    # three seeds say little about the spread: a point and a half, or four standard errors where these are larger
    spread = (result.ours - result.theirs).std(ddof=1) / np.sqrt(3)
    assert abs(result.difference) <= max(0.015, 4 * min(spread, 0.01)), (result.ours, result.theirs)
    assert result.theirs.mean() > 0.5


def test_z_of_a_known_difference() -> None:
    result = accuracy.Result(np.array([0.9, 0.8, 0.7]), np.array([0.8, 0.8, 0.6]))
    assert result.difference == pytest.approx(0.2 / 3)
    assert result.z == pytest.approx(2.0)
    assert accuracy.Result(np.ones(3), np.ones(3)).z == 0.0
