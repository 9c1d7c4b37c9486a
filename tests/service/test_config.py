"""Configuration files: what they say is what comes out, and what is wrong in them is named."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import PROTECTS

from woodlot.data.sources import TableSource
from woodlot.exceptions import ConfigError
from woodlot.jobs.kind import known
from woodlot.jobs.policy import WRITTEN, Policy
from woodlot.runtime.codec import DEFAULT_LIMIT
from woodlot.service.config import (
    ComputeConfig,
    CoordinatorConfig,
    JobConfig,
    JobSettings,
    MemberConfig,
    MonitorConfig,
    PartyConfig,
    PrivacyConfig,
)
from woodlot.service.settings import Address, Duration, Size

HERE = Path("/etc/woodlot")
TABLE = {"path": "customers.csv", "id": "customer_id", "columns": ["age", "income"]}
LABELLED = TABLE | {"columns": ["age", "default"], "labels": ["default"]}
PARTY: dict[str, Any] = {"coordinator": "hub.example:7443", "tables": {"customers": TABLE}, "policy": PROTECTS}
JOB: dict[str, Any] = {"y": "bank.default", "task": "classification", "tables": "customers"}
TRAIN: dict[str, Any] = {"coordinator": "hub.example:7443", "job": JOB}

PARTY_TOML = """
coordinator = "hub.example:7443"
identity = "keys"
n_jobs = 4
message_limit = "500 MB"

[alignment]
secret_file = "/run/secrets/alignment"

[tables.customers]
path = "data/customers.parquet"
id = "customer_id"
columns = ["age", "income", "default"]
labels = ["default"]

[tables.orders]
sql = "SELECT * FROM orders"
url = "postgresql+psycopg://reader@db/shop"
password_env = "SHOP_PASSWORD"
id = "customer_id"
columns = "*"
weights = ["amount"]
features = ["visits", "amount"]

[policy]
protocols = ["align", "train"]
train = ["alice", "bob"]
min_rows = 100
min_samples_leaf = 5
share_model = true
predictions_per_day = 1000
labels_to_coordinator = true
wire_forms = ["sealed"]
trainings_per_day = "unlimited"
receive = ["bank"]
"""

JOB_TOML = """
coordinator = "hub.example:7443"
identity = "alice"

[job]
parties = ["bank", "shop"]
tables = { bank = "customers", shop = "orders" }
y = "bank.default"
sample_weight = "bank.weight"
task = "regression"
name = "credit-2025.1"

[align]
method = "psi"

[forest]
n_estimators = 50
max_features = "sqrt"
max_depth = 8
"""


def toml(value: Any) -> str:
    """Plain values as TOML writes them, everything in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return msgspec.json.encode(value).decode()


def write(folder: Path, raw: dict[str, Any]) -> Path:
    path = folder / "some.toml"
    path.write_text("".join(f"{toml(key)} = {toml(value)}\n" for key, value in raw.items()), encoding="utf-8")
    return path


class TestFiles:
    def test_coordinator_defaults(self, tmp_path: Path) -> None:
        config = CoordinatorConfig.load(write(tmp_path, {}))
        assert config == CoordinatorConfig(
            listen=Address("0.0.0.0:7443"),
            identity=tmp_path / "identity",
            revocations=None,
            state=tmp_path / "state",
            message_limit=Size(DEFAULT_LIMIT),
            wait_for_parties=Duration(3600),
            max_running_jobs=2,
            log_format="text",
        )
        assert config.revocation_file == tmp_path / "identity" / "revoked.pem"
        assert (config.listen.host, config.listen.port) == ("0.0.0.0", 7443)  # noqa: S104

    def test_coordinator(self, tmp_path: Path) -> None:
        (tmp_path / "list.pem").touch()
        raw = {
            "listen": "[::1]:0",
            "identity": "/var/keys",
            "revocations": "list.pem",
            "state": "s",
            "message_limit": 1000,
            "wait_for_parties": "5 min",
            "max_running_jobs": 7,
            "log_format": "json",
        }
        config = CoordinatorConfig.load(str(write(tmp_path, raw)))
        assert (config.listen.host, config.listen.port) == ("[::1]", 0)
        assert config.identity == Path("/var/keys")
        assert config.revocation_file == config.revocations == tmp_path / "list.pem"
        assert config.state == tmp_path / "s"
        assert (config.message_limit, config.wait_for_parties, config.max_running_jobs) == (1000, 300, 7)
        assert config.log_format == "json"
        assert config.monitor.listen is None

    def test_monitor(self) -> None:
        raw = {"monitor": {"listen": "127.0.0.1:9464"}}
        for kind, rest in ((CoordinatorConfig, {}), (PartyConfig, PARTY), (MemberConfig, {"coordinator": "a:1"})):
            config = kind.parse(rest | raw, folder=HERE, origin="some.toml")
            assert config.monitor.listen == "127.0.0.1:9464"
        with pytest.raises(ConfigError, match=r"monitor\.listen: '9464' is not an address"):
            CoordinatorConfig.parse({"monitor": {"listen": "9464"}}, folder=HERE, origin="some.toml")

    def test_a_list_of_revocations_that_was_promised_must_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"some\.toml: revocations names .*list\.pem, which is not there"):
            CoordinatorConfig.load(write(tmp_path, {"revocations": "list.pem"}))

    def test_party(self, tmp_path: Path) -> None:
        (tmp_path / "party.toml").write_text(PARTY_TOML)
        config = PartyConfig.load(tmp_path / "party.toml")
        assert config.coordinator == "hub.example:7443"
        assert config.identity == tmp_path / "keys"
        assert config.state == tmp_path / "state"
        assert (config.n_jobs, config.message_limit, config.log_format) == (4, 500_000_000, "text")
        assert config.alignment.secret_file == Path("/run/secrets/alignment")
        customers, orders = config.tables["customers"], config.tables["orders"]
        columns = ("age", "income", "default")
        path = Path("data/customers.parquet")
        assert customers == TableSource(
            "customers",
            id="customer_id",
            columns=columns,
            labels=("default",),
            weights=(),
            path=path,
            folder=tmp_path,
        )
        assert orders == TableSource(
            "orders",
            id="customer_id",
            labels=(),
            weights=("amount",),
            features=("visits", "amount"),
            sql="SELECT * FROM orders",
            url="postgresql+psycopg://reader@db/shop",
            password_env="SHOP_PASSWORD",  # noqa: S106
            folder=tmp_path,
        )
        assert config.policy == Policy(
            protocols=("align", "train"),
            train=("alice", "bob"),
            predict=(),
            min_rows=100,
            min_samples_leaf=5,
            share_model=True,
            predictions_per_day=1000,
            labels_to_coordinator=True,
            wire_forms=("sealed",),
            trainings_per_day="unlimited",
            receive=("bank",),
        )

    def test_the_tables_of_a_loaded_configuration_can_be_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "conf"
        folder.mkdir()
        (folder / "customers.csv").write_text("customer_id,age,income,name\n1,2,3,x\n")
        write(folder, PARTY)
        monkeypatch.chdir(tmp_path)
        config = PartyConfig.load(Path("conf/some.toml"))
        monkeypatch.chdir("/")
        assert config.tables["customers"].read().columns == ("age", "income")

    def test_job(self, tmp_path: Path) -> None:
        (tmp_path / "job.toml").write_text(JOB_TOML)
        config = JobConfig.load(tmp_path / "job.toml")
        assert config.coordinator == "hub.example:7443"
        assert config.identity == tmp_path / "alice"
        assert config.job.kind == "train"
        assert config.job.parties == ("bank", "shop")
        assert config.job.tables == {"bank": "customers", "shop": "orders"}
        assert (config.job.y, config.job.sample_weight) == ("bank.default", "bank.weight")
        assert (config.job.task, config.job.name) == ("regression", "credit-2025.1")
        assert config.align.method == "psi"
        assert config.forest == {"n_estimators": 50, "max_features": "sqrt", "max_depth": 8}
        assert config.mpi == {}

    def test_job_defaults(self) -> None:
        config = JobConfig.parse(TRAIN, folder=HERE, origin="job.toml")
        assert (config.job.parties, config.job.sample_weight, config.job.name) == (None, None, None)
        assert config.job.tables == "customers"
        assert (config.align.method, config.forest) == ("keyed-hash", {})

    def test_tables_by_party_name_the_parties(self) -> None:
        raw = {**TRAIN, "job": {**JOB, "tables": {"shop": "a", "bank": "b"}}}
        assert JobConfig.parse(raw, folder=HERE, origin="job.toml").job.parties == ("shop", "bank")

    def test_a_job_for_mpi_needs_no_coordinator(self) -> None:
        raw = {"job": {"y": "bank.default", "task": "regression"}, "mpi": {"bank": LABELLED, "shop": TABLE}}
        config = JobConfig.parse(raw, folder=HERE, origin="job.toml")
        assert list(config.mpi) == ["bank", "shop"]
        assert config.mpi["shop"].table.folder == HERE

    def test_a_policy_for_mpi_is_open_where_nothing_is_written(self) -> None:
        job, shop = {"y": "default", "task": "regression", "layout": "rows"}, {"policy": {"min_rows": 7}}
        raw = {"job": job, "mpi": {"bank": LABELLED, "shop": LABELLED | shop}}
        config = JobConfig.parse(raw, folder=HERE, origin="job.toml")
        assert [config.mpi[party].policy.min_rows for party in ("bank", "shop")] == [1, 7]
        for kind in known():
            config.mpi["shop"].policy.check_order(kind, "somebody")

    @pytest.mark.parametrize(
        ("shop", "words"),
        [
            ({"policy": {"min_row": 7}}, r"no setting mpi\.shop\.policy\.min_row; did you mean 'min_rows'"),
            ({"policy": {"protocols": ["trian"]}}, r"\[mpi\.shop\]: policy\.protocols\[0\]: 'trian' is not one of"),
            ({"policy": 7}, r"mpi\.shop\.policy must be a section"),
            ({"labels": []}, r"'default', which mpi\.shop\.labels does not list"),
        ],
    )
    def test_what_a_rank_cannot_be_told(self, shop: dict[str, Any], words: str) -> None:
        job = {"y": "default", "task": "regression", "layout": "rows"}
        raw = {"job": job, "mpi": {"bank": LABELLED, "shop": LABELLED | shop}}
        with pytest.raises(ConfigError, match=words):
            JobConfig.parse(raw, folder=HERE, origin="job.toml")

    def test_importing_it_loads_nothing_heavy(self) -> None:
        script = (
            "import sys, woodlot.service.config\n"
            "print([m for m in ('numpy', 'pyarrow', 'sqlalchemy', 'cryptography', 'grpc') if m in sys.modules])"
        )
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert ended.stdout.strip() == "[]"


class TestUnreadable:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
            PartyConfig.load(tmp_path / "none.toml")
        with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
            PartyConfig.load(tmp_path)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"a = = 1", "is not TOML: .*line 1"),
            (b"a = 1\na = 2\n", "is not TOML"),
            (b'a = "\xff"', "is not UTF-8"),
            (b"a = " + b"9" * 5000, "is not TOML"),
            (b"a = " + b"[" * 5000, "is not TOML"),
        ],
    )
    def test_not_toml(self, tmp_path: Path, content: bytes, words: str) -> None:
        (tmp_path / "x.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=rf"x\.toml {words}"):
            JobConfig.load(tmp_path / "x.toml")


def changed(raw: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy in which the setting at a.b.c is this one."""
    first, _, rest = place.partition(".")
    return {**raw, first: changed(raw.get(first, {}), rest, value) if rest else value}


def without(raw: dict[str, Any], place: str) -> dict[str, Any]:
    first, _, rest = place.partition(".")
    if rest:
        return {**raw, first: without(raw[first], rest)}
    return {key: value for key, value in raw.items() if key != first}


class TestRefusals:
    @pytest.mark.parametrize(
        ("read", "raw", "command"),
        [
            (PartyConfig, {"listen": "a:1", "state": "state/"}, "woodlot coordinator"),
            (CoordinatorConfig, {"coordinator": "a:1", "tables": {}, "policy": {}}, "woodlot party"),
            (CoordinatorConfig, {"coordinator": "a:1", "job": {}}, "woodlot train"),
            (JobConfig, {"coordinator": "a:1", "state": "state/", "policy": {}}, "woodlot party"),
        ],
    )
    def test_the_file_of_another_role(self, read: Any, raw: dict[str, Any], command: str) -> None:
        with pytest.raises(ConfigError, match=f"^it.toml is the file of another role; run it with: {command} it.toml$"):
            read.parse(raw, folder=HERE, origin="it.toml")

    @pytest.mark.parametrize(
        ("place", "value", "words"),
        [
            ("listen", "hub", "listen: 'hub' is not an address such as"),
            ("listen", ":7443", "is not an address"),
            ("listen", "a:70000", "is not an address"),
            ("listen", "a b:1", "is not an address"),
            ("listen", 7443, "listen: 7443 is not an address"),
            ("identity", 5, "identity: expected a path"),
            ("state", "", "state: expected a path"),
            ("message_limit", "1 XB", "message_limit: '1 XB' is not a size in bytes such as"),
            ("message_limit", 0, "message_limit: 0 is not a size"),
            ("message_limit", -5, "is not a size"),
            ("message_limit", 1.5, "is not a size"),
            ("message_limit", True, "is not a size"),
            ("message_limit", "0.5 B", "is not a size"),
            ("message_limit", "500", "is not a size"),
            ("message_limit", [1], "is not a size"),
            ("wait_for_parties", "2 weeks", "wait_for_parties: '2 weeks' is not a number of seconds"),
            ("wait_for_parties", 0, "is not a number of seconds"),
            ("wait_for_parties", float("inf"), "is not a number of seconds"),
            ("wait_for_parties", float("nan"), "is not a number of seconds"),
            ("wait_for_parties", "-1 h", "is not a number of seconds"),
            ("max_running_jobs", 0, "max_running_jobs: expected a whole number >= 1"),
            ("max_running_jobs", "2", "max_running_jobs: expected a whole number, got text"),
            ("log_format", "xml", "log_format: 'xml' is not one of 'text', 'json'"),
            ("max_runing_jobs", 2, "there is no setting max_runing_jobs; did you mean 'max_running_jobs'?"),
            ("colour", "red", "there is no setting colour; the settings here are listen, identity"),
        ],
    )
    def test_coordinator(self, place: str, value: Any, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            CoordinatorConfig.parse({place: value}, folder=HERE, origin="hub.toml")
        assert str(caught.value).startswith("hub.toml: ")
        assert words in str(caught.value)

    @pytest.mark.parametrize(
        ("place", "value", "words"),
        [
            ("coordinator", "hub", "coordinator: 'hub' is not an address"),
            ("n_jobs", 0, "n_jobs must not be 0"),
            ("memory", "2 apples", "memory: '2 apples' is not a size in bytes"),
            ("cluster", "scheduler:8786", "cluster: 'scheduler:8786' is not the address of a scheduler"),
            ("cluster", "http://scheduler:8786", "is not the address of a scheduler"),
            ("cluster", "tls://scheduler", "is not the address of a scheduler"),
            ("memory", 0, "memory: 0 is not a size in bytes"),
            ("n_jobs", "all", "n_jobs: expected a whole number, got text"),
            ("tables", {}, "there is no table; add a section such as [tables.customers]"),
            ("tables", 5, "tables must be sections such as [tables.customers]"),
            ("tables.customers", 5, "tables must be sections such as"),
            ("tables.customers.colums", [], "there is no setting tables.customers.colums; did you mean 'columns'?"),
            ("tables.customers.id", 3, "tables.customers.id: expected text, got a whole number"),
            ("tables.customers.columns", "age", 'tables.customers.columns must be a list of names, or "*"'),
            ("tables.customers.columns", [1], "tables.customers.columns[0]: expected text"),
            ("tables.customers.path", "a.xls", "[tables.customers]: table 'customers' has a file of an unknown kind"),
            ("tables.customers.sql", "SELECT 1", "needs either path"),
            ("tables.customers.n_jobs", 3, "it belongs to the top of the file, before the first [section]"),
            ("policy", "none", "policy: expected a section, got text"),
            ("compute.device", "tpu", "compute.device: 'tpu' is not one of 'cpu', 'cuda', 'auto'"),
            ("policy.state", "x", "no setting policy.state; it belongs to the top of the file"),
            ("policy.trian", ["*"], "there is no setting policy.trian; did you mean 'train'?"),
            ("policy.train", "*", "policy.train: expected a list, got text"),
            ("policy.train", [5], "policy.train[0]: expected text, got a whole number"),
            ("policy.protocols", ["tarin"], "policy.protocols[0]: 'tarin' is not one of 'align', 'train', 'predict'"),
            ("policy.min_rows", 0, "policy.min_rows: expected a whole number >= 1"),
            ("policy.min_samples_leaf", 0.1, "policy.min_samples_leaf: expected a whole number, got a number"),
            ("policy.share_model", "yes", "policy.share_model: expected true or false, got text"),
            ("policy.predictions_per_day", -1, "policy.predictions_per_day: expected a whole number >= 0"),
            ("policy.predictions_per_day", "lots", "policy.predictions_per_day: 'lots' is not one of 'unlimited'"),
            ("policy.trainings_per_day", 0.5, "policy.trainings_per_day: expected a whole number or text, got a num"),
            ("policy.receive", "alice", "policy.receive: expected a list, got text"),
            ("tables.customers.labels", "age", "tables.customers.labels: expected a list, got text"),
            ("tables.customers.labels", ["late"], "'late' among its labels but not among its columns; add it"),
            ("tables.customers.weights", ["customer_id"], "has its id 'customer_id' among its weights"),
            ("tables.customers.features", ["age", "age"], "has 'age' more than once among its features"),
            ("tables.customers.features", [], "has an empty list of features"),
            ("alignment.secret", "x", "there is no setting alignment.secret; did you mean 'secret_file'?"),
        ],
    )
    def test_party(self, place: str, value: Any, words: str) -> None:
        PartyConfig.parse(PARTY, folder=HERE, origin="party.toml")
        with pytest.raises(ConfigError) as caught:
            PartyConfig.parse(changed(PARTY, place, value), folder=HERE, origin="party.toml")
        assert str(caught.value).startswith("party.toml: ")
        assert words in str(caught.value)

    def test_a_password_in_a_file_is_not_repeated(self) -> None:
        table = {"sql": "SELECT 1", "url": "postgresql://a:hunter2@b/c", "id": "i", "columns": "*"}
        with pytest.raises(ConfigError, match="has a password in url") as caught:
            PartyConfig.parse(changed(PARTY, "tables.customers", table), folder=HERE, origin="party.toml")
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        ("place", "value", "words"),
        [
            ("job.y", "default", "job: y must be written 'party.column', not 'default'"),
            ("job.y", "bank.", "must be written 'party.column'"),
            ("job.y", ".x", "must be written 'party.column'"),
            ("job.kind", "predict", "job.kind: 'predict' is not one of 'train'"),
            ("job.task", "ranking", "job.task: 'ranking' is not one of 'classification', 'regression'"),
            ("job.sample_weight", "w", "job: sample_weight must be written 'party.column'"),
            ("job.sample_weight", "shop.w", "job: sample_weight must be at the party of y, 'bank'"),
            ("job.parties", [], "parties must name at least one party"),
            ("job.parties", ["bank", "bank"], "none twice"),
            ("job.parties", ["shop"], "y is at 'bank', who is not among the parties shop"),
            ("job.parties", "bank", "job.parties: expected a list, got text"),
            ("job.tables", {"shop": "a"}, "y is at 'bank', who is not among the parties"),
            ("job.tables", {"bank": 5}, "job.tables[...]: expected text"),
            ("job.tables", "", "the setting job.tables is missing; add tables ="),
            ("job.name", "../x", "job: name '../x' must be up to 64 letters"),
            ("job.name", "", "must be up to 64 letters"),
            ("align.method", "md5", "align.method: 'md5' is not one of 'keyed-hash', 'psi'"),
            ("forest", 5, "forest: expected a section, got a whole number"),
            ("forrest", {}, "there is no setting forrest; did you mean 'forest'?"),
            ("mpi", {"shop": TABLE}, "job.y is at 'bank', but there is no section [mpi.bank]; add it"),
            ("mpi", {"bank": {"id": "i"}}, "the setting mpi.bank.columns is missing"),
            ("mpi", {"bank": TABLE}, 'add labels = ["default"] to the section [mpi.bank]'),
        ],
    )
    def test_job(self, place: str, value: Any, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            JobConfig.parse(changed(TRAIN, place, value), folder=HERE, origin="job.toml")
        assert str(caught.value).startswith("job.toml: ")
        assert words in str(caught.value)

    def test_tables_and_parties_must_agree(self) -> None:
        raw = changed(changed(TRAIN, "job.parties", ["bank", "shop"]), "job.tables", {"bank": "a", "club": "b"})
        with pytest.raises(ConfigError, match="one table for each of the parties; club, shop is in one only"):
            JobConfig.parse(raw, folder=HERE, origin="job.toml")

    @pytest.mark.parametrize(
        ("kind", "raw", "place"),
        [
            (PartyConfig, PARTY, "coordinator"),
            (PartyConfig, PARTY, "tables.customers.id"),
            (PartyConfig, PARTY, "tables.customers.columns"),
            (JobConfig, TRAIN, "coordinator"),
            (JobConfig, TRAIN, "job"),
            (JobConfig, TRAIN, "job.y"),
            (JobConfig, TRAIN, "job.task"),
            (JobConfig, TRAIN, "job.tables"),
        ],
    )
    def test_missing_settings_are_named_with_an_example(
        self, kind: type[PartyConfig | JobConfig], raw: dict[str, Any], place: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            kind.parse(without(raw, place), folder=HERE, origin="x.toml")
        name = place.rpartition(".")[2]
        example = "[job] with y" if name == "job" else f"{name} = "
        assert f"x.toml: the setting {place} is missing; add {example}" in str(caught.value)


class TestWhatProtects:
    @pytest.mark.parametrize("name", WRITTEN)
    def test_a_party_without_one_of_the_lines_is_told_which(self, name: str) -> None:
        raw = changed(PARTY, "policy", {key: value for key, value in PROTECTS.items() if key != name})
        with pytest.raises(ConfigError) as caught:
            PartyConfig.parse(raw, folder=HERE, origin="party.toml")
        first, *lines = str(caught.value).splitlines()
        assert first.startswith(f"party.toml: the section [policy] does not say {name};")
        assert [line.split(" = ")[0].strip() for line in lines] == [name]

    @pytest.mark.parametrize("raw", [{}, {"train": ["alice"]}, {"min_rows": 5}])
    def test_the_lines_that_it_is_told_to_add_are_enough(self, raw: dict[str, Any]) -> None:
        with pytest.raises(ConfigError) as caught:
            PartyConfig.parse(changed(PARTY, "policy", raw), folder=HERE, origin="party.toml")
        added = tomllib.loads("\n".join(str(caught.value).splitlines()[1:]))
        assert set(added) == set(WRITTEN) - set(raw)
        whole = PartyConfig.parse(changed(PARTY, "policy", raw | added), folder=HERE, origin="party.toml")
        assert whole.policy.receive == ()
        assert whole.policy.min_samples_leaf > 1

    @pytest.mark.parametrize("value", ["encrypted", "shared", "coordinator"])
    def test_how_labels_may_be_learnt_from_is_said_by_other_lines(self, value: str) -> None:
        raw = changed(PARTY, "policy", PROTECTS | {"labels": value})
        with pytest.raises(ConfigError, match=r'protection = "hidden".* labels_to_coordinator = true'):
            PartyConfig.parse(raw, folder=HERE, origin="party.toml")

    def test_without_the_section_all_of_them_are_missing(self) -> None:
        with pytest.raises(ConfigError, match=", ".join(WRITTEN)):
            PartyConfig.parse(without(PARTY, "policy"), folder=HERE, origin="party.toml")

    def test_helpers_and_key_services_have_no_tables_to_protect(self) -> None:
        MemberConfig.parse({"coordinator": "hub:1"}, folder=HERE, origin="keys.toml")

    def test_labels_and_weights_are_nothing_unless_they_are_named(self) -> None:
        table = PartyConfig.parse(PARTY, folder=HERE, origin="party.toml").tables["customers"]
        assert (table.labels, table.weights) == ((), ())
        assert not table.may_label("age")
        assert not table.may_weigh("age")


class TestSecret:
    def secret(self, folder: Path, content: str, mode: int = 0o600) -> bytes | None:
        path = folder / "secret"
        path.touch()
        path.chmod(0o600)
        path.write_text(content)
        path.chmod(mode)
        raw = changed(PARTY, "alignment.secret_file", "secret")
        return PartyConfig.parse(raw, folder=folder, origin="party.toml").alignment.read_secret()

    def test_line_ends_are_no_part_of_it(self, tmp_path: Path) -> None:
        word = "0123456789abcdef"
        assert self.secret(tmp_path, word) == self.secret(tmp_path, word + "\r\n") == word.encode()

    def test_none(self) -> None:
        assert PartyConfig.parse(PARTY, folder=HERE, origin="party.toml").alignment.read_secret() is None

    @pytest.mark.parametrize(
        ("content", "mode", "words"),
        [
            ("0123456789abcdef", 0o644, "open to others; run: chmod 600"),
            ("0123456789abcde\n", 0o600, "has 15 bytes; at least 16"),
            ("\n", 0o600, "is empty"),
        ],
    )
    def test_unsafe_ones_are_refused_unseen(self, tmp_path: Path, content: str, mode: int, words: str) -> None:
        with pytest.raises(ConfigError, match=words) as caught:
            self.secret(tmp_path, content, mode)
        assert "0123456789" not in str(caught.value)

    def test_missing(self, tmp_path: Path) -> None:
        raw = changed(PARTY, "alignment.secret_file", "none")
        with pytest.raises(ConfigError, match=r"cannot be read from .*none: No such file"):
            PartyConfig.parse(raw, folder=tmp_path, origin="party.toml").alignment.read_secret()


SIZES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "gib": 2**30}
TIMES = {"s": 1, "min": 60, "h": 3600, "d": 86400, "H": 3600}
BLANKS = st.sampled_from(["", " ", "  "])


class TestQuantities:
    @given(st.integers(1, 10**9), st.sampled_from(sorted(SIZES)), BLANKS)
    def test_sizes(self, number: int, unit: str, blank: str) -> None:
        size = Size.parse(f"{number}{blank}{unit}")
        assert size == number * SIZES[unit]
        assert Size.parse(int(size)) == size

    @given(st.integers(0, 10**6), st.integers(1, 999), st.sampled_from(["kB", "MB", "GB", "TB"]))
    def test_sizes_with_a_fraction_are_exact(self, whole: int, thousandths: int, unit: str) -> None:
        assert Size.parse(f"{whole}.{thousandths:03} {unit}") == (whole * 1000 + thousandths) * SIZES[unit] // 1000

    @given(st.integers(1, 10**6), st.sampled_from(sorted(TIMES)), BLANKS)
    def test_durations(self, number: int, unit: str, blank: str) -> None:
        duration = Duration.parse(f"{number}{blank}{unit}")
        assert duration == number * TIMES[unit]
        assert Duration.parse(float(duration)) == duration

    @given(st.integers(0, 10**4), st.integers(1, 999), st.sampled_from(sorted(TIMES)))
    def test_durations_with_a_fraction(self, whole: int, thousandths: int, unit: str) -> None:
        exact = Fraction(whole * 1000 + thousandths, 1000) * TIMES[unit]
        assert Duration.parse(f"{whole}.{thousandths:03} {unit}") == float(exact)

    @given(st.text(max_size=12))
    def test_other_text_is_refused(self, text: str) -> None:
        number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
        for kind in (Size, Duration):
            try:
                parsed = kind.parse(text)
            except ValueError:
                continue
            assert parsed > 0
            assert float(number) > 0

    @given(st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True), st.integers(0, 65535))
    def test_addresses(self, host: str, port: int) -> None:
        address = Address.parse(f"{host}:{port}")
        assert (address, address.host, address.port) == (f"{host}:{port}", host, port)


WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x7f", exclude_categories=["Cs"]), min_size=1, max_size=8
)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,7}", fullmatch=True)
LIMITS = st.one_of(st.integers(0, 2**62), st.just("unlimited"))
POLICIES = st.fixed_dictionaries(
    {
        "min_rows": st.integers(1, 2**62),
        "min_samples_leaf": st.integers(1, 2**62),
        "wire_forms": st.lists(st.sampled_from(["sealed", "decisions", "ranks"]), unique=True),
        "labels_to_coordinator": st.booleans(),
        "predictions_per_day": LIMITS,
        "trainings_per_day": LIMITS,
        "receive": st.lists(WORDS, max_size=3),
    },
    optional={
        "protocols": st.lists(st.sampled_from(["align", "train", "predict"]), unique=True),
        "train": st.lists(WORDS, max_size=3),
        "predict": st.lists(WORDS, max_size=3),
        "share_model": st.booleans(),
        "min_cell": st.integers(0, 2**62),
        "max_bins": st.one_of(st.integers(2, 256), st.just("unlimited")),
        "trees": LIMITS,
    },
)
TABLES = st.fixed_dictionaries(
    {
        "id": st.just("the id"),
        "path": NAMES.map("{}.csv".format),
        "columns": st.one_of(st.just("*"), st.lists(NAMES, min_size=1, max_size=4, unique=True)),
    }
)


class TestRoundTrips:
    @settings(max_examples=60, deadline=None)
    @given(policy=POLICIES, tables=st.dictionaries(WORDS, TABLES, min_size=1, max_size=3), n_jobs=st.integers(1, 64))
    def test_party(
        self, tmp_path_factory: pytest.TempPathFactory, policy: dict[str, Any], tables: dict[str, Any], n_jobs: int
    ) -> None:
        folder = tmp_path_factory.getbasetemp()
        raw = {"coordinator": "hub:1", "n_jobs": n_jobs, "policy": policy, "tables": tables}
        config = PartyConfig.load(write(folder, raw))
        assert config.n_jobs == n_jobs
        defaults = msgspec.to_builtins(Policy())
        found = msgspec.to_builtins(config.policy)
        assert {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()} == {
            key: list(v) if isinstance(v, tuple) else v for key, v in (defaults | policy).items()
        }
        assert list(config.tables) == list(tables)
        for name, table in config.tables.items():
            columns = "*" if table.columns is None else list(table.columns)
            assert {"id": table.id, "path": str(table.path), "columns": columns} == tables[name]
            assert (table.name, table.folder) == (name, folder)

    @settings(max_examples=60, deadline=None)
    @given(
        forest=st.dictionaries(
            WORDS, st.one_of(st.integers(-9, 9), st.booleans(), WORDS, st.floats(0.5, 1)), max_size=4
        ),
        names=st.dictionaries(NAMES, WORDS, min_size=1, max_size=4),
        column=WORDS,
        data=st.data(),
    )
    def test_job(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        forest: dict[str, Any],
        names: dict[str, str],
        column: str,
        data: st.DataObject,
    ) -> None:
        holder = data.draw(st.sampled_from(sorted(names)))
        job = {"y": f"{holder}.{column}", "tables": names, "task": "classification"}
        raw = {"coordinator": "hub:1", "job": job, "forest": forest}
        config = JobConfig.load(write(tmp_path_factory.getbasetemp(), raw))
        assert config.forest == forest
        assert config.job.y == job["y"]
        assert config.job.tables == names
        assert config.job.parties == tuple(names)


class TestDocumentation:
    PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")

    def test_every_setting_is_on_the_page_and_no_other(self) -> None:
        told = set(re.findall(r"^\| `([\w.*]+)` \|", self.PAGE, re.MULTILINE))
        names = {field for kind in (CoordinatorConfig, PartyConfig, MemberConfig) for field in kind.__struct_fields__}
        names |= {*Policy.__struct_fields__, *(field.name for field in dataclasses.fields(TableSource))}
        names |= {"coordinator", "identity", "alignment.secret_file", "align.method", "forest.*"}
        names |= {f"job.{field}" for field in JobSettings.__struct_fields__}
        names |= {f"privacy.{field}" for field in PrivacyConfig.__struct_fields__}
        names |= {f"compute.{field}" for field in ComputeConfig.__struct_fields__}
        names |= {f"monitor.{field}" for field in MonitorConfig.__struct_fields__}
        assert told == names - {"alignment", "compute", "monitor", "tables", "policy", "privacy", "name", "folder"}

    @pytest.mark.parametrize(
        ("settings", "prefix"),
        [(Policy(), ""), (PrivacyConfig(), r"privacy\."), (JobSettings(y="a.b", task="regression"), r"job\.")],
    )
    def test_defaults_are_those_on_the_page(self, settings: msgspec.Struct, prefix: str) -> None:
        _, heading, policy = self.PAGE.partition("### Policy")
        told = dict(re.findall(rf"^\| `{prefix}(\w+)` \| (none|`[^|]*`) \|", heading + policy, re.MULTILINE))
        named = {name: getattr(settings, name) for name in settings.__struct_fields__ if name in told}
        written = {name: "none" if value is None else f"`{json.dumps(value)}`" for name, value in named.items()}
        assert {name: told[name] for name in named} == {
            name: text.replace("0.0", "0") for name, text in written.items()
        }
        assert len(named) >= 3

    def test_what_protects_is_required_on_the_page(self) -> None:
        _, _, policy = self.PAGE.partition("### Policy")
        assert set(
            re.findall(r"^\| `(\w+)` \| \*required\* \|", policy.partition("### Privacy")[0], re.MULTILINE)
        ) == set(WRITTEN)

    def test_the_examples_are_right(self) -> None:
        kinds = {
            "listen": CoordinatorConfig,
            "allow_same_host": MemberConfig,
            "[job]": JobConfig,
            "[policy]": PartyConfig,
        }
        examples = re.findall(r"```toml\n(.*?)```", self.PAGE, re.DOTALL)
        for text in examples:
            kind = next(kind for sign, kind in kinds.items() if sign in text)
            config = kind.parse(tomllib.loads(text), folder=HERE, origin="the page")
            if kind is CoordinatorConfig:
                assert config == CoordinatorConfig.parse({}, folder=HERE, origin="")
        assert len(examples) == 5
