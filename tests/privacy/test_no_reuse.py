"""Nothing random is used twice, and what should be uniform is.

Where the chance can be fixed, keys are derived from numbers, so that a test passes always or never: it was a matter of
chance, one in `UNLUCKY`, only when it was first run. Noise that no seed can fix fails so seldom too.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audits import audited_epsilon
from scipy.stats import chisquare

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "crypto"))

from small_keys import master, stream

import woodlot as wl
from woodlot.crypto.dtpkc import WeakKey
from woodlot.privacy.client_budget import LocalBudget
from woodlot.privacy.noise import CountNoise
from woodlot.protocols.core.target_codes import ClassCode, TargetCode
from woodlot.protocols.rows.releases import score_noise, tell_noisy
from woodlot.protocols.sums import masks
from woodlot.trees.sampling import feature_key
from woodlot_lab.pools import Pool

UNLUCKY = 1e-6
ORDERS = {order: number for number, order in enumerate(itertools.permutations(range(4)))}


def secret(number: int) -> bytes:
    return hashlib.sha256(b"a secret of the tests %d" % number).digest()


def order_of_columns(key: bytes) -> tuple[int, ...]:
    """In which order features of equal worth are taken: by their codes."""
    return tuple(np.argsort([feature_key(name, "bank", key) for name in ("age", "income", "town", "late")]).tolist())


@pytest.mark.parametrize(
    "order",
    [lambda key: tuple(ClassCode.draw(4, key).coded.tolist()), order_of_columns],
    ids=["codes of classes", "codes of features"],
)
def test_every_permutation_is_as_likely_as_any_other(order: Callable[[bytes], tuple[int, ...]]) -> None:
    drawn = Counter(ORDERS[order(secret(number))] for number in range(100 * len(ORDERS)))
    assert chisquare([drawn[number] for number in range(len(ORDERS))]).pvalue > UNLUCKY


def test_the_map_of_targets_turns_and_stretches_evenly() -> None:
    y = np.array([0.0, 1.0])
    maps = [TargetCode.draw(y, 100.0, secret(number)) for number in range(2000)]
    turned = sum(one.scale < 0 for one in maps)
    assert chisquare([turned, len(maps) - turned]).pvalue > UNLUCKY
    centres = np.histogram([one.centre for one in maps], bins=10, range=(0.25, 0.75))[0]
    assert centres.sum() == len(maps)
    assert chisquare(centres).pvalue > UNLUCKY


# --- masks ---


@pytest.mark.parametrize("kind", [wl.HorizontalForestClassifier, wl.FederatedExtraTreesClassifier])
def test_no_mask_of_a_sum_is_used_twice(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key masks one vector of one pair, at its two ends; a second training has keys of its own."""
    used: list[bytes] = []
    lock = threading.Lock()
    fill = masks.fill

    def noted(key: bytes, out: Any) -> None:
        with lock:
            used.append(key)
        fill(key, out)

    monkeypatch.setattr(masks, "fill", noted)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(45, 2))
    y = (X[:, 0] > 0).astype(int)
    for _ in range(2):
        kind(parties=3, n_estimators=2, max_depth=3, random_state=0).fit(X, y)
    assert len(used) > 20
    assert set(Counter(used).values()) == {2}


def test_masked_numbers_are_uniform() -> None:
    """The same small number, masked in many rounds: no byte of what leaves is likelier than another."""
    names = ("bank", "inn", "shop")
    common = {peer: secret(number) for number, peer in enumerate(names)}
    masker = masks.Masker("bank", b"t" * 32, names, {peer: common[peer] for peer in names[1:]})
    sent = np.concatenate([masker.mask(n, np.full(64, 7, np.uint64), names) for n in range(400)])
    assert chisquare(np.bincount(sent.view(np.uint8), minlength=256)).pvalue > UNLUCKY
    assert len(np.unique(sent)) == len(sent)


def test_threads_that_share_a_pool_get_nothing_twice() -> None:
    key = WeakKey.draw(master().group, stream("pool")).public
    pool = Pool(key)
    pool.fill(20)
    taken: list[tuple[Any, Any]] = []
    threads = [threading.Thread(target=lambda: taken.extend(pool.take(key) for _ in range(15))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 60
    assert len({int(first) for first, _ in taken}) == len({int(second) for _, second in taken}) == 60


# --- differential privacy, by an attack at 99% and beyond ---


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_private_leaves_tell_no_more_than_they_are_charged_for(epsilon: float) -> None:
    """Through the release itself: counts of leaves with and without a row, charged and told."""
    drawn = []
    for count in (8, 7):
        client_budget = LocalBudget("client")
        counts = np.full((20_000, 1), count, np.int64)
        told = tell_noisy(counts, CountNoise(epsilon), client_budget, release=f"leaves {count}", job="job", queries=1)
        drawn.append(told.ravel())
        assert [spend.epsilon for spend in client_budget.spends("rows")] == [pytest.approx(epsilon)]
    assert 0.6 * epsilon <= audited_epsilon(*drawn, alpha=UNLUCKY) <= epsilon


def test_a_score_with_noise_tells_no_more_of_a_label_than_it_is_charged_for() -> None:
    """One label is changed: an answer that was right is wrong. What both counts tell together is found."""
    epsilon, drawn = 1.0, []
    for right in (30, 29):
        client_budget = LocalBudget("client")
        counts = np.full((20_000, 2), (right, 60 - right), np.int64)
        told = tell_noisy(counts, score_noise(epsilon), client_budget, release=f"score {right}", job="job", queries=1)
        drawn.append((told[:, 0] >= 30).astype(np.int64) + (told[:, 1] <= 30))
        assert sum(spend.epsilon * spend.count for spend in client_budget.spends("rows")) == pytest.approx(epsilon)
    assert 0.6 * epsilon <= audited_epsilon(*drawn, alpha=UNLUCKY) <= epsilon
