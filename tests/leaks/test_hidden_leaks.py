"""Attacks on hidden trainings: they recover values and labels where there is something to find.

An attack that stops working would make the leak test claim protection. So these tests assert that it works, on tables
small enough that it must, and that it finds nothing where messages tell nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from woodlot import leaks
from woodlot.leaks import value_attacks
from woodlot.leaks.case import Finding
from woodlot.leaks.count_attacks import chances_from_counts
from woodlot.leaks.guessing import regression_with_half
from woodlot.leaks.hidden_attacks import CONTROL, HiddenTest, control_findings
from woodlot.leaks.hidden_view import NO_NODE, OpenedTrees, coarse, rows_of_nodes, upper_part
from woodlot.leaks.label_attacks import rank_correlation
from woodlot.leaks.length_attacks import lengths_of_frames, order_by_draws, sizes_of_trees
from woodlot.leaks.own_split_attacks import labels_of_clusters
from woodlot.leaks.summary import as_markdown, summary_rows

HOLDER, SERVER = "bank", "shop"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def case() -> leaks.Case:
    return leaks.made_up_case(300)


@pytest.fixture(scope="module")
def hidden(case: leaks.Case) -> HiddenTest:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_attacks, "ATTACK_TREES", 15)
        return HiddenTest(case, {"n_estimators": 20, "random_state": 0, "min_cell": 0}, lambda text: None)


@pytest.fixture(scope="module")
def findings(hidden: HiddenTest) -> list[Finding]:
    return hidden.findings()


def of(findings: list[Finding], role: str, attack: str) -> Finding:
    (found,) = [f for f in findings if f.role.startswith(role) and f.attack == attack and f.asset == "values"]
    return found


def first_trees(trees: OpenedTrees, n_trees: int) -> OpenedTrees:
    """The first trees alone."""
    nodes = np.flatnonzero(trees.tree < n_trees)
    place = np.append(np.full(len(trees.tree), NO_NODE), NO_NODE)
    place[nodes] = np.arange(len(nodes))
    kept = trees.tree[trees.pair_node] < n_trees
    lengths = trees.n_codes[trees.pair_column] + 1
    cells = np.repeat(kept, lengths)
    return replace(
        trees,
        tree=trees.tree[nodes],
        size=trees.size[nodes],
        left=place[trees.left[nodes]],
        right=place[trees.right[nodes]],
        column=trees.column[nodes],
        goes_left=trees.goes_left[nodes],
        pair_node=place[trees.pair_node[kept]],
        pair_column=trees.pair_column[kept],
        pair_start=np.cumsum(lengths[kept]) - lengths[kept],
        pair_shift=trees.pair_shift[kept],
        counts=trees.counts[cells],
        label_sums=None if trees.label_sums is None else trees.label_sums[:, cells],
    )


# --- what the attacks are given ---


def test_the_view_has_the_counts_of_the_true_rows(case: leaks.Case, hidden: HiddenTest) -> None:
    codes = np.concatenate([hidden.codes[p] for p in case.parties])
    trees = hidden.trees(HOLDER)
    rows = rows_of_nodes(trees, codes)
    assert all(len(rows[node]) == size for node, size in enumerate(trees.size.tolist()) if node in rows)
    pairs = zip(trees.pair_node, trees.pair_column, trees.pair_start, trees.pair_shift, strict=True)
    for node, column, start, shift in pairs:
        bins = int(trees.n_codes[column]) + 1
        true = np.bincount(coarse(codes[column, rows[int(node)]], int(shift), bins - 1), minlength=bins)
        assert np.array_equal(trees.counts[start : start + bins], true)


def test_the_view_has_the_cells_that_are_opened(case: leaks.Case) -> None:
    """With min_cell only cells are opened; the splits still lead all rows to their nodes."""
    test = HiddenTest(case, {"n_estimators": 4, "random_state": 0, "min_cell": 20}, lambda text: None)
    trees = test.trees(SERVER)
    codes = np.concatenate([test.codes[p] for p in case.parties])
    rows = rows_of_nodes(trees, codes)
    assert trees.pair_shift.max() > 0
    assert all(len(rows[node]) == size for node, size in enumerate(trees.size.tolist()) if node in rows)


def test_sums_of_labels_are_those_that_the_holder_opens(hidden: HiddenTest) -> None:
    """The leaves' weights in the model come from opened sums; those of the roots add up to all draws."""
    trees = hidden.trees(HOLDER)
    assert trees.label_sums is not None
    for node, start, column in zip(trees.pair_node, trees.pair_start, trees.pair_column, strict=True):
        if node in trees.roots:
            told = trees.label_sums[:, start : start + int(trees.n_codes[column]) + 1].sum()
            assert told == hidden.draws[trees.tree[node]].sum()


def test_parts_of_trees_are_parts(hidden: HiddenTest) -> None:
    trees = hidden.trees(SERVER)
    few, upper = first_trees(trees, 3), upper_part(trees, 100)
    assert few.n_trees == 3
    of_first = trees.tree[trees.pair_node] < 3
    assert few.counts.sum() == trees.size[trees.pair_node[of_first]].sum()
    assert np.array_equal(few.size[few.pair_node], trees.size[trees.pair_node[of_first]])
    assert (upper.size[upper.pair_node] >= 100).all()
    assert 0 < len(upper.counts) < len(trees.counts)


# --- values ---


@pytest.mark.parametrize("role", [HOLDER, SERVER])
@pytest.mark.slow
def test_counts_of_a_small_table_are_solved_for_rows(findings: list[Finding], role: str) -> None:
    """300 rows and 20 trees: far more counts than values, and columns that own ones hardly predict."""
    found = of(findings, role, "fit to all counts")
    assert found.value is not None
    assert found.baseline is not None
    assert found.value > 0.4
    assert found.value > found.baseline + 0.2


def test_more_trees_tell_more(case: leaks.Case, hidden: HiddenTest) -> None:
    truth = case.matrix(HOLDER)

    def reached(n_trees: int) -> float:
        trees = first_trees(hidden.trees(SERVER), n_trees)
        chances = chances_from_counts(trees, SERVER, hidden.codes[SERVER], rounds=20 // n_trees * 4, at_once=2)
        places = (chances * np.arange(chances.shape[2])).sum(axis=2)
        return float(np.mean([rank_correlation(places[:, k], truth[:, k]) for k in range(truth.shape[1])]))

    assert reached(20) > reached(2) + 0.1


def test_known_rows_stay_as_they_are(hidden: HiddenTest) -> None:
    trees = first_trees(hidden.trees(SERVER), 2)
    n_bins = int(trees.n_codes.max()) + 1
    start = np.full((trees.n_rows, len(trees.of_party(HOLDER)), n_bins), 1 / n_bins, np.float32)
    fixed = np.arange(trees.n_rows) < 100
    found = chances_from_counts(trees, SERVER, hidden.codes[SERVER], rounds=3, start=start, fixed=fixed)
    assert np.allclose(found[fixed], start[fixed])
    assert np.abs(found[~fixed] - start[~fixed]).max() > 0.0005


def test_a_server_without_columns_has_no_link_to_rows(case: leaks.Case) -> None:
    """The control: one constant column tells no two rows apart, so counts tell of all rows the same."""
    columns = {"bank": case.columns["bank"] | case.columns["shop"], "shop": {"one": np.zeros(case.n_rows)}}
    test = HiddenTest(
        leaks.Case(columns, case.labels), {"n_estimators": 5, "random_state": 0, "min_cell": 0}, lambda text: None
    )
    chances = chances_from_counts(test.trees(SERVER), SERVER, test.codes[SERVER], rounds=3)
    assert np.allclose(chances, chances[:1])


def test_the_baseline_knows_what_own_columns_predict() -> None:
    rng = np.random.default_rng(0)
    own = rng.normal(size=(400, 2))
    assert regression_with_half(own, own[:, :1] * 3 + 1) > 0.95
    assert regression_with_half(own, rng.normal(size=(400, 1))) < 0.2


# --- labels ---


def test_own_cuts_tell_labels_without_any_known_one(case: leaks.Case) -> None:
    """All columns of the party go with the label: what it is cut by tells the label."""
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 2, 400)
    shop = {f"shop_{k}": numbers + rng.normal(size=400) for k in range(4)} | {
        f"noise_{k}": rng.normal(size=400) for k in range(4)
    }
    easy = leaks.Case({"bank": {"bank_0": rng.normal(size=400)}, "shop": shop}, numbers)
    test = HiddenTest(easy, {"n_estimators": 20, "random_state": 0, "min_cell": 20}, lambda text: None)
    found = {f.attack: f for f in test.labels() if f.role.startswith("shop (other")}
    own = found["own splits"]
    assert own.value is not None
    assert own.value > 0.75
    # its columns go with each other because they go with the label: their clusters tell it without any message
    assert own.baseline is not None
    assert own.baseline > 0.65


def test_clusters_of_own_columns_are_found_without_any_message() -> None:
    rng = np.random.default_rng(4)
    numbers = rng.integers(0, 2, 600)
    told = np.digitize(numbers + rng.normal(scale=0.5, size=(6, 600)), np.linspace(-1, 2, 15))
    noise = rng.integers(0, 16, (6, 600))
    assert labels_of_clusters(told, numbers) > 0.9
    assert labels_of_clusters(noise, numbers) < 0.6
    assert labels_of_clusters(np.zeros((2, 600), np.int64), numbers) < 0.6  # nothing to cut


@pytest.mark.slow
def test_what_splits_tell_beyond_the_clusters_of_own_columns_counts_as_leaked() -> None:
    """Three columns go with the label, and ten with two other things: these are the clusters of the columns."""
    rng = np.random.default_rng(5)
    numbers, factors = rng.integers(0, 2, 400), rng.normal(size=(2, 400))
    shop = {f"told_{k}": numbers + rng.normal(scale=0.6, size=400) for k in range(3)}
    shop |= {f"other_{k}": factors[k % 2] + rng.normal(scale=0.2, size=400) for k in range(10)}
    case = leaks.Case({"bank": {"bank_0": rng.normal(size=400)}, "shop": shop}, numbers)
    params = {"n_estimators": 4, "max_depth": 3, "max_features": None, "min_cell": 20, "bootstrap": False}
    found = HiddenTest(case, params | {"random_state": 0}, lambda text: None).labels()
    own = next(f for f in found if f.attack == "own splits")
    (control,) = control_findings(case, params | {"random_state": 0}, lambda text: None)
    assert own.leaks
    assert own.value is not None
    assert own.value > 0.75
    assert (control.setting, control.baseline) == (CONTROL, own.baseline)
    assert control.value is not None
    assert control.value < own.value


# --- lengths ---


def test_the_dealer_guesses(case: leaks.Case, findings: list[Finding]) -> None:
    for found in findings:
        if found.role == "dealer":
            assert found.verdict in ("no more", "more")
            assert found.value is not None
            assert found.value < 0.65 if found.asset == "labels" else found.value < 0.12


def test_draws_that_decide_a_length_are_found() -> None:
    """The attack works where lengths follow from one row's draws."""
    rng = np.random.default_rng(0)
    draws = rng.poisson(1.0, (200, 50))
    lengths = [(range(t, t + 1), [1000.0 + 10 * draws[t, 7]]) for t in range(200)]
    order = np.abs(order_by_draws(lengths, draws))
    assert order.argmax() == 7


def test_the_dealer_sees_sizes_of_each_tree(case: leaks.Case, hidden: HiddenTest) -> None:
    trees = hidden.trees(HOLDER)
    sizes = sizes_of_trees(hidden.tape.seen_by("dealer"), case.n_rows)
    assert sizes
    children = set(trees.size[trees.left[trees.roots]].tolist()) | set(trees.size[trees.right[trees.roots]].tolist())
    assert {int(told[0]) for _, told in sizes} <= children


def test_frames_of_a_led_training_have_lengths_only(case: leaks.Case) -> None:
    from woodlot.estimators.federated_forest import FederatedForestClassifier
    from woodlot.leaks.case import LABEL, Tape

    tape, federation = Tape(), case.federation()
    federation.observer = tape.record
    FederatedForestClassifier(n_estimators=3, random_state=0).fit(federation, y=f"bank.{LABEL}")
    lengths = lengths_of_frames(tape.messages, HOLDER)
    assert sum(len(trees) for trees, _ in lengths) == 3
    assert all(told and min(told) > 0 for _, told in lengths)


# --- the tables of the documents ---


@pytest.mark.parametrize("page", ["README.md", "docs/privacy.md"])
def test_tables_of_the_documents_are_those_of_the_results(page: str) -> None:
    results = json.loads((ROOT / "docs" / "results" / "leaks.json").read_text())
    wanted = []
    for name in ("spambase",) if page == "README.md" else ("spambase", "bank_full", "credit_default, 6,000 rows"):
        found = [f for title in (name, f"{name}, led and hidden") for f in results[title]["findings"]]
        wanted += [
            f"**{name.partition(',')[0]}**, {results[name]['rows']:,} rows:",
            "",
            *as_markdown(summary_rows(found, HOLDER)),
            "",
        ]
    text = (ROOT / page).read_text()
    begin = "<!-- leaks: roles by settings, written by benchmarks/leaks.py --table -->"
    table = text.split(begin)[1].split("<!-- leaks: end -->")[0].strip().splitlines()
    assert table == wanted[:-1]


def test_a_table_says_what_was_not_attacked() -> None:
    found = {"asset": "values", "value": 0.5, "baseline": 0.4}
    rows = summary_rows([{**found, "role": "shop (second server)", "setting": "hidden"}], "bank")
    cells = {row[0]: row[1:] for row in rows}
    assert cells["second server"] == ["no such role", "no such role", "values 0.50 (0.40)"]
    assert cells["label holder"] == ["not attacked"] * 3
