"""Secrets are planted in services that are processes and die of kill -9; no place where they leave traces has them."""

from __future__ import annotations

import base64
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from planted import ALIGNMENT_SECRET, HITS, IDS, TARGET, amounts, key_forms
from processes import Processes, wait_until
from small_jobs import COORDINATOR, PLAN, user_of
from world import PROTECTS, TRUSTED, World

import woodlot as wl
from wire_search import disguised, floats, search, texts
from woodlot.connected import ConnectedFederation
from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import WoodlotError
from woodlot.federation import Labels
from woodlot.federation.local_revocable import Encryption
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.key_store import KeyStore
from woodlot.jobs.orders import Order
from woodlot.jobs.revocable.stored_epochs import _StoredEpoch
from woodlot.runtime.journal import Journal
from woodlot.service.client import Client
from woodlot.trees import kernels

HERE = Path(__file__).resolve().parent
PARTIES = ("bank", "shop", "club")
MEMBERS = ("helper", "keys")
EVERYBODY = (COORDINATOR, *PARTIES, *MEMBERS)
COLUMNS = {
    "bank": ("overdraft_on_tuesdays", "weight_of_shoes"),
    "shop": ("bottles_of_absinthe",),
    "club": ("hours_of_bagpipes",),
}
ILLNESS, ILLNESSES = "what_the_doctor_said", ("leprosy-of-the-nose", "scurvy-of-the-toes")
MEALS = ("grams_of_haggis", "pints_of_stout")
"""Columns of the table that all have, for forests over rows; everybody knows their names, and nobody others' values."""
pytestmark = pytest.mark.slow

POLICY = PROTECTS | TRUSTED | {
    "train": ["alice"], "predict": ["alice"], "weak_keys": True, "labels_to_coordinator": True,
    "protocols": [
        "align", "train", "predict", "train-linear", "train-rows", "train-revocable", "keys", "predict-encrypted",
        "score", "revoke", "explain", "drift",
    ],
    "explains": "values", "explanations_per_day": "unlimited", "catalog": ["names"],
}  # fmt: skip
DEALT = {"keys": ("keys", COORDINATOR)}
"""Whose keys of an epoch a service knows, if not its own only: the key service has made the coordinator's."""
COMPILED = Path(kernels.__file__).parent / "__pycache__"


def planted_tables() -> dict[str, dict[str, pa.Table]]:
    rng = np.random.default_rng(12)
    n, tables = len(IDS), {}
    for party, names in COLUMNS.items():
        order = rng.permutation(n)
        columns: dict[str, Any] = {"id": [IDS[k] for k in order], **{name: amounts(rng, n) for name in names}}
        if party == "bank":
            columns[TARGET] = columns[names[0]] * 1.7 + rng.uniform(1e3, 2e3, n)
            columns[ILLNESS] = np.where(columns[names[1]] > 55_000, *ILLNESSES)
        meals = {name: amounts(rng, n) for name in MEALS}
        meals |= {"id": [f"{party}-{k}" for k in range(n)], "full": np.where(meals[MEALS[0]] > 50_000, "yes", "no")}
        tables[party] = {"customers": pa.table(columns), "meals": pa.table(meals)}
    return tables


@dataclass
class Rooms:
    """Where a federation of processes has left traces."""

    running: Processes
    environment: dict[str, bytes] = field(default_factory=dict)
    command: dict[str, bytes] = field(default_factory=dict)
    epoch_keys: dict[str, bytes] = field(default_factory=dict)
    """Of helper, key service, coordinator and providers: what each must have alone."""
    orders: list[Order] = field(default_factory=list)
    """What was ordered, and has ended."""

    @property
    def root(self) -> Path:
        return self.running.world.root

    def watch(self, name: str, script: str = "watched.py", **environment: str) -> None:
        """Have a service watched from its start, at the most talkative level, with its own temporary files."""
        for folder in ("temporary", "watch"):
            (self.root / name / folder).mkdir()
        world = self.running.world
        usual = [COORDINATOR if name == COORDINATOR else "party"]
        world.commands[name] = [*world.commands.get(name, usual), "--log-level", "debug"]
        settings = {
            "TMPDIR": f"{self.root / name / 'temporary'}",
            "WOODLOT_TEST_WATCH": f"{self.root / name / 'watch'}",
        }
        self.running.scripts[name] = (str(HERE / script), settings | environment)

    def look_at_the_living(self) -> None:
        """Note what only processes that run have: environment and command line, from outside and from inside."""
        for name in (COORDINATOR, *self.running.world.settings):
            process = Path("/proc") / str(self.running.pid(name))
            told = self.root / name / "watch" / "environment"
            os.kill(self.running.pid(name), signal.SIGUSR1)
            wait_until(told.exists, f"{name} to tell its environment")
            self.command[name] = (process / "cmdline").read_bytes()
            self.environment[name] = told.read_bytes()
            if os.access(process / "environ", os.R_OK):  # for root only, since services cannot be traced
                self.environment[name] += (process / "environ").read_bytes()

    def have_ended(self) -> bool:
        """Whether every member of every job that was ordered has noted its end."""
        for name in (*PARTIES, *MEMBERS):
            with closing(Journal.read(self.running.journal(name))) as journal:
                if not all(journal.job(order.job).ended for order in self.orders if name in order.parties):
                    return False
        return True

    # --- what is there ---

    def files(self, name: str, folder: str) -> list[tuple[str, bytes]]:
        """The files of a service below one of its folders, without the one that holds its own secret."""
        found = [path for path in sorted((self.root / name / folder).rglob("*")) if path.is_file()]
        return [(f"{name}: {path.name}", path.read_bytes()) for path in found if path.name != "secret"]

    def traces(self, name: str) -> list[tuple[str, bytes]]:
        """What must hold no secret at all: what a service says, its temporary files, environment and command line."""
        return [
            (f"{name}: log", self.running.log(name).encode()),
            (f"{name}: environment", self.environment[name]),
            (f"{name}: command line", self.command[name]),
            *self.files(name, "temporary"),
        ]

    def strayed(self, name: str) -> list[str]:
        """Files that a service has written outside of its own folders, and commands that it has run.

        Machine code of kernels that it was the first to use lies beside their sources, and depends on nothing else.
        """
        own = self.root / name
        ours = (f"open {own}/watch", f"open {own}/halt.")  # of the tests, not of the service
        allowed = (f"open {own}/state", f"open {own}/temporary", f"open {os.devnull}", *ours)
        lines = (own / "watch" / "written").read_text().splitlines()
        return [line for line in lines if not line.startswith(allowed) and not line.startswith(f"open {COMPILED}")]

    # --- what was planted ---

    def keys(self, *, without: tuple[str, ...] = ()) -> dict[str, list[bytes]]:
        """Secrets that nobody shares; without the keys of an epoch of those who may have them."""
        members = [*EVERYBODY, "alice"]
        return {
            "keys": [form for name in members for form in key_forms(self.root / name / "identity" / "key.pem")],
            "the authority's key": key_forms(self.root / "authority" / "ca-key.pem"),
            "alignment secret": list(disguised([ALIGNMENT_SECRET.encode()])),
            "party secrets": list(
                disguised((self.root / p / "state" / "secret").read_bytes().strip() for p in PARTIES)
            ),
            "epoch keys": list(disguised(key for name, key in self.epoch_keys.items() if name not in without)),
        }

    def rows(self, *, without: str = "") -> dict[str, list[bytes]]:
        """Values, labels and ids; without the table of a party, which has them."""
        tables = planted_tables()
        others = [party for party in PARTIES if party != without]
        numbers = [tables[p]["customers"][name].to_numpy() for p in others for name in COLUMNS[p]]
        numbers += [tables[p]["meals"][name].to_numpy() for p in others for name in MEALS]
        found = {
            "values": list(floats(np.concatenate(numbers))),
            "names of columns": list(texts(name for party in others for name in COLUMNS[party])),
        }
        if without != "bank":
            found["labels"] = list(floats(tables["bank"]["customers"][TARGET].to_numpy()))
            found["classes"] = list(texts(ILLNESSES))
            found["names of columns"] += texts([TARGET, ILLNESS])
        if without not in PARTIES:
            found["ids"] = list(texts(IDS))
        return found


def planted_world(root: Path, tables: dict[str, dict[str, pa.Table]]) -> World:
    world = World(root, tables, labels=[TARGET, ILLNESS, "full"])
    for party in tables:
        secret = root / party / "alignment.secret"
        secret.touch(0o600)
        secret.write_text(ALIGNMENT_SECRET)
        world.settings[party] |= {"policy": dict(POLICY), "alignment": {"secret_file": str(secret)}}
    return world


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rooms]:
    """Every kind of job is done; in the middle of another one everybody is killed."""
    world = planted_world(tmp_path_factory.mktemp("planted"), planted_tables())
    world.key_members({name: POLICY[name] for name in ("train", "predict", "weak_keys")})
    made = Rooms(Processes(world))
    try:
        for name in EVERYBODY:
            made.watch(name)
        made.running.start()
        made.running.wait_connected()
        with user_of(world, parties=PARTIES, helper="helper", key_service="keys", lead=None) as user:
            note_orders(user.client, made.orders)
            everything(user, made)
            wait_until(made.have_ended, "everybody to have noted the end of every job")
            ended = list(made.orders)
            made.look_at_the_living()
            order = user.train_order(PLAN, Labels("bank", ILLNESS, None), {})
            with made.running.halt("shop", order.job, {4}) as halt:
                user.client.submit(order)
                assert halt.wait() == 4
                for name in EVERYBODY:
                    made.running.kill(name)
        made.orders = ended
        yield made
    finally:
        made.running.close()


def note_orders(client: Client, orders: list[Order]) -> None:
    """Keep a copy of everything that a user orders from now on."""
    submit = client.submit

    def noted(order: Order) -> JobFacts:
        orders.append(order)
        return submit(order)

    client.submit = noted  # type: ignore[method-assign]


def everything(user: ConnectedFederation, rooms: Rooms) -> None:
    """A job of every kind."""
    world = rooms.running.world
    forest = wl.FederatedForestRegressor(3, max_depth=4, random_state=0).fit(user, f"bank.{TARGET}")
    for options in (
        {"wire": "decisions"},
        {"wire": "leaves"},
        {"wire": "ranks"},
        {"method": "classical"},
        {"sealed": True},
    ):
        forest.predict(user, **options)
    forest.score(user)
    with user.scoring(str(forest.forest_.model)) as scoring:
        scoring.predict(IDS[:7])
    assert "bank.weight_of_shoes" in forest.explain(user).data  # with names and values, which only the user reads
    forest.explain(user.named_rows(IDS[:7]))
    assert "shop.bottles_of_absinthe" in forest.drift(user).columns
    weights = {illness: 1.0 + k for k, illness in enumerate(ILLNESSES)}
    ill = wl.FederatedForestClassifier(3, max_depth=4, random_state=1, oob_score=True, class_weight=weights)
    ill.fit(user, f"bank.{ILLNESS}").revoke("club", level=3)
    wl.FederatedLinearRegression(tol=0.1).fit(user, f"bank.{TARGET}")
    wl.FederatedForestClassifier(1, max_depth=1, max_bins=8, random_state=0).fit(user, f"bank.{ILLNESS}")
    small: dict[str, Any] = {"n_estimators": 2, "max_depth": 2, "random_state": 2}
    row = {f"{party}.{name}": [60_000.5] for party, names in COLUMNS.items() for name in names}
    asked = pa.table(row | {f"bank.{TARGET}": [90_000.5]})
    wl.RevocableForestClassifier(**small).fit(user, f"bank.{ILLNESS}").predict_encrypted(asked)  # with shares
    weak: dict[str, Any] = {"scheme": "paper", "encryption": Encryption(512, "test")}
    left = wl.RevocableForestClassifier(**small, **weak).fit(user, f"bank.{ILLNESS}")
    left.predict_encrypted(asked)
    model = str(left.forest_.model)
    for name in (*PARTIES, *MEMBERS):
        held, _ = KeyStore(rooms.root / name / "state" / "keys").load(model, "")
        assert held is not None
        rooms.epoch_keys[name] = held.secret
    (own,) = (rooms.root / COORDINATOR / "state" / "keys" / model).iterdir()
    rooms.epoch_keys[COORDINATOR] = from_msgpack(own.read_bytes(), _StoredEpoch).share
    options: dict[str, Any] = {"tables": "meals", "parties": PARTIES, "layout": "rows"}
    with wl.connect(world.address, rooms.root / "alice" / "identity", **options) as rows:
        declared = dict.fromkeys(MEALS, (0, 100_000))
        wl.FederatedExtraTreesClassifier(2, max_depth=3, declared=declared, classes=["no", "yes"]).fit(rows, "full")


def test_logs_temporary_files_environment_and_command_line_hold_no_secret(rooms: Rooms) -> None:
    """A party's own log may name its own columns, for its operator; no other has any."""
    for name in EVERYBODY:
        traces = rooms.traces(name)
        secrets = rooms.keys() | rooms.rows()
        secrets["names of columns"] = rooms.rows(without=name)["names of columns"]
        assert search(secrets, traces, short_hits=HITS) == {}, name


def test_a_service_writes_into_its_own_folders_and_starts_no_other_program(rooms: Rooms) -> None:
    for name in EVERYBODY:
        assert rooms.strayed(name) == [], name


def test_what_a_killed_service_leaves_on_disk_is_its_own(rooms: Rooms) -> None:
    """As it lies there in the middle of a job, with what SQLite has not yet put in its place."""
    for name in EVERYBODY:
        files = rooms.files(name, "state")
        assert any(path.endswith("-wal") for path, _ in files), name
        secrets = rooms.keys(without=DEALT.get(name, (name,))) | rooms.rows(without=name)
        if name == COORDINATOR:  # which gets the illnesses in clear for the revocable forest, and no other label
            del secrets["classes"]
        assert search(secrets, files, short_hits=HITS) == {}, name


def test_nothing_is_left_of_the_messages_of_jobs_that_have_ended(rooms: Rooms) -> None:
    """Not in a database, nor in its log: each order has a sealed part for each member, like no other bytes."""
    kinds = {"train", "predict", "train-revocable", "predict-encrypted", "explain", "drift"}
    assert {order.kind for order in rooms.orders} >= kinds
    for name in (*PARTIES, *MEMBERS):
        needles = {o.job: [base64.b64encode(o.sealed[name])] for o in rooms.orders if name in o.parties}
        assert needles
        assert search(needles, rooms.files(name, "state")) == {}, name
    forgotten = [order for order in rooms.orders if order.kind == "predict-encrypted"]
    needles = {o.job: [base64.b64encode(part) for part in o.sealed.values()] for o in forgotten}
    assert search(needles, rooms.files(COORDINATOR, "state")) == {}


@pytest.fixture
def talkative(tmp_path: Path) -> Iterator[tuple[Rooms, Path]]:
    """Two parties, of which the bank does what the file says."""
    tables = planted_tables()
    world = planted_world(tmp_path, {party: tables[party] for party in ("bank", "shop")})
    made, told = Rooms(Processes(world)), tmp_path / "told"
    told.touch()
    table, stray, state = (tmp_path / place for place in ("bank/customers.parquet", "stray", "shop/state"))
    made.watch(COORDINATOR)
    made.watch("bank", "talkative.py", WOODLOT_TEST_TELLS=f"{table} {stray} {state}", WOODLOT_TEST_FAILS=str(told))
    made.watch("shop")
    try:
        made.running.start()
        made.running.wait_connected()
        yield made, told
    finally:
        made.running.close()


def test_every_place_is_really_searched(talkative: tuple[Rooms, Path]) -> None:
    """A party that tells rows in every way is found out in every one."""
    rooms, _ = talkative
    rooms.look_at_the_living()
    log, environment, command, *files = rooms.traces("bank")
    for trace in (log, environment, *files):
        assert set(search(rooms.rows(), [trace], short_hits=HITS)) >= {"ids", "values", "labels", "classes"}, trace[0]
    assert len(files) == 1
    assert command[1]
    stray, ran, planted = rooms.strayed("bank")
    assert stray == f"open {rooms.root / 'stray'}"
    assert ran.startswith("run")
    assert IDS[0][:8] in ran
    assert planted == f"open {rooms.root / 'shop' / 'state' / 'numbers'}"
    assert set(search(rooms.rows(without="shop"), rooms.files("shop", "state"), short_hits=HITS)) == {"values"}
    assert rooms.strayed("shop") == []


def test_an_error_with_rows_in_its_words_tells_them_to_nobody(talkative: tuple[Rooms, Path]) -> None:
    """The user hears the kind of the error; the party's own log has the trace as well, by which it can be found."""
    rooms, told = talkative
    begin = len(rooms.running.log("bank"))
    heard = []
    with user_of(rooms.running.world, lead=None) as user:
        user.align()
        for fault in ("opening", "reading"):
            told.write_text(fault)
            with pytest.raises(WoodlotError) as caught:
                wl.FederatedForestRegressor(2).fit(user, f"bank.{TARGET}")
            heard.append("".join(traceback.format_exception(caught.value)))
    log = rooms.running.log("bank")[begin:]
    assert "party 'bank' failed: ValueError" in heard[0]
    assert "its own log says why" in heard[1]
    for fault in ("open_training", "in read\n", "\nValueError\n", "\nKeyError\n"):
        assert fault in log
    others = [(name, rooms.running.log(name).encode()) for name in (COORDINATOR, "shop")]
    said = [("user", words.encode()) for words in heard]
    found = rooms.rows() | {"names of columns": list(texts(COLUMNS["bank"]))}
    assert search(found, [*said, *others, ("bank", log.encode())], short_hits=HITS) == {}
    journals = [
        file for name in (COORDINATOR, "shop") for file in rooms.files(name, "state") if "numbers" not in file[0]
    ]
    assert search(rooms.rows(without="shop"), journals, short_hits=HITS) == {}
