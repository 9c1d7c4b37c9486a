"""The codes of shared labels: secret, another one in every job, and without a trace in the forest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from woodlot import FederatedForestClassifier
from woodlot.data.tables import Table
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.forest_messages import EncodedLabels, OpenTraining, ShareLabels
from woodlot.protocols.vertical.party import VerticalParty

N = 60
LABELS = np.arange(N) % 30
VALUES = np.random.default_rng(0).normal(size=N)


def shared(target: Target, seed: int = 7, **options: Any) -> EncodedLabels:
    party = VerticalParty("holder", Table((), (), N), target=target, **options)
    party.handle(OpenTraining(max_bins=None))
    task = "classes" if target.classes else "targets"
    reply = party.handle(
        ShareLabels(
            task=task, seed=seed, balanced=False, class_weight=(), reveal_unit=False, bootstrap=True, max_samples=None
        )
    )
    assert isinstance(reply, EncodedLabels)
    return reply


def test_every_job_has_a_permutation_of_its_own_and_a_repeated_job_the_same() -> None:
    target = Target.of_classes(LABELS)
    codes = [shared(target).labels for _ in range(3)]
    assert all(len(np.unique(np.column_stack([LABELS, code]), axis=0)) == 30 for code in codes)  # one code per class
    assert not np.array_equal(codes[0], codes[1])
    assert not np.array_equal(codes[1], codes[2])
    again = [shared(target, job_secret=bytes(range(32))).labels for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_the_map_of_targets_follows_from_the_targets_themselves() -> None:
    first, again = shared(Target.of_values(VALUES)).targets, shared(Target.of_values(VALUES)).targets
    np.testing.assert_array_equal(first, again)
    slope = (first[1:] - first[0]) / (VALUES[1:] - VALUES[0])
    np.testing.assert_allclose(slope, slope[0], rtol=1e-9)
    others = [
        shared(Target.of_values(VALUES), seed=8).targets,
        shared(Target.of_values(VALUES), secret=b"the holder's own").targets,
        shared(Target.of_values(np.append(VALUES[:-1], 0.5))).targets,
    ]
    for other in others:
        assert not np.isclose((other[1] - other[0]) / (VALUES[1] - VALUES[0]), slope[0])


def test_the_forest_is_the_same_under_every_code() -> None:
    """Categories too, whose order follows from the classes: each fit draws another permutation."""
    rng = np.random.default_rng(1)
    value, letter = rng.normal(size=N), rng.integers(0, 6, N)
    X = pd.DataFrame({"value": value, "letter": pd.Series(np.array([*"abcdef"])[letter], dtype="str")})
    y = (value + letter + rng.normal(size=N) > 3).astype(int)
    model = FederatedForestClassifier(5, random_state=0)
    first = model.fit(X, y).combine()
    for _ in range(6):
        again = model.fit(X, y).combine()
        np.testing.assert_array_equal(first.splits.threshold, again.splits.threshold)
        np.testing.assert_array_equal(first.splits.sets, again.splits.sets)
        np.testing.assert_array_equal(first.coordinator.leaves.value, again.coordinator.leaves.value)
