"""All attacks on a hidden training: at the label holder, the second server, another party, and the dealer.

Baselines are those of an attacker that gets no message. Values: a regression on its own columns, and the labels if
it holds them, that was given half of the true values. Labels: a model of its own columns with the same known labels
(`leaks/guessing.py`), and with none the clusters of its own columns or the largest class, whichever reads more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from woodlot.data.tables import read_table
from woodlot.estimators.federated_forest import FederatedForestClassifier, FederatedForestRegressor
from woodlot.exceptions import DataError, LocalProtocolError
from woodlot.leaks import label_attacks as on_labels
from woodlot.leaks.case import LABEL, Case, Finding, Tape, not_attacked
from woodlot.leaks.count_attacks import chances_from_counts
from woodlot.leaks.guessing import halves, labels_without_messages, regression_with_half
from woodlot.leaks.hidden_view import OpenedTrees, opened_trees, upper_part, with_label_sums
from woodlot.leaks.label_attacks import known_rows, rank_correlation
from woodlot.leaks.length_attacks import order_by_draws, sizes_at_dealer, sizes_of_trees
from woodlot.leaks.own_split_attacks import (
    by_frequency,
    cut_columns,
    from_known_labels,
    labels_of_clusters,
    main_directions,
    nodes_of_own_cuts,
)
from woodlot.leaks.prediction import SEALED_NUMBERS, SealedReader, open_outcomes, outcomes_on_the_way
from woodlot.leaks.value_attacks import columns_at_coordinator, worth_attacking
from woodlot.protocols.core.forest_plan import HIDDEN_MIN_LEAF, ForestPlan
from woodlot.protocols.core.message import Role
from woodlot.protocols.core.part_files import COORDINATOR
from woodlot.protocols.hidden.hidden_messages import KeepSplits
from woodlot.protocols.vertical.forest_messages import Decisions
from woodlot.trees.encoding import encode

HIDDEN = "hidden"
DEALER = Role.dealer.value
CONTROL = "control: labels permuted"
CLUSTERS = "clusters of own columns without any message, or the largest class"
HALF_KNOWN = "regression on own columns, half of the values given"
MOST_PARTS = 500_000_000
"""Rows times nodes from which only nodes of a twentieth of all rows or more are fitted: a bound on time."""
Say = Callable[[str], None]


def second_server(case: Case) -> str:
    """How findings name the second server."""
    return f"{case.passive} (second server)"


def other_party(case: Case) -> str:
    """How findings name a party that is no server."""
    return f"{case.passive} (other party)"


def hidden_findings(case: Case, params: dict[str, Any], say: Say) -> list[Finding]:
    """Train hidden, predict, and attack what every role gets; a training that is refused is not attacked."""
    try:
        test = HiddenTest(case, params, say)
    except DataError as refused:
        return [not_attacked(case.holder, HIDDEN, "values", "training", f"refused: {refused}")]
    return [*test.findings(), *test.predictions(), *_not_attacked_yet(case)]


def _not_attacked_yet(case: Case) -> list[Finding]:
    return [
        not_attacked(
            COORDINATOR,
            HIDDEN,
            "labels",
            "times of messages",
            "when messages come, and how long roles take, is not recorded in one process",
        ),
        not_attacked(
            case.holder, HIDDEN, "values", "lying about what is opened", "all roles keep to the protocol in this test"
        ),
    ]


def control_findings(case: Case, params: dict[str, Any], say: Say) -> list[Finding]:
    """Read labels from the splits of a hidden training that never had them: its labels were permuted before.

    What this reads, the party's own columns tell. Only what `HiddenTest.labels` reads beyond it has been opened.
    """
    if case.task != "classes" or int(case.numbers.max()) != 1:
        return []
    start, numbers = time.perf_counter(), case.numbers
    permuted = replace(case, labels=case.labels[np.random.default_rng(2).permutation(case.n_rows)])
    test = HiddenTest(permuted, params, say)
    own = test.codes[case.passive]
    value = max(by_frequency(order, numbers) for order in main_directions(cut_columns(test.kept(), own)))
    without = max(float(np.bincount(numbers).max() / case.n_rows), labels_of_clusters(own, numbers))
    words = "the forest was grown on permuted labels, and the attack is marked with the true ones"
    seconds = time.perf_counter() - start
    return [
        Finding(
            other_party(case), CONTROL, "labels", "own splits", "labels read", value, without, CLUSTERS, words, seconds
        )
    ]


class HiddenTest:
    """One hidden training of a case, and what every role makes of it.

    Parameters
    ----------
    case : Case
        The data.
    params : dict
        Parameters of the forest.
    say : callable
        Told what is being done.

    """

    def __init__(self, case: Case, params: dict[str, Any], say: Say) -> None:
        self.case, self.say = case, say
        self.tape, self.federation = Tape(), case.federation()
        self.federation.observer = self.tape.record
        say("training, protection=hidden")
        params = {k: v for k, v in params.items() if k != "protection"}
        kind = FederatedForestClassifier if case.task == "classes" else FederatedForestRegressor
        self.model = kind(**params, protection=HIDDEN).fit(self.federation, y=f"{case.holder}.{LABEL}")
        self.plan = plan_of_forest(self.model.forest_.plan)
        self.codes = {
            party: encode(read_table(pa.table(dict(own))), max_bins=self.plan.max_bins, n_jobs=1).fine.astype(np.int64)
            for party, own in case.columns.items()
        }
        sampling, trees = self.plan.sampling(case.n_rows, None, 1.0), range(self.plan.n_estimators)
        self.draws = np.stack([sampling.counts(tree, case.n_rows).astype(np.int64) for tree in trees])

    def findings(self, *, labels: bool = True, values: bool = True) -> list[Finding]:
        """Attack labels, values or both."""
        found = list[Finding]()
        if labels:
            found += self.labels()
        if values:
            found += self.values()
        return found + self.dealer(labels=labels, values=values)

    def trees(self, party: str) -> OpenedTrees:
        """What a server is told."""
        trees = opened_trees(self.tape.seen_by(party), self.case.passive)
        if party == self.case.holder and self.case.task == "classes":
            codes = np.concatenate([self.codes[p] for p in self.case.parties])
            trees = with_label_sums(trees, codes, self.case.numbers, self.draws)
        return trees

    # --- values ---

    def known_to(self, party: str) -> NDArray[np.float64]:
        """What a party has before the training: its columns, and the labels if it holds them."""
        own = self.case.matrix(party)
        if party != self.case.holder:
            return own
        labels = self.case.labels.astype(np.float64)[:, None] if self.case.task == "targets" else _one_hot(self.case)
        return np.column_stack([own, labels])

    def values(self) -> list[Finding]:
        """Each server's attack on the columns of the other, and another party's."""
        case, found = self.case, list[Finding]()
        for role, victim in ((case.holder, case.passive), (case.passive, case.holder)):
            self.say(f"attacking counts, values of {victim} at {role}")
            start = time.perf_counter()
            trees = self.trees(role)
            numbers = case.numbers if role == case.holder and case.task == "classes" else None
            if trees.n_rows * len(trees.tree) > MOST_PARTS:
                trees = upper_part(trees, trees.n_rows // 20)
            chances = chances_from_counts(trees, role, self.codes[role], numbers=numbers)
            mine = np.isin(np.setdiff1d(np.arange(len(trees.n_codes)), trees.of_party(role)), trees.of_party(victim))
            place = (chances * np.arange(chances.shape[2])).sum(axis=2)[:, mine]
            name = case.holder if role == case.holder else second_server(case)
            words = f"chances of every row, fitted to {len(trees.counts):,} counts of {trees.n_trees} trees"
            found.append(self._of_values(name, role, victim, "fit to all counts", place, start, words))
        start = time.perf_counter()
        cuts = cut_columns(self.kept(), self.codes[case.passive])
        order = main_directions(cuts)[0]
        places = np.repeat(order[:, None], len(case.columns[case.holder]), axis=1)
        words = "the main direction of its cut columns, as a guess of each column"
        found.append(
            self._of_values(
                other_party(case), case.passive, case.holder, "own splits", places, start, words, signed=False
            )
        )
        return found

    def _of_values(
        self,
        name: str,
        role: str,
        victim: str,
        attack: str,
        places: NDArray[np.float64],
        start: float,
        words: str,
        *,
        signed: bool = True,
    ) -> Finding:
        truth = self.case.matrix(victim)
        worth = worth_attacking(truth)
        if not worth:
            return not_attacked(name, HIDDEN, "values", attack, f"no column of {victim} has five distinct values")
        rest = halves(self.case.n_rows)[1]
        reached = [rank_correlation(places[rest, k], truth[rest, k]) for k in worth]
        reached = reached if signed else [abs(one) for one in reached]
        best = int(np.argmax(reached))
        column = list(self.case.columns[victim])[worth[best]]
        return Finding(
            name,
            HIDDEN,
            "values",
            attack,
            "mean rank correlation",
            float(np.mean(reached)),
            regression_with_half(self.known_to(role), truth[:, worth]),
            HALF_KNOWN,
            f"{words}. {len(worth)} columns of {victim} with five distinct values or more; {column} is known best "
            f"({reached[best]:.3f})",
            time.perf_counter() - start,
        )

    # --- labels ---

    def kept(self) -> KeepSplits:
        """What the curious party is told at the end: its own splits, and the shape of the trees."""
        return next(
            m
            for _, to, m in self.tape.seen_by(self.case.passive)
            if isinstance(m, KeepSplits) and to != self.case.holder
        )

    def labels(self) -> list[Finding]:
        """Labels at a party and at the second server."""
        case = self.case
        if case.task != "classes" or int(case.numbers.max()) != 1:
            words = "attacks on labels of a hidden training are for two classes"
            return [
                not_attacked(role, HIDDEN, "labels", "own splits", words)
                for role in (second_server(case), other_party(case))
            ]
        self.say("attacking labels, protection=hidden")
        start, numbers, own = time.perf_counter(), case.numbers, self.codes[case.passive]
        largest = float(np.bincount(numbers).max() / case.n_rows)
        without = max(largest, labels_of_clusters(own, numbers))
        cuts = cut_columns(self.kept(), own)
        value = max(by_frequency(order, numbers) for order in main_directions(cuts))
        words = (
            "columns are cut where labels change, and their main direction is close to the label; the better of two "
            f"directions, named by one known row. The largest class: {largest:.3f}"
        )
        seconds = time.perf_counter() - start
        found = [
            Finding(role, HIDDEN, "labels", "own splits", "labels read", value, without, CLUSTERS, words, seconds)
            for role in (other_party(case), second_server(case))
        ]
        found.append(self._known_labels(cuts))
        start = time.perf_counter()
        smallest = max(2 * HIDDEN_MIN_LEAF, 2 * self.plan.rules(case.n_rows, case.n_rows).min_samples_leaf)
        view = nodes_of_own_cuts(self.trees(case.passive), case.passive, own, smallest)
        frequencies = np.sort(np.bincount(numbers))[::-1] / case.n_rows
        groups = on_labels.groups_of_pure_leaves(view, frequencies)
        found.append(
            Finding(
                second_server(case),
                HIDDEN,
                "labels",
                "large nodes that are leaves",
                "labels read",
                on_labels.matched_at_best(groups.group, numbers),
                without,
                CLUSTERS,
                "a large node below its own splits alone has rows that it knows; as a leaf it is pure: "
                f"{int(view.leaves.pure.sum())} such nodes. The largest class: {largest:.3f}",
                time.perf_counter() - start,
            )
        )
        return found

    def _known_labels(self, cuts: NDArray[np.float64]) -> Finding:
        case, start = self.case, time.perf_counter()
        known, rest = known_rows(case.n_rows)
        numbers = case.numbers
        value = on_labels.share_right(from_known_labels(cuts, known, numbers)[rest], numbers[rest])
        return Finding(
            other_party(case),
            HIDDEN,
            "labels",
            "own splits and known labels",
            f"labels read, {len(known)} known",
            value,
            labels_without_messages(case.matrix(case.passive), known, rest, numbers),
            "best model of own columns with the same labels",
            "a linear model of the cut columns: the cuts say which columns matter",
            time.perf_counter() - start,
        )

    # --- predictions ---

    def predictions(self) -> list[Finding]:
        """Predict the training rows: the label holder holds the model and gets what a coordinator gets."""
        case, victim, forest = self.case, self.case.passive, self.model.forest_.coordinator
        self.say("predicting with the hidden model")
        found = []
        for sealed in (False, True):
            start = time.perf_counter()
            n = case.n_rows
            if sealed:
                n = min(n, max(1, SEALED_NUMBERS // forest.structure.n_leaves))
            few = case if n == case.n_rows else case.subset(np.arange(n))
            federation, tape, reader = few.federation(), Tape(), SealedReader(forest, n, victim)
            federation.observer = reader.record if sealed else tape.record
            self.model.predict(federation, sealed=sealed)
            name = f"hidden, {'sealed' if sealed else 'open'} predictions"
            if sealed:
                splits = outcomes_on_the_way(forest, victim, reader.leaf)
            else:
                answer = next((m for s, _, m in tape.messages if s == victim and isinstance(m, Decisions)), None)
                if answer is None:
                    found.append(not_attacked(case.holder, name, "values", "outcomes", f"{victim} splits no node"))
                    continue
                splits = open_outcomes(forest, victim, answer, n)
            columns = columns_at_coordinator(splits, victim, few.matrix(victim))
            if not columns:
                found.append(
                    not_attacked(case.holder, name, "values", "outcomes", "no column has five distinct values")
                )
                continue
            found.append(
                Finding(
                    case.holder,
                    name,
                    "values",
                    "order of predicted rows",
                    "mean rank correlation",
                    float(np.mean([one.correlation for one in columns])),
                    regression_with_half(
                        self.known_to(case.holder), case.matrix(victim)[:, [c.column for c in columns]]
                    ),
                    HALF_KNOWN,
                    f"whoever answers learns at which leaf, or on which sides, each predicted row is; {n:,} rows",
                    time.perf_counter() - start,
                )
            )
        return found

    # --- the dealer ---

    def dealer(self, *, labels: bool, values: bool) -> list[Finding]:
        """Lengths alone, beside the draws, which the dealer makes."""
        told, start = self.tape.seen_by(DEALER), time.perf_counter()
        by_tree = sizes_of_trees(told, self.case.n_rows)
        lengths = by_tree if len(by_tree) > 1 else sizes_at_dealer(told)
        order = order_by_draws(lengths, self.draws)
        return findings_of_lengths(self.case, DEALER, HIDDEN, order, start, labels=labels, values=values)


def _one_hot(case: Case) -> NDArray[np.float64]:
    """A column for every class but the first."""
    return np.asarray(np.eye(int(case.numbers.max()) + 1)[case.numbers][:, 1:], np.float64)


def plan_of_forest(plan: ForestPlan | None) -> ForestPlan:
    """The plan of a forest that was just grown."""
    if plan is None:
        raise LocalProtocolError("a forest that was grown here has no plan")
    return plan


def findings_of_lengths(
    case: Case, role: str, setting: str, order: NDArray[np.float64], start: float, *, labels: bool, values: bool
) -> list[Finding]:
    """How near an order of rows that was made from lengths is to labels and to everybody's columns."""
    words = "whether trees that draw a row are longer than others: lengths have no rows in them"
    seconds = time.perf_counter() - start
    attack, found = "lengths and draws", list[Finding]()
    if labels and case.task == "classes" and int(case.numbers.max()) == 1:
        largest = float(np.bincount(case.numbers).max() / case.n_rows)
        value = by_frequency(order, case.numbers)
        found.append(
            Finding(role, setting, "labels", attack, "labels read", value, largest, "largest class", words, seconds)
        )
    elif labels and case.task == "classes":
        found.append(not_attacked(role, setting, "labels", attack, "this attack on labels is for two classes"))
    elif labels:
        value = abs(rank_correlation(order, case.labels))
        measure = "rank correlation with the targets"
        found.append(Finding(role, setting, "labels", attack, measure, value, 0.0, "no order", words, seconds))
    if values:
        columns = [case.matrix(party)[:, k] for party in case.parties for k in worth_attacking(case.matrix(party))]
        reached = [abs(rank_correlation(order, column)) for column in columns]
        value, measure = float(np.mean(reached)) if reached else 0.0, "mean rank correlation"
        found.append(Finding(role, setting, "values", attack, measure, value, 0.0, "no order", words, seconds))
    return found
