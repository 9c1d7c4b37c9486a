"""Secrets are planted in a federation, which then works and fails; nothing that it leaves behind may hold them."""

from __future__ import annotations

import logging
import os
import re
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
from crawler import crawled, trees_of
from planted import ALIGNMENT_SECRET, COLUMNS, HITS, IDS, TARGET, key_forms, planted_tables
from world import World, running

import woodlot as wl
from wire_search import disguised, floats, search, texts
from woodlot.dashboard.app import Pages
from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.server import Server
from woodlot.dashboard.views import CoordinatorView
from woodlot.data.tables import read_table
from woodlot.exceptions import WoodlotError
from woodlot.identity.identity import Identity
from woodlot.privacy.derivation import SECRET_BYTES
from woodlot.protocols.align.align_keys import JobKeys
from woodlot.protocols.core.agreement import Agreed
from woodlot.protocols.core.target import Target
from woodlot.protocols.core.target_codes import ClassCode, TargetCode
from woodlot.protocols.revocable.epoch_keys import EpochKeys
from woodlot.protocols.revocable.key_messages import PublicGroup
from woodlot.protocols.rows.row_client import Holdings
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.service.party import Party

OF_A_PARTY = re.compile(r"woodlot\.(service\.party|jobs\.(party_job|home|\w+\.\w+_work)\b)")
"""What only parties log."""


@dataclass
class Left:
    """What a federation has left behind: log lines at every level, errors that a user got, and everybody's files."""

    world: World
    log: str
    errors: list[str] = field(default_factory=list)

    def secrets(self, *, owners: Iterable[str] = tuple(COLUMNS)) -> dict[str, list[bytes]]:
        """All that was planted, columns of these owners."""
        root, tables = self.world.root, planted_tables()
        keys = [root / name / "identity" / "key.pem" for name in (*COLUMNS, "coordinator", "alice")]
        hidden = {
            "keys": [form for key in (*keys, root / "authority" / "ca-key.pem") for form in key_forms(key)],
            "alignment secret": list(disguised([ALIGNMENT_SECRET.encode()])),
            "party secrets": [(root / name / "state" / "secret").read_bytes().strip() for name in COLUMNS],
        }
        names = [(party, name) for party in owners for name in COLUMNS[party]]
        values = [tables[party]["customers"][name].to_numpy() for party, name in names]
        return hidden | {
            "ids": list(texts(IDS)),
            "names of columns": list(texts([*(name for _, name in names), *([TARGET] if "bank" in owners else [])])),
            "values": list(floats(np.concatenate(values))),
            "labels": list(floats(tables["bank"]["customers"][TARGET].to_numpy())),
        }


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    root = tmp_path_factory.mktemp("planted")
    before = os.umask(0)  # as wide as it can be: what is private must say so itself
    lines = _Lines()
    logging.getLogger().addHandler(lines)
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.DEBUG)
    try:
        world = World(root, planted_tables(), labels=[TARGET])
        for party in COLUMNS:
            secret = root / party / "alignment.secret"
            secret.touch(0o600)
            secret.write_text(ALIGNMENT_SECRET)
            world.settings[party]["alignment"] = {"secret_file": str(secret)}
        made = Left(world, "")
        with running(world):
            where = (world.address, root / "alice" / "identity")
            with wl.connect(*where, tables="customers", parties=["bank", "shop"]) as federation:
                model = wl.FederatedForestRegressor(3, max_depth=4, random_state=0).fit(federation, f"bank.{TARGET}")
                model.predict(federation)
                for wrong in (f"shop.{TARGET}", "bank.no_such_column", "nobody.x"):
                    made.errors.append(
                        _error(lambda wrong=wrong: wl.FederatedForestRegressor(2).fit(federation, wrong))
                    )
            (root / "shop" / "customers.parquet").write_bytes(b"PAR1 damaged")
            with wl.connect(*where, tables="customers", parties=["bank", "shop"]) as federation:
                made.errors.append(_error(lambda: model.predict(federation)))
        made.log = "\n".join(lines.found)
        yield made
    finally:
        os.umask(before)
        logging.getLogger().removeHandler(lines)
        logging.getLogger().setLevel(level)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))  # with the traceback, where there is one


def _error(fails: Any) -> str:
    with pytest.raises(WoodlotError) as caught:
        fails()
    return "".join(traceback.format_exception(caught.value))


def test_no_log_line_of_any_level_holds_a_secret(left: Left) -> None:
    assert "woodlot" in left.log
    secrets = left.secrets()
    names = secrets.pop("names of columns")
    assert search(secrets, [("log", left.log.encode())]) == {}
    # A party's own log may name its own columns, for its operator; the coordinator and the driver know none.
    others = "\n".join(line for line in left.log.splitlines() if not OF_A_PARTY.search(line))
    assert search({"names of columns": names}, [("log", others.encode())]) == {}


def test_no_error_that_reaches_a_user_tells_more_than_the_user_has_said(left: Left) -> None:
    secrets = left.secrets()
    said = {name.encode() for name in (TARGET, "no_such_column")}
    secrets["names of columns"] = [name for name in secrets["names of columns"] if name not in said]
    assert search(secrets, [("error", error.encode()) for error in left.errors]) == {}


def test_nothing_of_the_coordinators_state_holds_a_partys_secret(left: Left) -> None:
    """Labels neither: leaves answer with means of targets, one row's where it is alone, and the leader has them."""
    state = left.world.root / "coordinator" / "state"
    files = [(path.name, path.read_bytes()) for path in state.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert search(left.secrets(), files, short_hits=HITS) == {}
    assert (left.world.root / "bank" / "state" / "led" / "models").is_dir(), "the leader has the model"


@pytest.mark.slow
def test_no_page_of_the_dashboard_shows_a_secret(left: Left) -> None:
    """Every page that a link or a picture leads to, in every role; a role may see its own columns."""
    world = left.world
    coordinator = CoordinatorView(world.coordinator_config())
    pages = Pages(coordinator, [PartyView(world.party_config(party)) for party in COLUMNS])
    with ExitStack() as stack:
        stack.callback(coordinator.store.close)
        server = stack.enter_context(Server(pages.app, "127.0.0.1", 0))
        server.start()
        browser = stack.enter_context(httpx.Client(base_url=server.address, follow_redirects=True, timeout=300))
        browser.get(server.url.removeprefix(server.address))
        jobs = [job.job for job in coordinator.jobs()]
        model = next(job.job for job in coordinator.jobs() if job.kind == "train" and job.state == "done")
        for role in ("coordinator", *COLUMNS):
            also = [*trees_of(model, 3), *(f"/jobs/{job}/rounds" for job in jobs)]
            shown = [(path, page.content) for path, page in crawled(browser, role, also).items()]
            assert len(shown) > len(jobs) + 5
            secrets = left.secrets(owners=[party for party in COLUMNS if party != role])
            if role != "shop":
                del secrets["labels"]  # the bank's own, and the answers of leaves at the coordinator
            assert search(secrets, shown, short_hits=HITS) == {}, role
            own = [name for name in COLUMNS.get(role, []) if any(name.encode() in page for _, page in shown)]
            assert own or role == "coordinator", "the search finds what is there"


def test_a_partys_state_holds_neither_its_key_nor_anothers_rows(left: Left) -> None:
    for party, other in (("bank", "shop"), ("shop", "bank")):
        state = left.world.root / party / "state"
        files = [
            (path.name, path.read_bytes()) for path in state.rglob("*") if path.is_file() and path.name != "secret"
        ]
        foreign = left.secrets(owners=[other])
        del foreign["ids"]  # which both have
        if party == "bank":
            del foreign["labels"]
        assert search(foreign, files, short_hits=HITS) == {}


def test_what_is_private_is_its_owners_alone_whatever_the_umask(left: Left) -> None:
    private = {"key.pem", "ca-key.pem", "secret", "alignment.secret"}
    found = set()
    for path in left.world.root.rglob("*"):
        open_to_others = stat.S_IMODE(path.stat().st_mode) & 0o077
        if path.name in private or ".sqlite" in path.name:
            found.add(path.name)
            assert not open_to_others, f"{path} is open to others"
        if path.name in ("state", "identity"):
            assert not open_to_others, f"{path} is open to others"
    assert private <= found
    assert {"journal.sqlite", "jobs.sqlite"} <= found


def test_no_repr_shows_a_secret(left: Left) -> None:
    """What a debugger, a traceback with locals or a careless log line would print."""
    owl, root = ALIGNMENT_SECRET.encode(), left.world.root
    rows = planted_tables()["bank"]["customers"].drop(["id"])
    table, target = read_table(rows), Target.of_values(rows[TARGET].to_numpy())
    group = PublicGroup(modulus=b"m", generator=b"g", epoch=1)
    identity = Identity.load(root / "bank" / "identity")
    party = Party(left.world.party_config("bank"))
    things: list[Any] = [
        identity, identity.credentials, target, table, table.columns[0], party, vars(party),
        party._sessions, party._sessions._open_job("0" * 32), vars(party._sessions._open_job("0" * 32)),
        JobKeys("bank", "bank", b"t", {"shop": owl}, owl), Agreed(b"t", {"shop": owl}),
        Holdings(name="x", table=table, target=target, entropy=lambda p: owl, lasting=lambda p: owl, shared_secret=owl),
        EpochKeys(epoch=1, group=group, setting="test", helper="h", key_service="k", peers={"h": owl}, secret=owl),
        ClassCode.draw(3, bytes(SECRET_BYTES)), TargetCode.draw(target.values, 40.0, owl),
        VerticalParty("bank", table, target=target, secret=owl),
    ]  # fmt: skip
    try:
        shown = "\n".join(map(repr, things)) + "\n" + "\n".join(map(str, things))
    finally:
        party.close()
    assert search(left.secrets(), [("repr", shown.encode())]) == {}


def test_a_service_warns_of_unseen_categories_without_naming_one() -> None:
    code = (
        "import warnings; from woodlot.cli._service import start_logging; start_logging('text', 'info'); "
        "from woodlot.trees.encoding import UnseenWarning; "
        "warnings.warn(UnseenWarning('illness', ['leprosy', 'scurvy'])); warnings.warn('others are told as they are')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "column 'illness' has 2 categories unseen in training; they are treated as missing" in done.stderr
    assert "others are told as they are" in done.stderr
    assert "leprosy" not in done.stderr.replace(code, "")


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_error_that_nobody_catches_is_shown_without_its_words(form: str) -> None:
    """In threads, where objects are removed, in what libraries log, and at the end; errors of our own keep theirs."""
    code = f"""
import logging, threading
from woodlot.cli._service import start_logging
from woodlot.exceptions import DataError
start_logging({form!r}, "info")
row = "".join(["lep", "rosy"])
def fails():
    try:
        raise KeyError(row)
    except KeyError:
        raise ValueError(f"cannot use {{row}}")
class Thing:
    def __del__(self):
        fails()
thread = threading.Thread(target=fails)
thread.start()
thread.join()
Thing()
try:
    raise DataError("told as it is") from RuntimeError(row)
except DataError:
    logging.getLogger("library").exception("a line")
fails()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "leprosy" not in done.stdout + done.stderr
    for words in ("a thread has failed", "could not be removed", "the service has failed", "DataError: told as it is"):
        assert words in done.stderr
    assert done.stderr.count("ValueError") == done.stderr.count("KeyError") == 3
    assert done.stderr.count("RuntimeError") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads limits as Linux has them")
def test_a_service_opens_as_many_files_as_it_may() -> None:
    code = (
        "import resource as r; most = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (256, most)); "
        "from woodlot.cli._service import start_logging; start_logging('text', 'info'); "
        "print(r.getrlimit(r.RLIMIT_NOFILE) == (most, most))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="reads limits as Linux has them")
def test_a_service_leaves_no_core_dump() -> None:
    code = (
        "import ctypes, resource; from woodlot.cli._service import start_logging; start_logging('text', 'info'); "
        "print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(0, 0) 0"


@pytest.mark.skipif(sys.platform != "linux", reason="reads limits as Linux has them")
def test_nor_does_a_dashboard_which_has_keys_too() -> None:
    code = (
        "import ctypes, resource, warnings; import sys, woodlot.cli; "
        "it = sys.modules['woodlot.cli.dashboard']; it.open_dashboard = lambda *_: sys.exit("
        "f'{resource.getrlimit(resource.RLIMIT_CORE)} {ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)} "
        "{warnings.showwarning.__module__}'); it.dashboard([])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "(0, 0) 0 woodlot.cli._service"
