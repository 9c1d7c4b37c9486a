"""The leak test: attacks work where there is something to find, and find nothing where there is not.

An attack that stops working would make the command claim protection, so most tests assert that labels, values and ids
are recovered. The others are controls: noise, masks, random keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from woodlot import leaks
from woodlot.cli import app
from woodlot.estimators.federated_forest import FederatedForestClassifier, FederatedForestRegressor
from woodlot.estimators.horizontal_forest import HorizontalForestClassifier
from woodlot.exceptions import DataError, LocalProtocolError
from woodlot.federation import Federation
from woodlot.leaks import Finding, alignment_attacks, revocable_attacks, value_attacks
from woodlot.leaks.case import LABEL, MARGIN, Tape
from woodlot.leaks.label_attacks import (
    groups_of_pure_leaves,
    least_squares,
    matched_at_best,
    share_right,
    targets_recovered,
)
from woodlot.leaks.role_views import View, coordinator_view, party_view
from woodlot.leaks.theft import theft_attacks
from woodlot.protocols.core.part_files import COORDINATOR
from woodlot.protocols.vertical.forest_messages import Partition
from woodlot.service.config import PartyConfig

SMALL = {"n_estimators": 12}


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Attacks in a moment: fewer ids to try, and attackers that grow few trees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment_attacks, "TRIED_IDS", 20_000)
        patch.setattr(alignment_attacks, "MAX_ALIGNED", 25)
        patch.setattr(value_attacks, "ATTACK_TREES", 15)
        patch.setattr(revocable_attacks, "MOST_ENTRIES", 100_000)
        yield


@pytest.fixture(scope="module")
def case() -> leaks.Case:
    return leaks.made_up_case(300)


@pytest.fixture(scope="module")
def targets() -> leaks.Case:
    return leaks.made_up_case(300, "targets")


@pytest.fixture(scope="module")
def findings(case: leaks.Case, quick: None) -> list[Finding]:
    return leaks.run_leak_test(case, SMALL)


@pytest.fixture(scope="module")
def of_targets(targets: leaks.Case, quick: None) -> list[Finding]:
    parts: list[leaks.Part] = ["labels", "linear", "revocable"]
    return leaks.run_leak_test(targets, SMALL, parts=parts)


def of(findings: Sequence[Finding], role: str, setting: str, attack: str) -> Finding:
    (found,) = [f for f in findings if (f.role, f.setting, f.attack) == (role, setting, attack)]
    return found


def trained(case: leaks.Case, **params: object) -> Tape:
    tape, federation = Tape(), case.federation()
    federation.observer = tape.record
    kind = FederatedForestClassifier if case.task == "classes" else FederatedForestRegressor
    kind(**{"random_state": 0, **params}).fit(federation, y=f"bank.{LABEL}")
    return tape


def views(case: leaks.Case, tape: Tape) -> tuple[View, View]:
    """What coordinator and shop know of where rows go and what leaves hold; neither view has the code of labels."""
    return coordinator_view(tape.seen_by(COORDINATOR), "bank", case.parties), party_view(tape.seen_by("shop"), "shop")


def frequencies(case: leaks.Case) -> np.ndarray:
    return np.sort(np.bincount(case.numbers))[::-1] / case.n_rows


# --- labels ---


@pytest.mark.parametrize("role", [COORDINATOR, "shop"])
@pytest.mark.slow
def test_labels_are_read_from_their_code(findings: list[Finding], role: str) -> None:
    found = of(findings, role, "protection=open", "code of labels" if role == "shop" else "code and leaf totals")
    assert found.verdict == "recovered"
    assert found.value == 1.0
    assert found.baseline is not None
    assert found.baseline < 0.7


@pytest.mark.parametrize("leaf", [1, 5, 20, 50])
def test_the_coordinator_reads_every_class_from_leaf_totals(case: leaks.Case, leaf: int) -> None:
    """Least squares on leaf totals and partitions, without the code of labels, at any smallest leaf."""
    tape = trained(case, n_estimators=100, min_samples_leaf=leaf, max_bins=32)
    view, _ = views(case, tape)
    assert share_right(least_squares(view).argmax(axis=1), case.numbers) >= 0.99


@pytest.mark.parametrize("leaf", [1, 5, 20])
def test_the_coordinator_reads_every_target_from_leaf_totals(targets: leaks.Case, leaf: int) -> None:
    view, _ = views(targets, trained(targets, n_estimators=100, min_samples_leaf=leaf, max_bins=32))
    assert targets_recovered(least_squares(view)[:, 0], targets.labels) >= 0.99


def test_a_party_reads_labels_from_pure_leaves(case: leaks.Case) -> None:
    _, view = views(case, trained(case, n_estimators=100, max_bins=32))
    found = groups_of_pure_leaves(view, frequencies(case))
    assert matched_at_best(found.group, case.numbers) == 1.0
    assert found.certain == 1.0


def test_larger_leaves_leave_a_party_fewer_certain_rows(case: leaks.Case) -> None:
    """What min_samples_leaf protects from other parties: and it is not everything."""
    _, view = views(case, trained(case, n_estimators=30, max_bins=32, min_samples_leaf=20))
    assert groups_of_pure_leaves(view, frequencies(case)).certain < 0.9


def test_more_than_two_classes_are_joined_to_groups(case: leaks.Case) -> None:
    three = leaks.Case(case.columns, np.digitize(case.columns["bank"]["bank_0"], [-0.5, 0.5]))
    _, view = views(three, trained(three, n_estimators=50, max_bins=32))
    found = groups_of_pure_leaves(view, frequencies(three))
    assert matched_at_best(found.group, three.numbers) > 0.95


def test_leaf_totals_tell_labels_without_their_code(findings: list[Finding]) -> None:
    assert of(findings, COORDINATOR, "protection=open", "least squares on leaf totals").verdict == "recovered"


def test_known_labels_tell_those_of_leaf_mates(findings: list[Finding]) -> None:
    found = of(findings, "shop", "revocable", "known labels of leaf mates")
    assert found.leaks
    assert found.against == "predicting from own columns"


def test_targets_are_ordered_without_their_code(of_targets: list[Finding]) -> None:
    assert of(of_targets, COORDINATOR, "protection=open", "least squares on leaf totals").value == 1.0
    assert of(of_targets, COORDINATOR, "protection=open", "code and leaf totals").value == 1.0
    order = of(of_targets, "shop", "protection=open", "code of labels").value
    assert order is not None
    assert order > 0.999
    assert of(of_targets, "shop", "revocable", "rows that travel together").leaks


def test_noise_in_one_shallow_tree_tells_nobody_a_label(case: leaks.Case) -> None:
    """The control: two leaves are two equations, and no leaf is pure."""
    noise = leaks.Case(case.columns, np.random.default_rng(5).permutation(case.labels))
    coordinator, party = views(noise, trained(noise, n_estimators=1, max_depth=1, max_bins=32))
    largest = frequencies(noise)[0]
    assert share_right(least_squares(coordinator).argmax(axis=1), noise.numbers) < largest + 2 * MARGIN
    assert matched_at_best(groups_of_pure_leaves(party, frequencies(noise)).group, noise.numbers) < largest + 2 * MARGIN


# --- what the attacks are given ---


@pytest.mark.parametrize(
    "params",
    [{}, {"max_depth": 4}, {"max_leaf_nodes": 9}, {"class_weight": "balanced_subsample"}, {"bootstrap": False}],
    ids=["whole trees", "depth", "pruned", "balanced", "all rows"],
)
@pytest.mark.slow
def test_views_are_those_of_the_messages(case: leaks.Case, params: dict[str, object]) -> None:
    """The coordinator and a party follow the same rows to the same leaves, and true labels add up to the totals."""
    tape = trained(case, n_estimators=4, **params)
    coordinator = coordinator_view(tape.seen_by(COORDINATOR), "bank", case.parties)
    party = party_view(tape.seen_by("shop"), "shop")
    for name in ("start", "rows", "pure"):
        assert np.array_equal(getattr(coordinator.leaves, name), getattr(party.leaves, name))
    assert np.array_equal(coordinator.splits.left, party.splits.left)
    own = coordinator.splits.owner == case.parties.index("shop")
    assert np.array_equal(coordinator.splits.feature[own], party.splits.feature[own])
    totals = np.zeros_like(coordinator.totals)
    leaves = coordinator.leaves
    np.add.at(totals, (leaves.of_entry, case.numbers[leaves.rows]), leaves.weight)
    assert np.array_equal(totals, coordinator.totals)
    sent = [m for sender, _, m in tape.messages if sender != COORDINATOR and isinstance(m, Partition)]
    bits = 8 * sum(len(m.flags) for m in sent)
    assert len(coordinator.splits.rows) <= bits < len(coordinator.splits.rows) + 8 * len(sent)


def test_a_role_is_not_given_what_others_are_sent(case: leaks.Case) -> None:
    tape = trained(case, n_estimators=1, max_depth=2)
    with pytest.raises(LocalProtocolError, match="does not see"):
        party_view(tape.messages, "shop")


# --- values ---


def test_partitions_tell_the_coordinator_values(case: leaks.Case) -> None:
    view, _ = views(case, trained(case, n_estimators=100, max_bins=32))
    found = value_attacks.columns_at_coordinator(view.splits, "bank", case.matrix("bank"))
    assert len(found) == 4
    assert min(column.correlation for column in found) > 0.95


def test_partitions_tell_parties_values(findings: list[Finding]) -> None:
    for role in ("shop", "bank"):
        found = of(findings, role, "protection=open", "order from all partitions")
        assert found.leaks
        assert "20 values known" in found.measure


def test_a_column_that_splits_nothing_stays_unknown(case: leaks.Case) -> None:
    """The control: there is no partition by it."""
    view, _ = views(case, trained(case, n_estimators=5, max_bins=32))
    others = view.splits.select(view.splits.feature != 1)
    found = value_attacks.columns_at_coordinator(others, "bank", case.matrix("bank"))
    assert found[0].correlation == 0.0
    assert found[1].correlation > 0.5


def test_predictions_tell_the_order_of_predicted_rows(findings: list[Finding]) -> None:
    """Sealed ones too: the leaf tells every outcome on the way to it. One party's numbers alone tell nothing."""
    opened, sealed = (
        of(findings, COORDINATOR, f"{how} predictions", "order of predicted rows") for how in ("open", "sealed")
    )
    assert opened.value is not None
    assert sealed.value is not None
    assert opened.value > sealed.value > 0.9
    alone = of(findings, COORDINATOR, "sealed predictions", "one party's numbers alone")
    assert alone.value == 0.0
    assert alone.verdict == "no more"


# --- other models, users, ids ---


def test_linear_models_tell_labels(findings: list[Finding], of_targets: list[Finding]) -> None:
    for role in (COORDINATOR, "shop"):
        assert of(findings, role, "linear, protection=open", "residuals").value == 1.0
        order = of(of_targets, role, "linear, protection=open", "residuals").value
        assert order is not None
        assert order > 0.999
    assert of(findings, "shop", "linear, protection=hidden", "slopes").verdict == "more"


def test_revocable_forests_tell_labels_and_values(findings: list[Finding]) -> None:
    assert of(findings, COORDINATOR, "revocable", "labels in clear").verdict == "recovered"
    assert of(findings, "shop", "revocable", "union of pure leaves").verdict == "recovered"
    assert of(findings, COORDINATOR, "revocable", "order from split vectors").verdict == "recovered"


def test_forests_remember_their_rows(findings: list[Finding]) -> None:
    assert of(findings, "user", "vertical", "answers for training rows").leaks
    assert of(findings, "any client or user", "horizontal, lossless", "answers for training rows").leaks


def test_a_user_steals_a_column_where_nothing_forbids_it(findings: list[Finding]) -> None:
    for party in ("bank", "shop"):
        free = of(findings, "user", "in one process, no policy", f"columns of {party} as labels")
        assert free.value == 1.0
        named = of(findings, "user", "tables that name no label", f"columns of {party} as labels")
        assert named.verdict == "no more"
        assert "no column may be a label" in named.words


PARTY = """
coordinator = "localhost:7443"
[tables.customers]
path = "customers.parquet"
id = "id"
columns = "*"
labels = ["bank_0"]
[policy]
train = ["alice"]
predict = ["alice"]
min_samples_leaf = 5
min_rows = 100
wire_forms = ["sealed"]
predictions_per_day = 1000
trainings_per_day = 5
receive = {receive}
"""


@pytest.mark.parametrize("receive", ['["alice"]', "[]"])
def test_a_policy_decides_what_a_user_steals(tmp_path: Path, case: leaks.Case, receive: str) -> None:
    """Ten trainings with leaves of 5 read the one column that is a label, in three days; no receiver, no theft."""
    (tmp_path / "party.toml").write_text(PARTY.format(receive=receive))
    guard = leaks.PolicyGuard.of(PartyConfig.load(tmp_path / "party.toml"))
    found = theft_attacks(case, {"bank": guard}, "your policy")[0]
    if receive == "[]":
        assert found.verdict == "no more"
        assert "nobody may receive predictions" in found.words
        return
    assert found.value is not None
    assert found.value >= 0.99
    assert "1 of 4 columns of numbers may be labels; bank_0 was read in 10 trainings" in found.words
    assert "3 days" in found.words


def test_keys_that_can_be_guessed_protect_no_id(findings: list[Finding]) -> None:
    attack = "guessed key"
    assert of(findings, COORDINATOR, "keyed-hash, a word as secret", attack).value == 1.0
    assert of(findings, COORDINATOR, "keyed-hash, 32 random bytes", attack).value == 0.0
    helped = of(findings, "coordinator with bank", "keyed-hash, 32 random bytes", "key of an accomplice")
    assert helped.value == 1.0
    for method in ("keyed-hash", "psi"):
        assert of(findings, "bank", method, "a table of all possible ids").value == 1.0


# --- the report ---


def test_what_is_not_attacked_gets_no_verdict(findings: list[Finding]) -> None:
    silent = [f for f in findings if f.value is None]
    assert {f.role for f in silent} >= {COORDINATOR, "bank", "shop", "helper", "key service", "client"}
    for found in silent:
        assert found.verdict == "not attacked"
        assert found.leaks is None
        assert found.to_dict()["verdict"] == "not attacked"


def test_all_rows_are_used_unless_asked_otherwise(case: leaks.Case) -> None:
    table = pa.table({"a": np.arange(6000.0), "b": np.arange(6000.0), "y": np.arange(6000) % 2})
    assert leaks.case_of(table, "y", 2).n_rows == 6000
    assert leaks.case_of(table, "y", 2, max_rows=500).n_rows == 500
    assert leaks.case_of(table, "y", 2).task == "classes"
    assert leaks.case_of(table, "a", {"x": ["b"], "z": ["y"]}).task == "targets"


@pytest.mark.slow
def test_a_table_of_ones_own(tmp_path: Path, case: leaks.Case) -> None:
    table = pa.table({name: v for columns in case.columns.values() for name, v in columns.items()})
    table = table.append_column("outcome", pa.array(case.labels)).append_column("id", pa.array(case.ids))
    pq.write_table(table, tmp_path / "own.parquet")
    options = ["leak-test", str(tmp_path / "own.parquet"), "--label", "outcome", "--id", "id", "--rows", "150"]
    options += ["--party", "bank=bank_0,bank_1", "--party", "shop=shop_0,shop_1,shop_2", "--set", "n_estimators=3"]
    result = CliRunner().invoke(app, [*options, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["rows"] == 150
    assert report["parties"] == {"bank": ["bank_0", "bank_1"], "shop": ["shop_0", "shop_1", "shop_2"]}
    assert {f["asset"] for f in report["findings"]} == {"labels", "values", "ids"}
    assert set(report["findings"][0]) == {
        "role", "setting", "asset", "attack", "measure", "value", "baseline", "against", "words", "seconds", "verdict",
        "leaks",
    }  # fmt: skip
    result = CliRunner().invoke(app, [*options, "--part", "linear"])
    assert result.exit_code == 0, result.output
    assert "recovered" in result.output
    assert "Not attacked, so nothing is said of it" in result.output


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--label", "nothing"], "no column 'nothing'"),
        (["--label", "y", "--party", "bank"], "write --party NAME=COLUMN"),
        (["--label", "y", "--part", "magic"], "there are labels"),
        (["--label", "y", "--task", "magic"], "write classes or targets"),
        (["--label", "y", "--policy", "party-1"], "write --policy PARTY=FILE"),
        (["--label", "y", "--policy", "x=party.toml"], "there is no party 'x'"),
        (["--label", "y", "--secret-file", "nowhere"], "cannot be read"),
        ([], "--label COLUMN"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, wrong: list[str], words: str) -> None:
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [1.0, 2.0], "y": [0, 1]}), tmp_path / "own.parquet")
    result = CliRunner().invoke(app, ["leak-test", str(tmp_path / "own.parquet"), *wrong])
    assert result.exit_code == 1
    assert words in result.output


def test_a_case_needs_two_parties_with_columns_that_exist(case: leaks.Case) -> None:
    table = pa.table({"bank_0": [1.0], "outcome": ["a"]})
    with pytest.raises(DataError, match="two parties or more"):
        leaks.case_of(table, "outcome", {"bank": ["bank_0"]})
    with pytest.raises(DataError, match=r"no columns \['age'\] to deal"):
        leaks.case_of(table, "outcome", {"bank": ["bank_0"], "shop": ["age"]})


def test_observers_are_told_the_messages_of_forests_over_rows(case: leaks.Case) -> None:
    table = pa.table({**case.columns["bank"], "outcome": case.labels})
    federation = Federation.local({f"client-{k}": table.slice(100 * k, 100) for k in range(3)}, layout="rows")
    tape = Tape()
    federation.observer = tape.record
    HorizontalForestClassifier(1, max_depth=1, random_state=0).fit(federation, y="outcome")
    assert {sender for sender, _, _ in tape.messages} == {COORDINATOR, "client-0", "client-1", "client-2"}
