"""``woodlot demo``: its numbers, its JSON, what it shows to people, and that it leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from woodlot import FederatedForestClassifier, RevocableForestClassifier, connect
from woodlot.cli._companies import ID, LABEL, TABLES, make_companies, write_companies
from woodlot.cli._comparison import AlignmentSummary, Audit, BitComparison, Comparison, Delivery, Result, Setting
from woodlot.cli.demo import N_STEPS, TITLES, _print
from woodlot.estimators.complete import same_forest
from woodlot.exceptions import WoodlotError
from woodlot.runtime.audit import Cost, DisclosureRow, Disclosures
from woodlot.service import local
from woodlot.service.local import local_federation

COMMAND = Path(sys.executable).with_name("woodlot")
SMALL = ["--rows", "1500", "--trees", "20", "--seed", "3"]
LINUX = sys.platform == "linux"


def environment(scratch: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    return kept | {"TMPDIR": str(scratch)}


def run(scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [COMMAND, "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(scratch),
    )
    assert done.returncode == 0, done.stderr
    check_nothing_is_left(scratch)
    return done


def check_nothing_is_left(scratch: Path) -> None:
    assert processes_in(scratch) == []
    assert list(scratch.iterdir()) == []


def wait_until(holds: Any, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def processes_in(scratch: Path) -> list[bytes]:
    """Command lines of the services that were started in a folder; their configuration is there."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline") if LINUX else ():
        try:
            line = file.read_bytes()
        except OSError:
            continue
        if b"end_with_parent" in line and str(scratch).encode() in line:
            found.append(line)
    return found


@pytest.fixture(scope="module")
def as_json(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    done = run(tmp_path_factory.mktemp("json"), "--json", *SMALL)
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def for_people(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run(tmp_path_factory.mktemp("people"), *SMALL).stdout.splitlines()


# --- for machines ---


@pytest.mark.slow
def test_together_is_better_than_alone_and_the_same_as_central(as_json: tuple[dict[str, Any], str]) -> None:
    result, _ = as_json
    models = result["models"]
    federated = models["federated"]
    for alone in ("bank alone", "shop alone"):
        assert federated["accuracy"] > models[alone]["accuracy"] + 0.03
        assert federated["auc"] > models[alone]["auc"] + 0.03
    assert (federated["accuracy"], federated["auc"]) == (models["one place"]["accuracy"], models["one place"]["auc"])
    assert abs(federated["auc"] - models["one place, scikit-learn"]["auc"]) < 0.04
    assert result["identical"] is True
    compared = result["compared"]
    assert compared["same_forest"] is True
    assert compared["same_answers"] is True
    assert compared["n_trees"] == 20
    assert compared["n_nodes"] > 20
    assert compared["n_answers"] == 2 * result["customers"]["test"]


@pytest.mark.slow
def test_json_has_every_field(as_json: tuple[dict[str, Any], str]) -> None:
    result, _ = as_json
    assert set(result) == {
        "woodlot", "seed", "trees", "customers", "columns", "models", "settings", "identical", "compared",
        "alignment", "prediction", "audit", "delivered", "seconds",
    }  # fmt: skip
    assert (result["seed"], result["trees"]) == (3, 20)
    customers = result["customers"]
    assert customers["common"] == 1_500 == customers["train"] + customers["test"]
    assert customers["common"] < min(customers["bank"], customers["shop"])
    assert "default" not in result["columns"]["bank"]
    assert not set(result["columns"]["bank"]) & set(result["columns"]["shop"])
    assert list(result["models"]) == list(TITLES)
    for name, model in result["models"].items():
        assert set(model) == {"accuracy", "auc", "fit_seconds", "predict_seconds", "rounds", "bytes"}
        assert 0.5 < model["accuracy"] < 1
        assert 0.5 < model["auc"] < 1
        assert 0 < model["fit_seconds"] < result["seconds"]
        assert (model["rounds"] is None) == (model["bytes"] is None) == (name != "federated")


@pytest.mark.slow
def test_both_settings_stand_side_by_side(as_json: tuple[dict[str, Any], str]) -> None:
    result, _ = as_json
    settings = result["settings"]
    assert list(settings) == ["open", "hidden"]
    for one in settings.values():
        assert one["trees"] == 5
        assert 0.5 < one["accuracy"] < 1
        assert one["rounds"] > 3
    assert settings["hidden"]["bytes"] > 20 * settings["open"]["bytes"]


@pytest.mark.slow
def test_json_accounts_for_every_byte(as_json: tuple[dict[str, Any], str]) -> None:
    result, _ = as_json
    federated, audit = result["models"]["federated"], result["audit"]
    assert list(audit) == ["align", "train", "predict"]
    relayed = {row["kind"]: row["bytes"] for row in audit["train"]["messages"]}
    assert {"LedStep", "LeadOn", "SealedRequest", "SealedReply"} <= set(relayed), "the coordinator carries frames"
    assert not {"Offers", "Partition", "EncodedLabels", "Decisions"} & set(relayed)
    assert federated["bytes"] > 10_000
    assert federated["rounds"] > 3
    assert result["alignment"]["bytes"] == sum(row["bytes"] for row in audit["align"]["messages"])
    assert result["alignment"]["n_rows"] == result["customers"]["train"]
    assert result["prediction"]["bytes"] > 0
    for record in audit.values():
        assert record["verified"] is True
        assert record["problem"] == ""
        assert record["parties_agree"] is True
        assert set(record["records"]) == {"coordinator", "bank", "shop"}
        assert {row["receiver"] for row in record["messages"]} == {"bank", "shop", "coordinator"}
        assert {row["form"] for row in record["messages"]} <= {"clear", "encoded", "encrypted"}
        # every message is recorded at both of its ends; behind the last there may be a mark of the end
        n_messages = sum(row["count"] for row in record["messages"])
        assert 0 <= record["records"]["coordinator"] - n_messages <= 1
        assert 0 <= record["records"]["bank"] + record["records"]["shop"] - n_messages <= 2


@pytest.mark.slow
def test_the_bank_is_given_its_answers(as_json: tuple[dict[str, Any], str]) -> None:
    result, _ = as_json
    delivered = result["delivered"]
    assert delivered["rows"] == result["customers"]["test"]
    assert delivered["columns"] == [ID, "prediction", "probability_no", "probability_yes"]
    assert delivered["score"] == result["models"]["federated"]["accuracy"]


@pytest.mark.slow
def test_progress_goes_to_standard_error_in_plain_lines(as_json: tuple[dict[str, Any], str]) -> None:
    _, progress = as_json
    steps = [line for line in progress.splitlines() if line.startswith("[")]
    assert [line.split()[0] for line in steps] == [f"[{i + 1}/{N_STEPS}]" for i in range(N_STEPS)]
    assert "\x1b" not in progress
    assert "Warning" not in progress


# --- for people ---


@pytest.mark.slow
def test_output_for_people_has_no_ragged_lines(for_people: list[str]) -> None:
    assert max(map(len, for_people)) <= 80
    text = "\n".join(for_people)
    assert "\x1b" not in text
    assert "…" not in text
    models = for_people[for_people.index("What they learn, alone and together") :]
    models = models[: models.index("Two settings, side by side")]
    table = [line for line in models if re.search(r"\d\d\.\d % .* s ", line)]
    assert len(table) == 5
    assert len({line.index("%") for line in table}) == 1
    assert sum(line.startswith("yes ") for line in for_people) == 4
    assert not any(line.startswith("NO ") for line in for_people)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(as_json: tuple[dict[str, Any], str], for_people: list[str]) -> None:
    """Except for forests over both companies: those depend on the parties' secrets, which are new each time."""
    for name in ("bank alone", "shop alone", "one place, scikit-learn"):
        model = as_json[0]["models"][name]
        line = next(line for line in for_people if line.startswith(f"{TITLES[name]} "))
        assert f"{100 * model['accuracy']:.1f} %" in line
        assert f"{model['auc']:.3f}" in line


def made_up() -> Comparison:
    """A comparison in which everything holds."""
    rows = [
        DisclosureRow(*pair, kind, 12, 34_567, form, "something")
        for pair in (("bank", "coordinator"), ("coordinator", "bank"))
        for kind, form in (("EncodedLabels", "encoded"), ("Offers", "clear"))
    ]
    audit = Audit("train", "0" * 32, Disclosures(tuple(rows)), {"coordinator": 4, "bank": 4, "shop": 0}, "", agree=True)
    return Comparison(
        companies=make_companies(100, seed=0),
        address="127.0.0.1:7443",
        n_train=75,
        n_test=25,
        results=tuple(Result(name, 0.8, 0.9, 1.0, 0.1) for name in TITLES),
        settings=tuple(Setting(name, 5, 0.8, 1.0, 20, 123_456) for name in ("open", "hidden")),
        identity=BitComparison(same_forest=True, n_trees=3, n_nodes=30, same_answers=True, n_answers=50),
        alignment=AlignmentSummary(75, 0.5, 7, 12_345),
        prediction_cost=Cost(rounds=3, bytes_sent=10, bytes_received=20),
        audits=(audit,),
        delivery=Delivery(pa.table({ID: [1], "prediction": ["no"], "probability_no": [0.7]}), 0.8),
    )


def shown(comparison: Comparison) -> str:
    text = io.StringIO()
    _print(Console(width=80, file=text), comparison, trees=3, seconds=1.0)
    return text.getvalue()


def test_a_difference_would_be_shown() -> None:
    good = made_up()
    assert good.holds
    assert not re.search(r"^NO ", shown(good), re.MULTILINE)
    different = replace(good, identity=replace(good.identity, same_answers=False))
    assert not different.holds
    assert re.search(r"^yes +Growing", shown(different), re.MULTILINE)
    assert re.search(r"^NO +Predicting", shown(different), re.MULTILINE)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"problem": "record 3 is not what was written"}, "NO +record 3 is not what was written"),
        ({"agree": False}, "NO +The bank's and the shop's own records"),
    ],
)
def test_wrong_records_would_be_shown(change: dict[str, Any], told: str) -> None:
    good = made_up()
    wrong = replace(good, audits=(replace(good.audits[0], **change),))
    assert not wrong.holds
    assert re.search(f"^{told}", shown(wrong), re.MULTILINE)


def test_forests_of_different_seeds_are_not_the_same() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.integers(2, size=200)
    one, same, other = (
        FederatedForestClassifier(2, parties=parties, random_state=seed).fit(X, y).combine()
        for parties, seed in ((1, 0), (3, 0), (1, 1))
    )
    assert same_forest(one, same)
    assert not same_forest(one, other)


# --- how it ends ---


@pytest.mark.faults
@pytest.mark.skipif(not LINUX, reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("step", "number"),
    [(1, signal.SIGINT), (5, signal.SIGINT), (2, signal.SIGTERM)],
    ids=["at the beginning", "while the federation grows", "told to end"],
)
def test_it_ends_quietly_when_told_and_leaves_nothing(tmp_path: Path, step: int, number: signal.Signals) -> None:
    with demo_at(tmp_path, step) as process:
        if step > 2:
            assert wait_until(lambda: len(processes_in(tmp_path)) == 3, 300)
            time.sleep(1)
        process.send_signal(number)
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in errors
    check_nothing_is_left(tmp_path)


@pytest.mark.faults
@pytest.mark.skipif(not LINUX, reason="looks for processes in /proc")
def test_no_process_outlives_a_demonstration_that_is_killed(tmp_path: Path) -> None:
    with demo_at(tmp_path, 3) as process:
        assert wait_until(lambda: len(processes_in(tmp_path)) == 3, 300)
        process.kill()
        process.communicate(timeout=300)
    assert wait_until(lambda: not processes_in(tmp_path), 300)


@contextmanager
def demo_at(scratch: Path, step: int) -> Iterator[subprocess.Popen[str]]:
    """A long demonstration that has come to a step."""
    with subprocess.Popen(
        [COMMAND, "demo", "--rows", "4000", "--trees", "400"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(scratch),
    ) as process:
        try:
            assert process.stderr is not None
            assert any(line.startswith(f"[{step}/") for line in process.stderr)
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_a_signal_while_a_service_starts_leaves_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*args, **kwargs))
        os.kill(os.getpid(), signal.SIGTERM)  # before anybody knows of the process
        return started[0]

    monkeypatch.setattr(local, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
    with pytest.raises(KeyboardInterrupt), local_federation(["bank"]) as federation:
        federation.start({"bank": {}}, ID, n_jobs=1, labels={})
    assert [process.returncode is not None for process in started] == [True]


@pytest.mark.slow
def test_a_service_that_does_not_start_is_told_with_its_reason() -> None:
    with local_federation(["bank"]) as federation:
        federation.start({"bank": {"customers": "customers.docx"}}, ID, n_jobs=1, labels={})
        with pytest.raises(WoodlotError, match=r"process of bank has ended with 1; .*'customers\.docx'"):
            federation.wait_connected()
    assert not federation.root.exists()


@pytest.mark.slow
def test_a_helper_and_a_key_service_serve_forests_with_shares() -> None:
    """As `benchmarks/encrypted_shares.py` measures them."""
    rng = np.random.default_rng(0)
    X, parties = rng.normal(size=(60, 4)), ("bank", "shop")
    with local_federation(parties, encrypted=True) as federation:
        for k, party in enumerate(parties):
            held = {"id": np.arange(60), "a": X[:, 2 * k], "b": X[:, 2 * k + 1]}
            table = pa.table(held | ({"label": np.where(X[:, 0] > 0, "yes", "no")} if party == "bank" else {}))
            pq.write_table(table, federation.root / party / "t.parquet")
        kinds = ("align", "predict", "train-revocable", "predict-encrypted", "keys")
        federation.start({p: {"t": "t.parquet"} for p in parties}, "id", 1, {"bank": ["label"]}, protocols=kinds)
        federation.wait_connected()
        assert set(federation.pids) == {"coordinator", *parties, local.HELPER, local.KEYS}
        members = {"helper": local.HELPER, "key_service": local.KEYS, "lead": "coordinator"}
        with connect(federation.address, federation.identity, tables="t", parties=parties, **members) as user:
            model = RevocableForestClassifier(2, max_depth=2, random_state=0).fit(user, y="bank.label")
            rows = {f"{p}.{c}": X[:, 2 * k + j] for k, p in enumerate(parties) for j, c in enumerate("ab")}
            found = model.predict_encrypted(pa.table(rows))
            np.testing.assert_array_equal(np.sort(found[:, 0]), np.sort(model.predict_proba(user)[:, 0]))


# --- the tables ---


def test_the_companies_tables_are_as_told() -> None:
    companies = make_companies(1_000, seed=5)
    train, test, shop = (table[ID].to_numpy() for table in (companies.bank_train, companies.bank_test, companies.shop))
    bank = np.concatenate([train, test])
    assert len(np.unique(bank)) == len(bank)
    assert len(np.unique(shop)) == len(shop)
    common = np.intersect1d(bank, shop)
    assert len(common) == 1_000 < min(len(bank), len(shop))
    in_bank, in_shop = bank[np.isin(bank, common)], shop[np.isin(shop, common)]
    assert not np.array_equal(in_bank, in_shop)
    assert companies.bank_train["occupation"].null_count > 0
    assert companies.bank_train["income"].null_count > 0
    assert companies.shop["basket_value"].null_count > 0
    assert set(companies.bank_test[LABEL].to_pylist()) == {"yes", "no"}


def test_the_files_hold_the_tables(tmp_path: Path) -> None:
    from woodlot.data.sources import TableSource

    companies = make_companies(500, seed=1)
    files = write_companies(companies, tmp_path, tmp_path)
    read = {
        party: TableSource("customers", ID, path=tmp_path / files[party][table]).read().arrow
        for party, table in TABLES.items()
    }
    assert read["bank"].equals(companies.bank_train)
    assert read["shop"].to_pydict() == companies.shop.to_pydict()
