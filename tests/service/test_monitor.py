"""/health and /metrics: the format, who is answered, and what they tell of real services before and after a job."""

from __future__ import annotations

import http.client
import json
import logging
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from halts import HANGS
from hypothesis import given
from hypothesis import strategies as st
from openmetrics_parser import ReadFamily, labels, parse
from processes import PRIVATE, Processes, processes, small_tables, wait_until
from small_jobs import EVERYBODY, train_order, user_of
from world import World
from world import running as in_process

from woodlot.exceptions import ConfigError
from woodlot.jobs import job_messages as msg
from woodlot.protocols.core.message import Refusal
from woodlot.runtime.codec import encode, kind_of
from woodlot.runtime.traffic import UNREADABLE_TYPE, Traffic
from woodlot.service.monitor import MAX_READERS, Health, Monitor
from woodlot.service.open_metrics import CONTENT_TYPE, MetricFamily, exposition
from woodlot.service.service_metrics import agent_metrics, coordinator_health, coordinator_metrics
from woodlot.service.settings import Address

# --- the format ---


@given(
    value=st.text(),
    number=st.floats(allow_nan=False) | st.integers(min_value=-(2**70), max_value=2**70).map(float),
    words=st.text(),
)
def test_any_label_and_number_is_read_back(value: str, number: float, words: str) -> None:
    if any(unwritable in value + words for unwritable in "\r"):
        return  # the reader of these tests refuses it; see below
    family = MetricFamily(name="a_b", type="gauge", help=words, samples=[({"x": value}, number), ({}, 1)])
    assert parse(exposition([family]))["a_b"] == ReadFamily("gauge", words, "", {labels(x=value): number, (): 1.0})


def test_types_have_their_suffixes_and_empty_families_are_left_out() -> None:
    text = exposition(
        [
            MetricFamily(name="a", type="counter", help="n", samples=[({}, 2)]),
            MetricFamily(name="b", type="info", help="v", samples=[({"version": '1"\\\n'}, 1)]),
            MetricFamily(name="c_seconds", type="gauge", help="s", unit="seconds", samples=[({}, 0.5)]),
            MetricFamily(name="d", type="gauge", help="", samples=[]),
        ]
    )
    assert text == (
        "# TYPE a counter\n# HELP a n\na_total 2\n"
        '# TYPE b info\n# HELP b v\nb_info{version="1\\"\\\\\\n"} 1\n'
        "# TYPE c_seconds gauge\n# UNIT c_seconds seconds\n# HELP c_seconds s\nc_seconds 0.5\n"
        "# EOF\n"
    )
    assert list(parse(text)) == ["a", "b", "c_seconds"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"},
        {"name": "a_total"},
        {"name": "a", "unit": "seconds"},
    ],
)
def test_a_name_that_prometheus_would_refuse_is_an_error(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a"):
        MetricFamily(type="gauge", help="", samples=[], **wrong)  # type: ignore[arg-type]


def test_two_samples_with_the_same_labels_are_an_error() -> None:
    family = MetricFamily(name="a", type="gauge", help="", samples=[({"x": "1"}, 1), ({"x": "1"}, 2)])
    with pytest.raises(ValueError, match="two samples"):
        exposition([family])


# --- counting ---


def test_messages_count_by_the_types_that_there_are() -> None:
    """A sender cannot make labels up: what is no message counts as that, whatever it says."""
    data = encode(msg.ForgetJob(job="ab" * 16))
    forged = data.replace(b"ForgetJob", b"ForgedJob")
    assert kind_of(data) == "ForgetJob"
    assert [kind_of(bad) for bad in (forged, data[:20], b"", b"WOOD", data[:10] + b"\xff" * 30)] == [""] * 5
    traffic = Traffic()
    refusal = encode(Refusal(kind="policy", reason="no"))
    assert traffic.answered(data, lambda: refusal) == refusal
    traffic.count("in", forged)
    counts = traffic.counts()
    assert counts.messages == {("in", "ForgetJob"): 1, ("out", "Refusal"): 1, ("in", UNREADABLE_TYPE): 1}
    assert counts.n_bytes["in", "ForgetJob"] == len(data)
    assert counts.refused == {("here", "ForgetJob"): 1}
    assert counts.seconds_since_contact is not None


def test_an_answer_that_fails_counts_as_refused() -> None:
    traffic = Traffic()

    def fail() -> bytes:
        raise KeyError

    with pytest.raises(KeyError):
        traffic.answered(encode(msg.ForgetJob(job="ab" * 16)), fail)
    assert traffic.counts().refused == {("here", "ForgetJob"): 1}


# --- who is answered ---


@contextmanager
def serving(health: Health, listen: str = "127.0.0.1:0") -> Iterator[Monitor]:
    family = MetricFamily(name="a", type="gauge", help="", samples=[({}, 1)])
    monitor = Monitor(Address(listen), lambda: health, lambda: [family])
    monitor.start()
    try:
        yield monitor
    finally:
        monitor.close()


def ask(port: int, path: str, *, host: str | None = None, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        reply = connection.getresponse()
        return reply.status, reply.getheader("Content-Type") or "", reply.read().decode()
    finally:
        connection.close()


def test_health_and_metrics_are_served_and_nothing_else() -> None:
    with serving(Health({"role": "party"})) as monitor:
        assert ask(monitor.port, "/health") == (200, "application/json", '{"status": "ok", "role": "party"}\n')
        assert ask(monitor.port, "/metrics?x=1")[:2] == (200, CONTENT_TYPE)
        assert ask(monitor.port, "/metrics", method="HEAD")[2] == ""
        assert ask(monitor.port, "/../etc/passwd")[0] == 404
        assert ask(monitor.port, "/health", method="POST")[0] == 501


def test_what_cannot_work_is_503_with_the_reason() -> None:
    with serving(Health({"role": "party"}, ["first", "second"])) as monitor:
        status, _, body = ask(monitor.port, "/health")
    assert status == 503
    assert json.loads(body) == {"status": "unavailable", "role": "party", "reason": "first; second"}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
def test_a_page_of_another_site_cannot_read_it_under_a_name_of_its_own(host: str) -> None:
    with serving(Health({})) as monitor:
        assert ask(monitor.port, "/metrics", host=host.format(port=monitor.port))[0] == 421
        assert ask(monitor.port, "/metrics", host=f"localhost:{monitor.port}")[0] == 200


def test_another_address_must_be_named_and_the_log_says_what_it_tells(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving(Health({})):
        assert "reachable from other machines" not in caplog.text
    with caplog.at_level(logging.INFO), serving(Health({}), "0.0.0.0:0") as monitor:
        assert "without a password or encryption" in caplog.text
        assert ask(monitor.port, "/health", host="anything")[0] == 200


def test_a_port_that_is_taken_is_an_error_that_names_the_setting() -> None:
    with serving(Health({})) as monitor, pytest.raises(ConfigError, match=r"monitor\.listen"):
        Monitor(Address(f"127.0.0.1:{monitor.port}"), lambda: Health({}), list).start()


def test_silent_connections_take_a_few_threads_only() -> None:
    with serving(Health({})) as monitor:
        address = ("127.0.0.1", monitor.port)
        silent = [socket.create_connection(address, HANGS) for _ in range(MAX_READERS)]
        more = [socket.create_connection(address, HANGS) for _ in range(3)]
        try:
            assert [one.recv(1) for one in more] == [b""] * 3  # closed at once
        finally:
            for one in silent + more:
                one.close()
        wait_until(lambda: _answers(monitor.port), "a thread to be free again")


def _answers(port: int) -> bool:
    try:
        return ask(port, "/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_what_fails_is_said_to_fail() -> None:
    def fail() -> Any:
        raise RuntimeError("secret words")

    monitor = Monitor(Address("127.0.0.1:0"), fail, fail)
    monitor.start()
    try:
        status, _, body = ask(monitor.port, "/metrics")
    finally:
        monitor.close()
    assert status == 500
    assert "secret" not in body


# --- real services ---


MONITORED = re.compile(r"health and metrics on http://127\.0\.0\.1:(\d+)/health")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, small_tables())
    made.coordinator_settings |= {"monitor": {"listen": "127.0.0.1:0"}, "log_format": "json"}
    for settings in made.settings.values():
        settings |= {"monitor": {"listen": "127.0.0.1:0"}, "log_format": "json", "privacy": {"epsilon": 4.0}}
    return made


def port_of(running: Processes, name: str) -> int:
    return int(wait_until(lambda: MONITORED.findall(running.log(name)), f"{name} to be monitored")[-1])


def health_of(running: Processes, name: str) -> tuple[int, dict[str, Any]]:
    status, _, body = ask(port_of(running, name), "/health")
    return status, json.loads(body)


def scrape(running: Processes, name: str) -> dict[str, ReadFamily]:
    status, kind, body = ask(port_of(running, name), "/metrics")
    assert (status, kind) == (200, CONTENT_TYPE)
    assert not re.search(r"alice|bob\b|bank|shop", body)
    private = {found.decode() for found in PRIVATE.findall(body.encode())}
    assert private <= {"customers"}  # the party's own name of its table, and no column, id or file
    return parse(body)


def value(families: dict[str, ReadFamily], name: str, **pairs: str) -> float:
    return families[name].samples.get(labels(**pairs), 0.0)


@pytest.mark.slow
def test_counters_before_and_after_a_job_between_processes(world: World) -> None:
    with processes(world) as running:
        running.wait_connected()
        for name in EVERYBODY:
            wait_until(lambda name=name: health_of(running, name)[0] == 200, f"{name} to be well")  # type: ignore[misc]
        assert health_of(running, "bank")[1] == {
            "status": "ok", "role": "party", "name": "bank", "fresh_revocation_list": True, "connected": True,
        }  # fmt: skip
        assert health_of(running, "coordinator")[1] == {
            "status": "ok", "role": "coordinator", "name": "coordinator", "fresh_revocation_list": True,
            "parties_connected": 2,
        }  # fmt: skip
        before = {name: scrape(running, name) for name in EVERYBODY}
        with user_of(world) as alice:
            job = alice.client.finish(alice.client.submit(train_order(alice)).job).job
        after = {name: scrape(running, name) for name in EVERYBODY}
        for party in ("bank", "shop"):
            wait_until(lambda party=party: _ended(running, party), f"{party} to hear of the end")  # type: ignore[misc]
        coordinator, bank = after["coordinator"], after["bank"]
        for name in EVERYBODY:
            assert value(before[name], "woodlot_jobs_taken", kind="train") == 0
            assert value(after[name], "woodlot_jobs_taken", kind="train") == 1
            assert value(after[name], "woodlot_healthy") == 1
            _check_counters_grow(before[name], after[name])
        assert value(before["coordinator"], "woodlot_jobs_ended", kind="train", outcome="done") == 0
        assert value(coordinator, "woodlot_jobs_ended", kind="train", outcome="done") == 1
        assert value(coordinator, "woodlot_jobs", kind="train", state="running") == 0
        assert value(coordinator, "woodlot_parties", state="connected") == 2
        assert value(bank, "woodlot_connected") == 1
        assert value(bank, "woodlot_messages", direction="in", type="OpenJob") == 1
        opened = value(bank, "woodlot_message_bytes", direction="in", type="OpenJob")
        assert opened > 500
        assert value(coordinator, "woodlot_messages", direction="out", type="OpenJob") == 2
        assert value(coordinator, "woodlot_messages", direction="in", type="SubmitJob") == 1
        assert value(bank, "woodlot_privacy_epsilon_allowed", table="customers", account="rows") == 4
        assert value(bank, "woodlot_privacy_epsilon_spent", table="customers", account="rows") == 0
        assert value(bank, "woodlot_privacy_uncovered_jobs", table="customers", account="rows") == 1
        assert value(bank, "process_resident_memory_bytes") > 10_000_000
        assert value(bank, "process_cpu_seconds") > 0
        assert 0 <= value(bank, "woodlot_last_contact_seconds") < HANGS
        assert bank["woodlot_build"].samples.popitem()[0][0] == ("role", "party")
        _check_refusals(running, world)
        _check_logs(running, job)


def _ended(running: Processes, party: str) -> bool:
    families = scrape(running, party)
    done = value(families, "woodlot_jobs_ended", kind="train", outcome="ended") == 1
    return done and value(families, "woodlot_jobs", kind="train", state="running") == 0


def _check_counters_grow(before: dict[str, ReadFamily], after: dict[str, ReadFamily]) -> None:
    for name, family in before.items():
        if family.type == "counter":
            for key, count in family.samples.items():
                assert after[name].samples[key] >= count, (name, key)


def _check_refusals(running: Processes, world: World) -> None:
    """Bob may not train: each side counts the refused message."""
    with user_of(world, "bob") as bob, pytest.raises(Exception, match="does not let 'bob' train"):
        bob.client.finish(bob.client.submit(train_order(bob)).job)
    assert value(scrape(running, "bank"), "woodlot_refused_messages", by="here", type="OpenJob") == 1
    assert value(scrape(running, "coordinator"), "woodlot_refused_messages", by="there", type="OpenJob") == 2
    assert value(scrape(running, "coordinator"), "woodlot_jobs_ended", kind="train", outcome="failed") == 1


def _check_logs(running: Processes, job: str) -> None:
    """The beginning and the end of the job are lines whose fields say which job it was."""
    lines = {
        name: [json.loads(line) for line in running.log(name).splitlines() if line.startswith("{")]
        for name in EVERYBODY
    }
    of_job = {name: [line for line in found if line.get("job") == job] for name, found in lines.items()}
    for name in EVERYBODY:
        assert {"kind": "train", "user": "alice"}.items() <= of_job[name][0].items()
    assert {"kind": "train", "user": "alice", "state": "done"}.items() <= of_job["coordinator"][-1].items()
    assert {"kind": "train", "state": "ended"}.items() <= of_job["bank"][-1].items()
    connected = [line for line in lines["coordinator"] if line.get("party") == "bank"]
    assert connected[0]["message"] == "party 'bank' is connected"


def test_a_service_that_cannot_work_says_why(world: World) -> None:
    world.key_members({"train": ["alice"]})
    for name in ("helper", "keys"):
        world.settings[name] |= {"monitor": {"listen": "127.0.0.1:0"}}
    with processes(world) as running:
        running.wait_connected()
        for name in world.settings:
            wait_until(lambda name=name: health_of(running, name)[0] == 200, f"{name} to be well")  # type: ignore[misc]
        assert [health_of(running, name)[1]["role"] for name in ("helper", "keys")] == ["helper", "key service"]
        for name in ("helper", "keys"):
            assert value(scrape(running, name), "woodlot_connected") == 1
        running.stop("coordinator")
        status, told = wait_until(lambda: _unwell(running, "bank"), "the bank to miss the coordinator")
        assert status == 503
        assert told["connected"] is False
        assert told["reason"].startswith("not connected to the coordinator")
        assert value(scrape(running, "bank"), "woodlot_connected") == 0
        assert value(scrape(running, "bank"), "woodlot_healthy") == 0


def _unwell(running: Processes, name: str) -> tuple[int, dict[str, Any]] | None:
    status, told = health_of(running, name)
    return None if status == 200 else (status, told)


def test_without_the_setting_nothing_listens_and_without_a_list_nothing_is_well(tmp_path: Path) -> None:
    world = World(tmp_path, small_tables())
    (tmp_path / "coordinator" / "identity" / "revoked.pem").unlink()
    world.start_coordinator()
    try:
        assert world.coordinator is not None
        assert world.coordinator.monitor is None
        health = coordinator_health(world.coordinator)
        assert health.facts["fresh_revocation_list"] is False
        assert [problem.partition(":")[0] for problem in health.problems] == ["it takes no orders"]
        names = {family.name: family.samples for family in coordinator_metrics(world.coordinator)}
        assert names["woodlot_healthy"] == [({}, 0.0)]
        assert names["woodlot_revocation_list_expires_timestamp_seconds"] == []
    finally:
        world.close()


@pytest.mark.slow
def test_a_real_prometheus_scrapes_every_service(world: World, tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("there is no program `prometheus` here; on Debian: apt install prometheus")
    with processes(world) as running:
        running.wait_connected()
        ports = {name: port_of(running, name) for name in EVERYBODY}
        config = tmp_path / "prometheus.yml"
        targets = json.dumps([f"127.0.0.1:{port}" for port in ports.values()])
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs:\n  - {{job_name: woodlot, static_configs: [{{targets: {targets}}}]}}\n"
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [
            prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]  # fmt: skip
        with (tmp_path / "prometheus.log").open("wb") as log:
            scraper = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            found = wait_until(lambda: _queried(port, "woodlot_healthy", len(ports)), "all services to be scraped")
            assert {float(one["value"][1]) for one in found} == {1.0}
            assert len(_queried(port, "up == 1", len(ports)) or []) == len(ports)
        finally:
            scraper.terminate()
            scraper.wait(HANGS)


@pytest.mark.slow
def test_the_examples_of_the_page_are_right(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no program `promtool` here; on Debian: apt install prometheus")
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    config, rules = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for what, text in (("config", config), ("rules", rules)):
        path = tmp_path / f"{what}.yml"
        path.write_text(text)
        done = subprocess.run(
            [promtool, "check", what, path], capture_output=True, text=True, check=False, timeout=HANGS
        )
        assert done.returncode == 0, done.stdout + done.stderr
    named = set(re.findall(r"`((?:woodlot|process)_\w+)`", page)) | set(re.findall(r"\b(woodlot_\w+)\b", rules))
    assert named - {"woodlot_jobs"} <= {*_told_names(tmp_path)}


def _told_names(folder: Path) -> Iterator[str]:
    """Names of all samples that services have: suffixes included."""
    world = World(folder / "world", small_tables())
    suffixes = {"counter": "_total", "info": "_info", "gauge": ""}
    with in_process(world):
        assert world.coordinator is not None
        for family in (*coordinator_metrics(world.coordinator), *agent_metrics(world.parties["bank"])):
            yield family.name + suffixes[family.type]


def _queried(port: int, query: str, n: int) -> list[Any] | None:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/api/v1/query?query={urllib.request.quote(query)}", timeout=HANGS
        ) as reply:
            result: list[Any] = json.load(reply)["data"]["result"]
    except (OSError, urllib.error.URLError):
        return None
    return result if len(result) == n else None
