"""One job after the other, and all attacks on each: for every role and setting a figure, or "not attacked"."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from woodlot.estimators.federated_forest import FederatedForestClassifier, FederatedForestRegressor
from woodlot.estimators.revocable_forest import RevocableForestClassifier, RevocableForestRegressor
from woodlot.leaks import label_attacks as on_labels
from woodlot.leaks import value_attacks as on_values
from woodlot.leaks.alignment_attacks import id_attacks
from woodlot.leaks.case import LABEL, Asset, Case, Finding, Tape, Told, not_attacked
from woodlot.leaks.evaluation_attacks import evaluation_attacks
from woodlot.leaks.hidden_attacks import hidden_findings
from woodlot.leaks.label_attacks import known_rows, rank_correlation
from woodlot.leaks.led_attacks import led_findings
from woodlot.leaks.linear_attacks import linear_attacks
from woodlot.leaks.memory import memory_attacks
from woodlot.leaks.prediction import SEALED_NUMBERS, SealedReader, open_outcomes, outcomes_on_the_way
from woodlot.leaks.revocable_attacks import participant_view, splits_in_bins
from woodlot.leaks.role_views import View, coordinator_view, party_view
from woodlot.leaks.theft import PolicyGuard, theft_attacks, undeclared
from woodlot.leaks.value_attacks import Recovered
from woodlot.protocols.core.part_files import COORDINATOR
from woodlot.protocols.vertical.forest_messages import Decisions

Part = Literal[
    "labels",
    "values",
    "led",
    "hidden",
    "predictions",
    "evaluations",
    "linear",
    "revocable",
    "horizontal",
    "theft",
    "ids",
]
PARTS: tuple[Part, ...] = get_args(Part)
"""What can be attacked."""
OPEN = "protection=open"
HELPER, KEY_SERVICE, USER, CLIENT = "helper", "key service", "user", "client"
Say = Callable[[str], None]


def run_leak_test(
    case: Case,
    params: Mapping[str, Any] | None = None,
    say: Say = lambda text: None,
    *,
    parts: Iterable[Part] = PARTS,
    secret: bytes | None = None,
    guards: Mapping[str, PolicyGuard] | None = None,
) -> list[Finding]:
    """Train, predict and align under every setting, and attack all of it.

    Parameters
    ----------
    case : Case
        The data.
    params : mapping, optional
        Parameters of the forest, such as ``n_estimators`` and ``max_depth``; the defaults are the estimator's own.
    say : callable
        Told what is being done.
    parts : iterable of str
        What is attacked: some of `PARTS`.
    secret : bytes, optional
        The secret of an alignment by keyed hash, to be guessed.
    guards : mapping of str to PolicyGuard, optional
        Tables and policies of some parties, which a user tries to steal columns from.

    Returns
    -------
    list of Finding
        One for every channel: attacked or not.

    """
    chosen = {"random_state": 0, **(params or {})}
    wanted, found = set(parts), list[Finding]()
    test = _LeakTest(case, chosen, say)
    if wanted & {"labels", "values"}:
        found += test.training(wanted)
    if "led" in wanted:
        found += led_findings(case, chosen, say)
    if "hidden" in wanted:
        found += hidden_findings(case, chosen, say)
    if "predictions" in wanted:
        found += test.predictions()
    if "evaluations" in wanted:
        say("evaluating on parts of the rows")
        found += evaluation_attacks(case, chosen)
    if "linear" in wanted:
        say("fitting a linear model")
        found += linear_attacks(case)
    if "revocable" in wanted:
        found += test.revocable()
    if wanted & {"labels", "horizontal"}:
        say("training on half of the rows")
        found += memory_attacks(case, chosen, columns="labels" in wanted, rows="horizontal" in wanted)
    if "horizontal" in wanted:
        found += _horizontal_channels()
    if "theft" in wanted:
        say("ordering trainings with columns as labels")
        if guards:
            found += theft_attacks(case, guards, "your policy")
        else:
            found += theft_attacks(case, {}, "in one process, no policy")
            found += theft_attacks(case, dict.fromkeys(case.parties, undeclared()), "tables that name no label")
    if "ids" in wanted:
        say("aligning ids")
        ids = np.arange(100_000, 102_000) if case.ids is None else case.ids
        found += id_attacks(ids, (case.holder, case.passive), secret)
    return found


class _LeakTest:
    """The forests over columns of one case."""

    def __init__(self, case: Case, params: dict[str, Any], say: Say) -> None:
        self.case, self.params, self.say = case, params, say
        self.classes = case.task == "classes"
        self.known, self.rest = known_rows(case.n_rows)
        numbers = case.numbers if self.classes else np.empty(0, np.int64)
        self.frequencies = np.sort(np.bincount(numbers))[::-1] / max(case.n_rows, 1)

    # --- training ---

    def training(self, wanted: set[Part]) -> list[Finding]:
        """Train with ``protection="open"``, and attack what every role gets: labels, values, or both."""
        name = OPEN
        self.say(f"training, {name}")
        tape = Tape()
        self._fit(tape.record)
        self.say(f"attacking, {name}")
        told = tape.seen_by(COORDINATOR)
        view = coordinator_view(told, self.case.holder, self.case.parties)
        found = list[Finding]()
        if "labels" in wanted:
            found += self._labels_at_coordinator(name, view, told)
            found.append(self._code_at_party(name, tape.seen_by(self.case.passive)))
            words = "the score of every offered split"
            found.append(not_attacked(COORDINATOR, name, "labels", "scores of splits", words))
        if "values" in wanted:
            found += self._values_at_coordinator(name, view)
            found += self._values_at_parties(tape)
        return found

    def _fit(self, observer: Any) -> None:
        self.federation = self.case.federation()
        self.federation.observer = observer
        kind = FederatedForestClassifier if self.classes else FederatedForestRegressor
        self.model = kind(**self.params).fit(self.federation, y=f"{self.case.holder}.{LABEL}")

    def _label_baseline(self) -> tuple[str, float, str]:
        """Measure and baseline of whoever has no column."""
        if self.classes:
            return "labels read", float(self.frequencies[0]), "largest class"
        truth = self.case.labels
        guess = np.full(len(truth), truth.mean())
        return "targets read to 1 %", on_labels.targets_recovered(guess, truth), "guessing the mean"

    def _labels_at_coordinator(self, name: str, view: View, told: Sequence[Told]) -> list[Finding]:
        measure, baseline, against = self._label_baseline()
        found = []
        codes = on_labels.codes_seen(told, COORDINATOR)
        if codes is not None:
            start = time.perf_counter()
            if self.classes:
                value = on_labels.share_right(on_labels.decoded_classes(codes, view), self.case.numbers)
            else:
                value = on_labels.targets_recovered(on_labels.decoded_targets(codes, view), self.case.labels)
            found.append(
                Finding(
                    COORDINATOR,
                    name,
                    "labels",
                    "code and leaf totals",
                    measure,
                    value,
                    baseline,
                    against,
                    "every row comes with a code of its label; the leaves' true totals say what the code means",
                    time.perf_counter() - start,
                )
            )
        start = time.perf_counter()
        solved = on_labels.least_squares(view)
        if self.classes:
            value = on_labels.share_right(solved.argmax(axis=1), self.case.numbers)
        else:
            value = on_labels.targets_recovered(solved[:, 0], self.case.labels)
        n = len(view.leaves.start) - 1
        found.append(
            Finding(
                COORDINATOR,
                name,
                "labels",
                "least squares on leaf totals",
                measure,
                value,
                baseline,
                against,
                f"{n:,} leaves are as many equations for {view.n_rows:,} labels: the labels of a leaf's rows add up to "
                "its total",
                time.perf_counter() - start,
            )
        )
        return found

    def _labels_by_company(self, name: str, view: View, role: str) -> list[Finding]:
        """Labels from which rows travel together, at a party that got no code of them."""
        found, start = [], time.perf_counter()
        if self.classes:
            groups = on_labels.groups_of_pure_leaves(view, self.frequencies)
            attack, measure, against = "union of pure leaves", "labels read", "largest class"
            value, baseline = on_labels.matched_at_best(groups.group, self.case.numbers), float(self.frequencies[0])
            words = (
                "rows that share a pure leaf have one label, and joined over all trees such groups are the classes "
                f"({100 * groups.certain:.1f} % of rows with certainty; named by one known row each)"
            )
        else:
            attack, measure, against = "rows that travel together", "rank correlation with the targets", "no order"
            value, baseline = abs(rank_correlation(on_labels.order_by_company(view), self.case.labels)), 0.0
            words = "rows that end in the same small nodes have targets near each other"
        seconds = time.perf_counter() - start
        found.append(Finding(role, name, "labels", attack, measure, value, baseline, against, words, seconds))
        found.append(self._known_labels(name, view, role))
        return found

    def _code_at_party(self, name: str, told: Sequence[Told]) -> Finding:
        role, start = self.case.passive, time.perf_counter()
        codes = on_labels.codes_seen(told, role)
        if codes is None:
            return not_attacked(role, name, "labels", "code of labels", "this party got no labels: it has no column")
        if self.classes:
            value, measure = on_labels.matched_at_best(codes.astype(np.int64), self.case.numbers), "labels read"
            by_size = on_labels.matched_by_size(codes, self.case.numbers)
            words = (
                f"rows of one code have one class; named by how frequent classes are {100 * by_size:.1f} % are right"
            )
            baseline, against = float(self.frequencies[0]), "largest class"
        else:
            value, measure = abs(rank_correlation(codes, self.case.labels)), "rank correlation with the targets"
            words = "targets come shifted and scaled: two known ones give all"
            baseline, against = 0.0, "no order"
        seconds = time.perf_counter() - start
        return Finding(role, name, "labels", "code of labels", measure, value, baseline, against, words, seconds)

    def _known_labels(self, name: str, view: View, role: str) -> Finding:
        """Known labels of a few rows, spread by leaves; beside a forest on the party's own columns and these labels."""
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        start = time.perf_counter()
        known, rest, own = self.known, self.rest, self.case.matrix(role)
        if self.classes:
            numbers = self.case.numbers
            one_hot = np.eye(len(self.frequencies))[numbers[known]]
            voted = on_labels.vote_of_company(view, known, one_hot, nodes=False).argmax(axis=1)
            value = on_labels.share_right(voted[rest], numbers[rest])
            alone = RandomForestClassifier(on_values.ATTACK_TREES, random_state=0).fit(own[known], numbers[known])
            baseline = on_labels.share_right(alone.predict(own[rest]), numbers[rest])
            measure = f"labels read, {len(known)} known"
        else:
            truth = self.case.labels
            voted = on_labels.vote_of_company(view, known, truth[known][:, None], nodes=True)[:, 0]
            value = abs(rank_correlation(voted[rest], truth[rest]))
            grown = RandomForestRegressor(on_values.ATTACK_TREES, random_state=0).fit(own[known], truth[known])
            baseline = abs(rank_correlation(grown.predict(own[rest]), truth[rest]))
            measure = f"rank correlation with the targets, {len(known)} known"
        return Finding(
            role,
            name,
            "labels",
            "known labels of leaf mates",
            measure,
            value,
            baseline,
            "predicting from own columns",
            "rows that end in small nodes with known rows mostly have their labels",
            time.perf_counter() - start,
        )

    # --- values ---

    def _values(
        self,
        role: str,
        name: str,
        victim: str,
        attack: str,
        known: str,
        found: list[Recovered],
        start: float,
        words: str,
    ) -> Finding:
        """Mean over all columns; the best one is told by name."""
        against = "predicting from own columns" if known else "no order"
        if not found:
            return not_attacked(role, name, "values", attack, f"no column of {victim} has five distinct values")
        best = max(found, key=lambda one: one.correlation)
        column = list(self.case.columns[victim])[best.column]
        return Finding(
            role,
            name,
            "values",
            attack,
            f"mean rank correlation{known}",
            float(np.mean([one.correlation for one in found])),
            float(np.mean([one.baseline for one in found])),
            against,
            f"{words}. {len(found)} columns of {victim} with five distinct values or more; {column} is known best "
            f"({best.correlation:.3f})",
            time.perf_counter() - start,
        )

    def _values_at_coordinator(self, name: str, view: View) -> list[Finding]:
        victim, start = self.case.holder, time.perf_counter()
        found = on_values.columns_at_coordinator(view.splits, victim, self.case.matrix(victim))
        return [
            self._values(
                COORDINATOR,
                name,
                victim,
                "order from all partitions",
                "",
                found,
                start,
                "all splits by one coded column put its rows in order; the population's distribution gives values",
            )
        ]

    def _values_at_parties(self, tape: Tape) -> list[Finding]:
        """A party without labels attacks the label holder's columns, and the other way round."""
        found = []
        for role, victim in ((self.case.passive, self.case.holder), (self.case.holder, self.case.passive)):
            self.say(f"attacking, values of {victim} at {role}")
            start = time.perf_counter()
            view = party_view(tape.seen_by(role), role)
            columns = on_values.columns_at_party(
                view.splits, 1, self.case.matrix(victim), self.case.matrix(role), self.known
            )
            found.append(
                self._values(
                    role,
                    OPEN,
                    victim,
                    "order from all partitions",
                    f", {len(self.known)} values known",
                    columns,
                    start,
                    "known values tell which splits are by a column, and these put all rows in order",
                )
            )
        return found

    # --- predictions ---

    def predictions(self) -> list[Finding]:
        """Predict all rows, open and sealed, and attack what the coordinator gets."""
        if not hasattr(self, "model"):
            self.say(f"training, {OPEN}")
            self._fit(None)
        return [
            self._open_prediction(),
            *self._sealed_prediction(),
            not_attacked(
                COORDINATOR, "wire=ranks", "values", "ranks", "the answer is the rank of every value: no attack needed"
            ),
        ]

    def _open_prediction(self) -> Finding:
        case, victim, forest = self.case, self.case.passive, self.model.forest_.coordinator
        self.say("predicting, open")
        tape = Tape()
        self.federation.observer = tape.record
        self.model.predict(self.federation)
        start = time.perf_counter()
        told = tape.seen_by(COORDINATOR)
        answer = next((m for s, _, m in told if s == victim and isinstance(m, Decisions)), None)
        if answer is None:
            return not_attacked(COORDINATOR, "open predictions", "values", "outcomes", f"{victim} splits no node")
        splits = open_outcomes(forest, victim, answer, case.n_rows)
        columns = on_values.columns_at_coordinator(splits, victim, case.matrix(victim))
        each = len(splits.rows) / case.n_rows / forest.structure.n_trees
        words = f"the answer tells the outcome of every split that a row can reach: {each:.1f} per row and tree"
        return self._values(
            COORDINATOR, "open predictions", victim, "order of predicted rows", "", columns, start, words
        )

    def _sealed_prediction(self) -> list[Finding]:
        """Predict under seal: all rows, or as many as take some minutes."""
        case, victim, forest = self.case, self.case.passive, self.model.forest_.coordinator
        n = min(case.n_rows, max(1, SEALED_NUMBERS // forest.structure.n_leaves))
        self.say(f"predicting, sealed, {n:,} rows")
        few = case.subset(np.arange(n))
        reader, federation = SealedReader(forest, n, victim), few.federation()
        federation.observer = reader.record
        self.model.predict(federation, sealed=True)
        start = time.perf_counter()
        splits = outcomes_on_the_way(forest, victim, reader.leaf)
        columns = on_values.columns_at_coordinator(splits, victim, few.matrix(victim))
        each = len(splits.rows) / n / forest.structure.n_trees
        words = (
            "the sum of all parties' numbers tells the leaf, hence every outcome on the way to it: "
            f"{each:.1f} per row and tree, {n:,} rows"
        )
        name = "sealed predictions"
        return [
            self._values(COORDINATOR, name, victim, "order of predicted rows", "", columns, start, words),
            Finding(
                COORDINATOR,
                name,
                "values",
                "one party's numbers alone",
                "leaves told by a 0",
                reader.zeros / max(reader.numbers, 1),
                0.0,
                "none",
                f"{reader.numbers:,} numbers of {victim}, masked by those of the others",
            ),
        ]

    # --- revocable forests ---

    def revocable(self) -> list[Finding]:
        """Grow a revocable forest, and attack what coordinator and participants get."""
        case, name = self._all_numbers(), "revocable"
        self.say("training a revocable forest")
        tape, federation = Tape(), case.federation()
        federation.observer = tape.record
        kind = RevocableForestClassifier if self.classes else RevocableForestRegressor
        taken = kind().get_params()
        params = {k: v for k, v in self.params.items() if k in taken and v is not None}
        # keys are not attacked, and without them a forest is grown in seconds
        model = kind(**{**params, "encryption": "simulated"}).fit(federation, y=f"{case.holder}.{LABEL}")
        measure, baseline, against = self._label_baseline()
        found = [
            Finding(
                COORDINATOR,
                name,
                "labels",
                "labels in clear",
                measure,
                1.0,
                baseline,
                against,
                "the label holder sends its labels to the coordinator as they are (LabelsSent)",
            )
        ]
        smallest = max(int(model.min_samples_split), 2 * int(model.min_samples_leaf))
        view = participant_view(tape.seen_by(case.passive), case.passive, smallest)
        found += self._labels_by_company(name, view, case.passive)
        start = time.perf_counter()
        splits = splits_in_bins(tape.seen_by(COORDINATOR), case.passive)
        columns = on_values.columns_at_coordinator(splits, case.passive, case.matrix(case.passive))
        found.append(
            self._values(
                COORDINATOR,
                name,
                case.passive,
                "order from split vectors",
                "",
                columns,
                start,
                "split vectors tell the bin of every row at every candidate",
            )
        )
        words = (
            "it handles differences under one-time masks; what a deviating coordinator has opened is not measured here"
        )
        found += [not_attacked(role, name, "values", "encrypted predictions", words) for role in (HELPER, KEY_SERVICE)]
        words = "in a score by encrypted splits it is told which rows reach its nodes, so sides at the others' splits"
        found.append(not_attacked(case.passive, name, "values", "scores by encrypted splits", words))
        return found

    def _all_numbers(self) -> Case:
        """Revocable forests take numbers only, none missing."""
        columns = {
            party: dict(zip(own, self.case.matrix(party).T, strict=True)) for party, own in self.case.columns.items()
        }
        return Case(columns, self.case.labels, self.case.ids, self.case.task)


def _horizontal_channels() -> list[Finding]:
    """Forests over rows show no partition of rows that others have; what is shown is sums, and the model."""
    asset: Asset = "values"
    return [
        not_attacked(COORDINATOR, "horizontal", asset, "sums of cells", "sums over all clients by node, bin, class"),
        not_attacked(COORDINATOR, "horizontal, sums=plain", asset, "cells of one client", "each client's own counts"),
        not_attacked(CLIENT, "horizontal", asset, "thresholds of the model", "thresholds are values of rows"),
    ]
