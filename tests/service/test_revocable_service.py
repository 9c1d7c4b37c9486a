"""Revocable forests between organisations: grown, encrypted, left at all levels, and killed on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from kill_stage import Stage, kill_through
from processes import Processes, processes, three_companies, wait_until
from small_jobs import COORDINATOR, user_of
from typer.testing import CliRunner
from world import PROTECTS, TRUSTED, World

import woodlot as wl
from woodlot.cli import app
from woodlot.connected import ConnectedFederation
from woodlot.exceptions import DataError, EpochError, PolicyError
from woodlot.federation import Labels
from woodlot.federation.local_revocable import Encryption
from woodlot.jobs.key_store import KeyStore
from woodlot.protocols.revocable.share_messages import SharesOfModel
from woodlot.service.client import JobFailed
from woodlot.service.encrypted import encrypted_order, make_keys, predict_encrypted

TRIO = ("bank", "shop", "club")
POLICY = (
    PROTECTS
    | TRUSTED
    | {
        "train": ["alice"],
        "predict": ["alice"],
        "weak_keys": True,
        "lead": ["coordinator", "holder"],
        "protocols": ["align", "predict", "train-revocable", "revoke-revocable", "keys", "predict-encrypted"],
    }
)
SHORT = Encryption(512, "test")
SMALL: dict[str, Any] = {"n_estimators": 4, "max_depth": 3, "random_state": 2}
PARAMS: dict[str, Any] = SMALL | {"scheme": "paper", "encryption": SHORT}
LABELS = Labels("bank", "late", None)
MADE_BY = {"helper": "helper", "key_service": "keys"}
HOLDERS = ("helper", "keys")
"""Who keeps shares."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    world = World(tmp_path_factory.mktemp("revocable"), three_companies())
    for party in TRIO:
        world.settings[party]["policy"] = POLICY | ({"labels_to_coordinator": True} if party == "bank" else {})
    world.settings["shop"]["tables"]["customers"] |= {"labels": ["visits"], "features": ["visits", "basket"]}
    world.key_members({name: POLICY[name] for name in ("train", "predict", "weak_keys")})
    with processes(world) as started:
        started.wait_connected()
        yield started


@pytest.fixture
def user(services: Processes) -> Iterator[ConnectedFederation]:
    with connected(services.world) as federation:
        yield federation


def connected(world: World, parties: tuple[str, ...] = TRIO) -> ConnectedFederation:
    return user_of(world, parties=parties, helper="helper", key_service="keys")


def fit(user: ConnectedFederation, **params: Any) -> wl.RevocableForestClassifier:
    return wl.RevocableForestClassifier(**(PARAMS | params)).fit(user, y="bank.late")


def joined(user: ConnectedFederation, tables: dict[str, dict[str, pa.Table]], model: Any) -> dict[str, Any]:
    """The common customers' rows as a user has them who knows everything, by party.column."""
    parties = model if isinstance(model, tuple) else model.forest_.coordinator.parties
    frames = {p: tables[p]["customers"].to_pandas().set_index("id") for p in parties}
    ids = sorted(set.intersection(*(set(frame.index) for frame in frames.values())))
    return {
        f"{p}.{column}": frame.loc[ids, column].to_numpy()
        for p, frame in frames.items()
        for column in frame.columns
        if column != "late"
    }


def keys_at(world: World, member: str) -> bytes:
    folder = world.root / member / "state" / "keys"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*"))) if folder.exists() else b""


@pytest.mark.slow
def test_grown_encrypted_and_left(services: Processes, user: ConnectedFederation, tmp_path: Path) -> None:
    world, tables = services.world, three_companies()
    model = fit(user, oob_score=True)
    local = wl.Federation.local({p: tables[p]["customers"] for p in TRIO}, id="id")
    assert 0 < model.oob_score_ <= 1
    assert model.oob_curve_.points()[-1] == (model.n_estimators, model.oob_score_)
    clear = model.predict_proba(user)
    columns = joined(user, tables, model)
    outputs = model.predict_encrypted(pa.table(columns))
    np.testing.assert_array_equal(np.sort(outputs[:, 0]), np.sort(clear[:, 0]))
    assert model.score(user, encrypted_splits=True) == model.score(user) > 0.7
    assert local.n_rows == len(outputs)

    # saved and loaded, it is the same model of the same members
    model.save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model")
    with pytest.raises(PolicyError, match="of the test setting, too short for use"):
        loaded.predict_encrypted(pa.table(columns), federation=user)
    loaded.set_params(encryption=SHORT)
    np.testing.assert_array_equal(loaded.predict_encrypted(pa.table(columns), federation=user), outputs)
    with pytest.raises(DataError, match="give federation"):
        loaded.predict_encrypted(pa.table(columns))

    trained = str(model.forest_.model)
    stale = encrypted_order(user.client, trained, columns, setting="test")
    old = KeyStore(world.root / "helper" / "state" / "keys").load(trained, "")[0]
    assert old is not None
    receipt = model.revoke("shop", level=2)
    statement = receipt.statement
    assert (statement.keys_before, statement.keys_after) == (1, 2)
    assert len(statement.revoked_key) == 64
    assert statement.notified == ("bank", "club")
    assert statement.scores is not None
    assert old.secret.hex().encode() not in keys_at(world, "helper")  # nothing of the first epoch is left
    rest = {name: values for name, values in columns.items() if not name.startswith("shop.")}
    outputs = model.predict_encrypted(pa.table(rest))
    with connected(world, ("bank", "club")) as pair:
        pair._alignment = user.client.job(str(model.forest_.model))
        np.testing.assert_array_equal(np.sort(outputs[:, 0]), np.sort(model.predict_proba(pair)[:, 0]), strict=True)
        assert model.score(pair, encrypted_splits=True) == model.score(pair)
    # the leaver is told when it is there: it erases its part and its keys
    wait_until(lambda: not keys_at(world, "shop"), "shop to be told")
    assert not (world.root / "shop" / "state" / "models" / trained).exists()
    with pytest.raises(DataError, match="replaced by"):
        user.client.submit(stale)
    second = msgspec.structs.replace(
        encrypted_order(user.client, str(model.forest_.model), rest, setting="test"), epoch=1
    )
    with pytest.raises(EpochError, match="encrypt it again"):
        user.client.submit(second)

    # exact: with nobody but the label holder left, it is the forest that the label holder grows alone
    receipt = model.revoke("club", level=3)
    assert (receipt.statement.keys_before, receipt.statement.keys_after) == (2, 2)
    with connected(world, ("bank",)) as alone:
        alone._alignment = user.client.job(str(model.forest_.model))
        fresh = fit(alone, oob_score=True)
        assert receipt.statement.after["coordinator"] == user.client.find_model(str(fresh.forest_.model)).forest
    own = {name: values for name, values in rest.items() if name.startswith("bank.")}
    again = fresh.predict_encrypted(pa.table(own), federation=user)
    np.testing.assert_array_equal(model.predict_encrypted(pa.table(own)), again)
    assert len(model.receipts_) == 2


@pytest.mark.slow
def test_the_commands_and_what_is_refused(services: Processes, user: ConnectedFederation, tmp_path: Path) -> None:
    world = services.world
    access = ["--coordinator", world.address, "--identity", str(world.root / "alice" / "identity")]

    def call(*words: str, fails: bool = False) -> Any:
        told = CliRunner().invoke(app, [*words, *access, "--json"])
        assert (told.exit_code != 0) == fails, told.output
        return json.loads(told.stdout) if not fails else told.output

    train = ["train", "--y", "bank.late", "--task", "classification", "--tables", "customers", "--name", "short"]
    sizes = ["--set", "kind=revocable", "--set", "n_estimators=2", "--set", "max_depth=2", "--set", "random_state=1"]
    assert "helper and a key service" in call(*train, *sizes, fails=True)
    for party in TRIO:
        train += ["--party", party]
    simulated = call(*train, *sizes, "--set", "encryption=simulated")
    with pytest.raises(DataError, match="no keys"):
        user.client.submit(user.revoke_order(user.client.find_model(simulated["model"]), "shop", 2, LABELS))
    told = call(
        "revoke", simulated["model"], "shop", "--y", "bank.late", "--tables", "customers", "--lead", "coordinator"
    )
    assert told["level"] == 1

    model = fit(user)
    name = str(model.forest_.model)
    columns = joined(user, three_companies(), model)
    pa.csv.write_csv(pa.table(columns), tmp_path / "rows.csv")
    encrypted = ["predict", "--model", name, "--method", "encrypted", "--rows", str(tmp_path / "rows.csv")]
    assert "--setting test" in call(*encrypted, fails=True)
    members = ["--helper", "helper", "--key-service", "keys"]
    shared = call(*train, *sizes, *members, "--name", "shared")["model"]  # with shares, as nothing else is said
    told = call("predict", "--model", shared, *encrypted[3:], *members)
    assert len(told["answers"]["row"]) == len(columns["bank.age"])
    assert "keeps no encrypted splits" in call(
        "predict", "--model", shared, "--tables", "customers", "--score", "bank.late", "--lead", "coordinator",
        "--method", "encrypted-splits", fails=True,
    )  # fmt: skip
    assert "the helper 'helper', not 'shop'" in call(*encrypted, "--setting", "test", "--helper", "shop", fails=True)
    scored = ["predict", "--model", name, "--tables", "customers", "--score", "bank.late", "--lead", "coordinator"]
    assert call(*scored, "--method", "encrypted-splits")["score"] == call(*scored)["score"]
    answers = call(*encrypted, "--setting", "test", "--helper", "helper", "--key-service", "keys")
    outputs = model.predict_encrypted(pa.table(columns))
    np.testing.assert_array_equal(answers["answers"]["probability_yes"], outputs[:, list(model.classes_).index("yes")])
    call("jobs", "attach", answers["job"], "--out", str(tmp_path / "answers.parquet"))
    assert pa.parquet.read_table(tmp_path / "answers.parquet").to_pydict() == answers["answers"]
    for wrong, words in [({"bank.age": [float("nan")]}, "missing"), ({"bank.age": [float("inf")]}, "finite|infinity")]:
        with pytest.raises((DataError, ValueError), match=words):
            model.predict_encrypted(pa.table(wrong))
    with pytest.raises(JobFailed, match=r"lacks \d+ of the \d+ features"):
        model.predict_encrypted(pa.table({"bank.age": columns["bank.age"]}))
    with pytest.raises(DataError, match="holds the labels"):
        model.revoke("bank", level=2)
    with pytest.raises(DataError, match="not a party"):
        model.revoke("mill", level=2)
    order = user.revoke_order(user.client.find_model(name), "shop", 2, LABELS)
    for changed in ({"helper": "keys", "key_service": "helper"}, {"keys": "0" * 32}):
        with pytest.raises(DataError, match="helper and key service of this model"):
            user.client.submit(msgspec.structs.replace(order, **changed))
    with user_of(world, "bob", parties=TRIO) as bob, pytest.raises(PolicyError, match="only alice"):
        bob.client.submit(order)
    # labels go to the coordinator only where the policy of their holder says so
    with pytest.raises(JobFailed, match="labels_to_coordinator"):
        wl.RevocableForestClassifier(**PARAMS).fit(user, y="shop.visits")


def fit_shares(user: ConnectedFederation, **params: Any) -> wl.RevocableForestClassifier:
    return wl.RevocableForestClassifier(**(SMALL | params)).fit(user, y="bank.late")


@pytest.mark.slow
def test_shares_are_the_default_between_organisations(
    services: Processes, user: ConnectedFederation, tmp_path: Path
) -> None:
    """Grown, asked, its shares made again, and left at levels 1 and 2: nothing of the leaver is left at the holders."""
    world, client = services.world, user.client
    model = fit_shares(user)
    assert model.scheme == "auto"
    trained = str(model.forest_.model)
    columns = joined(user, three_companies(), model)
    outputs = model.predict_encrypted(pa.table(columns))
    np.testing.assert_array_equal(np.sort(outputs[:, 0]), np.sort(model.predict_proba(user)[:, 0]))
    with pytest.raises(DataError, match="keeps no encrypted splits"):
        model.score(user, encrypted_splits=True)
    model.save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_encrypted(pa.table(columns), federation=user), outputs)
    with pytest.raises(PolicyError, match="said to be hidden by scheme='shares', not 'paper'"):
        loaded.set_params(scheme="paper").predict_encrypted(pa.table(columns), federation=user)

    # its shares are made again, under new keys; the scheme stays
    before = {member: held_shares(world, member, trained) for member in HOLDERS}
    made = make_keys(client, trained, **MADE_BY)
    assert isinstance(made, SharesOfModel)
    assert made.epoch == 2
    for member in HOLDERS:
        assert not in_state(world, member, before[member].values())
    np.testing.assert_array_equal(model.predict_encrypted(pa.table(columns)), outputs)
    with pytest.raises(DataError, match="this model has scheme='shares' and the order says 'paper'"):
        make_keys(client, trained, **MADE_BY, scheme="paper")

    # level 1: the leaver's shares are deleted, and what it has in common with the holders
    stale = encrypted_order(client, trained, columns)
    held = {member: held_shares(world, member, trained) for member in HOLDERS}
    common = {member: KeyStore(keys_folder(world, member)).load(trained, "another job")[0] for member in HOLDERS}
    for member, keys in common.items():
        assert keys is not None
        assert in_state(world, member, [held[member]["shop"]]) == {held[member]["shop"]}  # the search finds it
        assert in_state(world, member, [keys.peers["shop"]])
    receipt = model.revoke("shop", level=1)
    assert (receipt.statement.keys_before, receipt.statement.keys_after) == (2, 2)
    assert receipt.statement.revoked_key.startswith("shares ")
    for member, keys in common.items():
        assert keys is not None
        assert not in_state(world, member, [*held[member].values(), keys.peers["shop"]])
        assert set(held_shares(world, member, trained)) == {"bank", "club"}
        assert not list(keys_folder(world, member).glob(f"{trained}-*.secret"))  # nothing to make them again from
    with pytest.raises(DataError, match="replaced by"):
        client.submit(stale)
    rest = {name: values for name, values in columns.items() if not name.startswith("shop.")}
    outputs = model.predict_encrypted(pa.table(rest))
    with connected(world, ("bank", "club")) as pair:
        pair._alignment = client.job(str(model.forest_.model))
        np.testing.assert_array_equal(np.sort(outputs[:, 0]), np.sort(model.predict_proba(pair)[:, 0]))
    wait_until(lambda: not (world.root / "shop" / "state" / "models" / trained).exists(), "shop to be told")

    # level 2: new keys between all that stay
    receipt = model.revoke("club", level=2)
    assert (receipt.statement.keys_before, receipt.statement.keys_after) == (2, 3)
    for member, keys in common.items():
        assert keys is not None
        assert not in_state(world, member, keys.peers.values())
        assert set(held_shares(world, member, trained)) == {"bank"}
    own = pa.table({name: values for name, values in rest.items() if name.startswith("bank.")})
    assert model.predict_encrypted(own).shape == outputs.shape


@pytest.mark.slow
def test_shares_of_who_leaves_at_level_3_are_gone_and_the_forest_is_exact(
    services: Processes, user: ConnectedFederation
) -> None:
    world, client = services.world, user.client
    model = fit_shares(user, oob_score=True)
    trained = str(model.forest_.model)
    columns = joined(user, three_companies(), model)
    stale = encrypted_order(client, trained, columns)
    held = {member: held_shares(world, member, trained) for member in HOLDERS}
    common = {member: KeyStore(keys_folder(world, member)).load(trained, "another job")[0] for member in HOLDERS}
    receipt = model.revoke("shop", level=3)
    statement = receipt.statement
    assert (statement.level, statement.exact, statement.notified) == (3, True, ("bank", "club"))
    assert (statement.keys_before, statement.keys_after) == (1, 1)
    assert statement.revoked_key.startswith("shares ")
    for member, keys in common.items():
        assert keys is not None
        assert not in_state(world, member, [*held[member].values(), keys.peers["shop"]])
        assert set(held_shares(world, member, trained)) == {"bank", "club"}
    with pytest.raises(DataError, match="replaced by"):
        client.submit(stale)
    with connected(world, ("bank", "club")) as pair:
        pair._alignment = client.job(str(model.forest_.model))
        fresh = fit_shares(pair, oob_score=True)  # on the training's rows, and without the shop from the start
        assert statement.after["coordinator"] == client.find_model(str(fresh.forest_.model)).forest
        clear = model.predict_proba(pair)
    rest = pa.table({name: values for name, values in columns.items() if not name.startswith("shop.")})
    outputs = model.predict_encrypted(rest)
    np.testing.assert_array_equal(outputs, fresh.predict_encrypted(rest, federation=user))
    np.testing.assert_array_equal(np.sort(outputs[:, 0]), np.sort(clear[:, 0]))
    wait_until(lambda: not (world.root / "shop" / "state" / "models" / trained).exists(), "shop to be told")


@pytest.mark.slow
def test_a_job_file_orders_a_forest_with_shares(services: Processes, tmp_path: Path) -> None:
    """Trained, asked for rows that nobody reads, and left: all by one job.toml."""
    world = services.world
    file = tmp_path / "job.toml"
    file.write_text(f"""
        coordinator = "{world.address}"
        identity = "{world.root / "alice" / "identity"}"

        [job]
        y = "bank.late"
        task = "classification"
        tables = {{ bank = "customers", shop = "customers", club = "customers" }}
        name = "by-file"
        lead = "coordinator"
        helper = "helper"
        key_service = "keys"

        [forest]
        kind = "revocable"
        scheme = "shares"
        n_estimators = 3
        max_depth = 3
        random_state = 2
        """)

    def call(*words: str) -> Any:
        told = CliRunner().invoke(app, [*words, "--json"])
        assert told.exit_code == 0, told.output
        return json.loads(told.stdout)

    trained = call("train", str(file))["model"]
    for member in HOLDERS:
        assert set(held_shares(world, member, trained)) == set(TRIO)
    with connected(world) as user:
        order = user.client.job(trained)
        assert (order.kind, order.state) == ("train-revocable", "done")
        columns = joined(user, three_companies(), user.client.find_model(trained).parties)
    rows = tmp_path / "rows.csv"
    pa.csv.write_csv(pa.table(columns), rows)
    asked = ["predict", "--model", "by-file", "--method", "encrypted", "--rows", str(rows), "--job", str(file)]
    assert len(call(*asked)["answers"]["row"]) == len(columns["bank.age"])
    left = call("revoke", "by-file", "shop", "--job", str(file), "--out", str(tmp_path / "receipt.json"))
    assert (left["level"], left["party"]) == (1, "shop")
    for member in HOLDERS:
        assert set(held_shares(world, member, trained)) == {"bank", "club"}


def keys_folder(world: World, member: str) -> Path:
    return world.root / member / "state" / "keys"


def held_shares(world: World, member: str, keyring: str) -> dict[str, bytes]:
    """What a holder keeps of each party's splits."""
    store = KeyStore(keys_folder(world, member))
    keys, _ = store.load(keyring, "another job")
    assert keys is not None
    return {name: one.data for name, one in store.shares(keyring).load(keys.registered).items()}


def in_state(world: World, member: str, wanted: Iterable[bytes]) -> set[bytes]:
    """Which bytes are found in any file below a member's state folder, databases and their logs too."""
    files = [path.read_bytes() for path in sorted((world.root / member / "state").rglob("*")) if path.is_file()]
    return {data for data in wanted if any(data in file or data.hex().encode() in file for file in files)}


def test_a_party_orders_its_own_leaving_of_a_forest_with_shares(services: Processes, user: ConnectedFederation) -> None:
    """Protocol 3, line 1: its own identity signs, though no policy lists it."""
    world = services.world
    model = fit_shares(user)
    trained = str(model.forest_.model)
    held = {member: held_shares(world, member, trained)["shop"] for member in HOLDERS}
    with user_of(world, "shop", parties=TRIO, helper="helper", key_service="keys") as leaver:
        order = leaver.revoke_order(leaver.client.find_model(trained), "shop", 1, LABELS)
        assert order.is_shared
        leaver.client.finish(leaver.client.submit(order).job)
        receipt = leaver.client.receipt(order.job)
    assert receipt.statement.party == "shop"
    assert receipt.statement.revoked_key.startswith("shares ")
    for member in HOLDERS:
        assert not in_state(world, member, [held[member]])


@pytest.mark.slow
@pytest.mark.parametrize("who", ["helper", "a provider"])
def test_a_prediction_waits_for_who_is_away(stage: Stage[ConnectedFederation], who: str) -> None:
    client, services = stage.user.client, stage.running
    rows = {
        name: [0.1] for name in ("bank.age", "bank.income", "shop.visits", "shop.basket", "club.years", "club.dues")
    }
    kept = stage.run(stage.train_order())[0]
    splits = client.find_model(kept).splits  # rows come in a secret order, so not every party has some each time
    victim = who if who == "helper" else max(TRIO[1:], key=lambda party: splits.get(party, 0))
    before = predict_encrypted(client, kept, rows, setting="test")
    services.kill(victim)
    try:
        job = client.submit(encrypted_order(client, kept, rows, setting="test")).job
        wait_until(lambda: client.job(job).waiting_for == (victim,), f"the prediction to wait for {victim}")
    finally:
        services.restart(victim)
    assert client.finish(job).state == "done"
    np.testing.assert_array_equal(client.predictions(job).outputs, before)


@pytest.fixture(scope="module")
def stage(services: Processes) -> Iterator[Stage[ConnectedFederation]]:
    plan = wl.RevocableForestClassifier(**PARAMS).make_plan()

    def train_order(user: ConnectedFederation) -> Any:
        return user.train_revocable_order(plan, LABELS, {"params": {}}, SHORT)

    with ThreadPoolExecutor(1) as pool, connected(services.world) as user:
        yield Stage(services, user, pool, train_order, lambda job: user.client.find_model(job).forest)


@pytest.fixture(scope="module")
def undisturbed(stage: Stage[ConnectedFederation]) -> str:
    return stage.run(leaving(stage, stage.undisturbed))[0]


def leaving(stage: Stage[ConnectedFederation], model: str) -> Any:
    return stage.user.revoke_order(stage.user.client.find_model(model), "shop", 2, LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["bank", "club", COORDINATOR])
def test_a_death_at_any_round_of_a_test_by_encrypted_splits_changes_nothing(
    stage: Stage[ConnectedFederation], victim: str
) -> None:
    """The party comes back with the paths on which rows have gone, and the splits that it was shown."""
    user = stage.user

    def order(**fields: Any) -> Any:
        return user.predict_order(stage.undisturbed, "bank.late", how="encrypted-splits", **fields)

    job, facts = stage.run(order())
    answers = user.client.predictions(job).outputs
    total, again = stage.replies(victim, job), order()
    # a coordinator takes long to come back: it is killed before, in the middle of, and after the test of the rows
    places = {total // 2, total - 4, total - 1} if victim == COORDINATOR else set(range(total))
    assert kill_through(stage, again, victim, places)
    np.testing.assert_array_equal(user.client.predictions(again.job).outputs, answers)
    assert user.client.job(again.job).score == facts.score is not None


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["bank", "helper", COORDINATOR])
def test_a_death_in_the_middle_of_a_revocation_changes_nothing(
    stage: Stage[ConnectedFederation], undisturbed: str, victim: str
) -> None:
    client = stage.user.client
    total = stage.replies(victim, undisturbed)
    order = leaving(stage, stage.run(stage.train_order())[0])
    # while keys are prepared, before the new epoch is committed, and after
    assert kill_through(stage, order, victim, {total // 2, total - 2, total - 1, total})
    assert client.find_model(order.job).forest == client.find_model(undisturbed).forest
    statement = client.receipt(order.job).statement
    assert (statement.keys_before, statement.keys_after) == (1, 2)
    assert not [m for m in client.models() if m.model == order.model]
    rows = {"bank.age": [0.1], "bank.income": [0.2], "club.years": [0.3], "club.dues": [0.4]}
    outputs = [predict_encrypted(client, model, rows, setting="test") for model in (order.job, undisturbed)]
    np.testing.assert_array_equal(*outputs)
