"""The leak test: attacks work where there is something to find, and find nothing where there is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from woodlot.cli import app
from woodlot.crypto import paillier
from woodlot.estimators import checks
from woodlot.estimators.forest import FederatedForestClassifier
from woodlot.exceptions import DataError
from woodlot.experiments import leaks
from woodlot.experiments.leaks import Finding, alignment, training
from woodlot.experiments.leaks.case import LABEL, Tape
from woodlot.experiments.leaks.partitions import drawn_rows, leaves_of_rows, sides_at

SMALL = {"n_estimators": 8, "max_depth": 6}
BITS = 512


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Attacks in a moment: fewer ids to try, short keys, and attackers that grow few trees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "TRIED_IDS", 20_000)
        patch.setattr(alignment, "MAX_ALIGNED", 25)
        patch.setattr(training, "ATTACK_TREES", 15)
        patch.setattr(paillier, "SMALLEST_BITS", BITS)
        patch.setattr(checks, "KEY_BITS", (BITS, *checks.KEY_BITS))
        yield


@pytest.fixture(scope="module")
def case() -> leaks.Case:
    return leaks.made_up_case(400)


@pytest.fixture(scope="module")
def findings(case: leaks.Case, quick: None) -> list[Finding]:
    return leaks.run_leak_test(case, SMALL, ["shared"])


def of(findings: Sequence[Finding], attack: str, setting: str, role: str, measure: str = "") -> Finding:
    (found,) = [
        f
        for f in findings
        if (f.attack, f.role) == (attack, role) and f.setting.startswith(setting) and measure in f.measure
    ]
    return found


def test_shared_labels_are_read_from_their_code(findings: list[Finding]) -> None:
    for role in ("shop", "coordinator"):
        found = of(findings, "labels from their code", "labels=shared", role)
        assert found.leaks
        assert found.value == 1.0
        assert found.chance < 0.7


def test_encrypted_labels_leave_nothing_to_read_in_their_place(case: leaks.Case) -> None:
    """Chance level, for what is sent in place of labels; partitions tell what they tell, and the report says so."""
    few = leaks.Case(
        {party: {name: values[:100] for name, values in own.items()} for party, own in case.columns.items()},
        case.labels[:100],
        case.ids,
    )
    forest = {"n_estimators": 2, "max_depth": 3, "key_bits": BITS, "max_bins": 8}
    found = leaks.run_leak_test(few, forest, ["encrypted"])
    for role in ("shop", "coordinator"):
        code = of(found, "labels from their code", "labels=encrypted", role)
        assert not code.leaks
        assert code.value == code.chance
    leaves = of(found, "labels from leaves", "labels=encrypted", "shop", "20 known")
    assert "Encryption does not change who sees the partitions" in leaves.words


def test_leaves_tell_labels_whatever_their_code(findings: list[Finding]) -> None:
    found = of(findings, "labels from leaves", "labels=shared", "shop", "20 known")
    assert found.leaks
    assert found.value > found.chance + 0.05


def test_partitions_tell_an_order(findings: list[Finding]) -> None:
    party, coordinator = (of(findings, "order of values", "any", role) for role in ("shop", "coordinator"))
    assert party.leaks
    assert coordinator.value > 0.4


def test_sealed_predictions_tell_the_path_only(findings: list[Finding]) -> None:
    plain = of(findings, "outcomes at prediction", "plain", "coordinator")
    sealed = of(findings, "outcomes at prediction", "sealed", "coordinator")
    assert plain.leaks
    assert plain.value > 1.5 * plain.chance
    assert not sealed.leaks
    assert sealed.value == plain.chance


def test_hashes_without_a_key_are_tried_out(findings: list[Finding]) -> None:
    assert of(findings, "ids from their hashes", "bare", "coordinator").leaks
    for method in ("keyed-hash", "psi"):
        assert of(findings, "ids from their hashes", method, "coordinator").value == 0


def test_no_attack_succeeds_on_labels_that_mean_nothing(case: leaks.Case) -> None:
    """Random labels: leaves cannot tell those of rows that no tree has drawn, and columns tell nothing."""
    noise = leaks.Case(case.columns, np.random.default_rng(5).permutation(case.labels), case.ids)
    stumps = leaks.run_leak_test(noise, {"n_estimators": 1, "max_depth": 1}, ["shared"])
    assert not of(stumps, "labels from leaves", "labels=shared", "shop", "grouped").leaks


def test_the_leaves_are_those_that_the_messages_tell(case: leaks.Case) -> None:
    """As many bits of partitions as rows at split nodes; what the attack uses is in the messages."""
    tape, federation = Tape(), case.federation()
    federation.observer = tape.record
    model = FederatedForestClassifier(**SMALL, random_state=0).fit(federation, y=f"bank.{LABEL}")
    leaf, drawn = leaves_of_rows(case, model), drawn_rows(model, len(case.labels))
    rows = 0
    for party in ("bank", "shop"):
        sides, _ = sides_at(model.forest_.coordinator, party, leaf)
        forest = model.forest_.coordinator
        nodes = np.flatnonzero(forest.owner == forest.parties.index(party))
        tree = np.searchsorted(forest.structure.offset, nodes, side="right") - 1
        rows += int((np.abs(sides) * drawn[:, tree]).sum())
    flags = [m for sender, _, m in tape.messages if sender != "coordinator" and type(m).__name__ == "Partition"]
    sent = 8 * sum(len(m.flags) for m in flags)  # type: ignore[attr-defined]
    assert rows <= sent < rows + 8 * len(flags)


def test_a_table_of_ones_own(tmp_path: Path, case: leaks.Case) -> None:
    table = pa.table({name: v for columns in case.columns.values() for name, v in columns.items()})
    table = table.append_column("outcome", pa.array(case.labels)).append_column("id", pa.array(case.ids))
    pq.write_table(table, tmp_path / "own.parquet")
    options = ["leak-test", str(tmp_path / "own.parquet"), "--label", "outcome", "--id", "id", "--labels", "shared"]
    options += ["--party", "bank=bank_0,bank_1", "--party", "shop=shop_0,shop_1,shop_2", "--rows", "150"]
    options += ["--set", "n_estimators=3", "--json"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["findings"]
    assert {f["attack"] for f in found} == {
        "labels from their code", "labels from leaves", "order of values", "outcomes at prediction",
        "ids from their hashes",
    }  # fmt: skip
    with pytest.raises(DataError, match="two parties or more"):
        leaks.case_of(table, "outcome", {"bank": ["bank_0"]})
    with pytest.raises(DataError, match=r"no columns \['age'\] to deal"):
        leaks.case_of(table, "outcome", {"bank": ["bank_0"], "shop": ["age"]})
    for wrong, words in (
        (["--label", "nothing"], "no column 'nothing'"),
        (["--label", "outcome", "--party", "bank"], "write --party NAME=COLUMN"),
        (["--label", "outcome", "--labels", "hidden"], "there are shared"),
        ([], "--label COLUMN"),
    ):
        result = CliRunner().invoke(app, ["leak-test", str(tmp_path / "own.parquet"), *wrong])
        assert result.exit_code == 1
        assert words in result.output
