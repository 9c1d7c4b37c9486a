"""What the messages of a training tell: labels, and the order of values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from woodlot.estimators.forest import FederatedForestClassifier
from woodlot.experiments.leaks.case import MARGIN, Case, Finding, Tape
from woodlot.experiments.leaks.partitions import sides_at
from woodlot.protocols.part_files import COORDINATOR

KNOWN_SHARE = 0.01
"""Share of rows whose labels or values an attacker is taken to know from elsewhere; at least `KNOWN_LEAST`."""
KNOWN_LEAST = 20
MAX_COLUMNS = 6
"""Columns of the victim that are attacked for their order."""
MAX_NODES = 400
"""Its nodes that such an attack looks at."""
ATTACK_TREES = 50
"""Trees of forests that an attacker grows on what it knows."""


def label_code_attack(case: Case, tape: Tape, setting: str) -> list[Finding]:
    """Labels from what is sent in their place: codes matched to classes by how frequent both are."""
    numbers = np.unique(case.labels, return_inverse=True)[1]
    chance = float(np.bincount(numbers).max() / len(numbers))
    found = []
    for role in (case.passive, COORDINATOR):
        codes = [
            codes
            for message in tape.got_by(role)
            if isinstance(codes := getattr(message, "labels", None), np.ndarray) and len(codes) == len(numbers)
        ]
        if codes:
            value = matched_by_size(codes[0], numbers)
            words = "each row comes with a code of its class; who knows how frequent the classes are reads the labels"
        else:
            value = chance
            words = "no message has anything readable in place of a label; guessing the largest class is all there is"
        about = ("labels from their code", f"labels={setting}", role, "labels inferred, none known")
        found.append(Finding(*about, value, chance, value > chance + MARGIN, words))
    return found


def leaf_attack(case: Case, tape: Tape, setting: str, leaf: NDArray[np.int64]) -> list[Finding]:
    """Labels from who ends in the same leaf: partitions are told to every party."""
    told = any(len(getattr(message, "flags", ())) for message in tape.got_by(case.passive))
    known, rest = known_rows(len(case.labels))
    numbers = np.unique(case.labels, return_inverse=True)[1]
    own = case.matrix(case.passive)
    largest = float(np.bincount(numbers).max() / len(numbers))
    alone = RandomForestClassifier(ATTACK_TREES, random_state=0).fit(own[known], numbers[known])
    chance = float((alone.predict(own[rest]) == numbers[rest]).mean())
    about = ("labels from leaves", f"labels={setting}", case.passive)
    measures = (f"labels inferred, {len(known)} known", "rows grouped by label, none known")
    if not told:
        words = "no partition is told to this party"
        return [
            Finding(*about, measures[0], chance, chance, False, words),
            Finding(*about, measures[1], largest, largest, False, words),
        ]
    guessed = float((vote_of_leaves(leaf, known, numbers) == numbers)[rest].mean())
    clustered = matched_at_best(clusters_of(leaf, int(numbers.max()) + 1), numbers)
    return [
        Finding(
            *about,
            measures[0],
            guessed,
            chance,
            guessed > chance + MARGIN,
            "rows of the same leaf mostly have the same label: a few known ones tell the others. Its own columns and "
            "the same labels reach the second figure. Encryption does not change who sees the partitions",
        ),
        Finding(
            *about,
            measures[1],
            clustered,
            largest,
            clustered > largest + 2 * MARGIN,
            "rows that share leaves are put into as many groups as there are classes: the figure is how many rows are "
            "right once one knows which group is which class",
        ),
    ]


def matched_by_size(groups: NDArray[Any], numbers: NDArray[np.int64]) -> float:
    """Share of rows whose class is right if the largest group is taken for the largest class, and so on."""
    sizes, counts = np.bincount(groups), np.bincount(numbers)
    guess = np.full(len(sizes), -1)
    n = min(len(sizes), len(counts))
    guess[np.argsort(-sizes, kind="stable")[:n]] = np.argsort(-counts, kind="stable")[:n]
    return float((guess[groups] == numbers).mean())


def matched_at_best(groups: NDArray[np.int64], numbers: NDArray[np.int64]) -> float:
    """Share of rows whose class is right under the best naming of the groups."""
    together = np.zeros((int(groups.max()) + 1, int(numbers.max()) + 1))
    np.add.at(together, (groups, numbers), 1.0)
    return float(together[linear_sum_assignment(-together)].sum() / len(numbers))


def vote_of_leaves(leaf: NDArray[np.int64], known: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class of each row by the known rows that share its leaves."""
    votes = np.zeros((len(numbers), int(numbers.max()) + 1))
    for of_rows in leaf.T:
        of_leaf = np.zeros((int(leaf.max()) + 2, votes.shape[1]))
        np.add.at(of_leaf, (of_rows[known], numbers[known]), 1.0)
        of_leaf[-1] = 0  # rows that the tree has not drawn
        votes += (of_leaf / np.maximum(of_leaf.sum(axis=1, keepdims=True), 1))[of_rows]
    return np.asarray(votes.argmax(axis=1), np.int64)


def clusters_of(leaf: NDArray[np.int64], n_clusters: int) -> NDArray[np.int64]:
    """Groups of rows that share leaves, found without any label."""
    rows, trees = np.nonzero(leaf >= 0)
    shares = csr_matrix((np.ones(len(rows)), (rows, leaf[rows, trees])), shape=(len(leaf), int(leaf.max()) + 1))
    shares = shares[:, np.flatnonzero(shares.getnnz(axis=0) > 1)]
    space = TruncatedSVD(min(n_clusters + 2, shares.shape[1] - 1), random_state=0).fit_transform(shares)
    space /= np.maximum(np.linalg.norm(space, axis=1, keepdims=True), 1e-12)
    return np.asarray(KMeans(n_clusters, n_init=4, random_state=0).fit_predict(space), np.int64)


def order_attack(case: Case, model: FederatedForestClassifier, leaf: NDArray[np.int64]) -> list[Finding]:
    """The order of a party's values from the sides that its splits sent rows to."""
    victim, forest = case.holder, model.forest_.coordinator
    sides, feature = sides_at(forest, victim, leaf, MAX_NODES)
    known, rest = known_rows(len(case.labels))
    own, first = case.matrix(case.passive), int(np.searchsorted(forest.feature_party, forest.parties.index(victim)))
    with_values: list[float] = []
    before: list[float] = []
    by_code: list[float] = []
    for number, column in enumerate(case.matrix(victim).T[:MAX_COLUMNS]):
        if len(np.unique(column)) < 5:
            continue
        for features, result in ((sides, with_values), (own, before)):
            attacker = RandomForestRegressor(ATTACK_TREES, max_features=0.3, random_state=0)
            attacker.fit(features[known], column[known])
            result.append(abs(_correlation(attacker.predict(features[rest]), column[rest])))
        by_code.append(abs(_correlation(sides[:, feature == first + number].sum(axis=1), column)))
    reached, chance, coded = (float(np.mean(values or [0.0])) for values in (with_values, before, by_code))
    measure = "mean rank correlation with a column"
    return [
        Finding(
            "order of values",
            "any labels",
            case.passive,
            f"{measure}, {len(known)} values known",
            reached,
            chance,
            reached > chance + MARGIN,
            f"partitions tell on which side of {victim}'s thresholds a row lies, not by which column; a few known "
            "values turn that into an order. Its own columns reach the second figure",
        ),
        Finding(
            "order of values",
            "any labels",
            COORDINATOR,
            f"{measure}, none known",
            coded,
            0.0,
            coded > 2 * MARGIN,
            f"the coordinator knows which splits are by the same coded column of {victim}: how often a row goes right "
            "there is an order, up to direction",
        ),
    ]


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)


def known_rows(n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that an attacker knows from elsewhere, and the others."""
    order = np.random.default_rng(1).permutation(n_rows)
    n = min(max(KNOWN_LEAST, int(KNOWN_SHARE * n_rows)), n_rows // 2)
    return order[:n], order[n:]
