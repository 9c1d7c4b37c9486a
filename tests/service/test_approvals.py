"""Jobs that wait until the owner of the data allows them: what is shown, what a decision is about, and how long."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from party_bench import Bench, train_order
from processes import Processes, small_tables, wait_until, write_toml
from small_jobs import train_order as small_training
from small_jobs import user_of
from typer.testing import CliRunner
from world import POLICY, World, running

from woodlot.cli import app
from woodlot.exceptions import ApprovalPendingError, ConfigError, DataError, JobFailed, PolicyError
from woodlot.jobs.approvals import APPROVALS, Approvals
from woodlot.jobs.job_messages import JobFacts, JobList, JobStatus
from woodlot.jobs.orders import AlignOrder, Part
from woodlot.jobs.policy import Policy, refuse_unknown
from woodlot.runtime.peers import Peer
from woodlot.runtime.protocol_versions import APPROVALS as APPROVALS_VERSION
from woodlot.service.client import Client
from woodlot.service.user_desk import in_version

DAY = 86_400.0


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with closing(Bench(tmp_path_factory.mktemp("bench"))) as made:
        yield made


@pytest.fixture
def bench(shared_bench: Bench) -> Bench:
    shared_bench.change_policy("bank", approve=("train",), train=("alice",))
    shared_bench.homes["bank"] = replace(shared_bench.homes["bank"], approvals=None)
    return shared_bench


def desk(bench: Bench, folder: Path, now: Callable[[], float] = lambda: 100.0, days: int = 7) -> Approvals:
    """A new record of approvals, used by the bank's jobs."""
    record = Approvals(folder, days, now)
    bench.homes["bank"] = replace(bench.homes["bank"], approvals=record)
    return record


def test_an_order_waits_and_is_taken_when_the_owner_allows_it(bench: Bench, tmp_path: Path) -> None:
    with desk(bench, tmp_path) as record:
        order = train_order(bench)
        opening = bench.opening(order)
        for _ in range(3):
            with pytest.raises(ApprovalPendingError):
                bench.job("bank", order.job).handle(opening)
        (entry,) = record.listed()
        assert (entry.user, entry.job, entry.state) == ("alice", order.job, "waiting")
        about = entry.about
        assert (about.kind, about.table, about.label, about.parties) == (
            "train", "customers", "late", ("bank", "shop")
        )  # fmt: skip
        assert {"EncodedLabels", "Partition"} <= {line.message for line in about.tells if line.stake == "rows"}
        assert record.decide(entry.id, allow=True).state == "allowed"
        job = bench.job("bank", order.job)
        job.handle(opening)
        assert not job.is_empty
        assert record.listed() == []
        assert record.listed(every=True)[0].state == "used"
        bench.job("bank", order.job).handle(opening)  # a crash has lost the answer
        with pytest.raises(DataError, match="has begun"):
            record.decide(entry.id, allow=False)


def test_a_decision_is_about_one_signed_order(bench: Bench, tmp_path: Path) -> None:
    """Another order under the name of an allowed job, and the same order signed by another user, wait."""
    bench.change_policy("bank", approve=("*",), train=("alice", "bob"))
    with desk(bench, tmp_path) as record:
        order = train_order(bench)
        with pytest.raises(ApprovalPendingError):
            bench.job("bank", order.job).handle(bench.opening(order))
        record.decide(record.listed()[0].id, allow=True)
        fields = {name: getattr(order, name) for name in ("created", "federation", "coordinator", "parties", "sealed")}
        other = AlignOrder(**fields, job=order.job)
        for opening in (bench.opening(other), bench.opening(order, "bob")):
            with pytest.raises(ApprovalPendingError):
                bench.job("bank", order.job).handle(opening)
        assert [(entry.about.kind, entry.user) for entry in record.listed()] == [("align", "alice"), ("train", "bob")]
        assert len({entry.id for entry in record.listed(every=True)}) == 3


def test_a_refusal_tells_the_reason_and_nothing_is_counted(bench: Bench, tmp_path: Path) -> None:
    with desk(bench, tmp_path) as record:
        order = train_order(bench)
        with pytest.raises(ApprovalPendingError):
            bench.job("bank", order.job).handle(bench.opening(order))
        record.decide(record.listed()[0].id, allow=False, reason="ask for fewer trees")
        with pytest.raises(PolicyError, match="refused this job: ask for fewer trees"):
            bench.job("bank", order.job).handle(bench.opening(order))
        assert order.job not in bench.homes["bank"].tally.counts().open
        with pytest.raises(DataError, match="was refused"):
            record.decide(record.listed(every=True)[0].id, allow=True)
        with pytest.raises(DataError, match="at most"):
            record.decide("x", allow=False, reason="x" * 501)
        with pytest.raises(DataError, match="no order 'x'"):
            record.decide("x", allow=True)


@pytest.mark.parametrize("allowed", [False, True])
def test_what_nobody_decides_or_uses_expires(bench: Bench, tmp_path: Path, allowed: bool) -> None:
    now = 1000.0
    with desk(bench, tmp_path, lambda: now, days=2) as record:
        order = train_order(bench)
        opening = bench.opening(order)
        with pytest.raises(ApprovalPendingError):
            bench.job("bank", order.job).handle(opening)
        (entry,) = record.listed()
        now += 1.9 * DAY
        if allowed:
            record.decide(entry.id, allow=True)
            now += 1.9 * DAY
        assert record.listed(every=True)[0].state == ("allowed" if allowed else "waiting")
        now += 0.2 * DAY
        with pytest.raises(PolicyError, match="approval_days"):
            bench.job("bank", order.job).handle(opening)
        with pytest.raises(DataError, match="has expired"):
            record.decide(entry.id, allow=True)


def test_what_the_policy_forbids_is_refused_and_never_listed(bench: Bench, tmp_path: Path) -> None:
    with desk(bench, tmp_path) as record:
        order = train_order(bench)
        with pytest.raises(PolicyError, match="does not let 'bob' train"):
            bench.job("bank", order.job).handle(bench.opening(order, "bob"))
        assert record.listed(every=True) == []


def test_a_user_cannot_fill_the_list(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("woodlot.jobs.approvals.MAX_WAITING", 3)
    with desk(bench, tmp_path) as record:
        order = train_order(bench)
        for number in range(3):
            with pytest.raises(ApprovalPendingError):
                record.check(b"%d" % number, order, Part(), "alice")
        with pytest.raises(PolicyError, match="wait for approval here"):
            record.check(b"one more", order, Part(), "alice")
        with pytest.raises(ApprovalPendingError):
            record.check(b"one more", order, Part(), "bob")
        record.withdraw(order.job)
        assert record.listed(every=True) == []


def test_a_host_without_a_record_refuses(bench: Bench) -> None:
    order = train_order(bench)
    with pytest.raises(PolicyError, match="only a party's service can wait"):
        bench.job("bank", order.job).handle(bench.opening(order))


def test_which_orders_need_approval() -> None:
    policy = Policy(approve=("train", "evaluate"), approved_users=("carol",))
    asked = {kind for kind in ("train", "align", "evaluate", "evaluate-rows") if policy.needs_approval(kind, "alice")}
    assert asked == {"train", "evaluate", "evaluate-rows"}
    assert not policy.needs_approval("train", "carol")
    assert Policy(approve=("*",)).needs_approval("catalog", "alice")
    assert not Policy().needs_approval("train", "alice")
    with pytest.raises(ConfigError, match=r"policy.approve\[0\]: 'trian'"):
        refuse_unknown(Policy(approve=("trian",)), "party.toml")


def test_users_from_before_approvals_are_told_whom_a_job_waits_for() -> None:
    """Their version refuses facts with a field that it does not know."""
    facts = JobFacts(job="0" * 32, kind="train", user="alice", state="queued", version=1, created=0, approval=("bank",))
    older, newer = (Peer("alice", "user", 1, b"", version) for version in (APPROVALS_VERSION - 1, APPROVALS_VERSION))
    for reply in (JobStatus(facts=facts), JobList(jobs=(facts,))):
        assert in_version(newer, reply) is reply
        told = in_version(older, reply)
        (shown,) = told.jobs if isinstance(told, JobList) else (told.facts,)  # type: ignore[attr-defined]
        assert (shown.waiting_for, shown.approval) == (("bank",), msgspec.UNSET)


# --- between services ---


def asking(world: World, *parties: str) -> World:
    """A federation in which these parties' owners approve everything."""
    for party in parties:
        world.settings[party]["policy"] = POLICY | {"approve": ["*"]}
    return world


def waits(client: Client, job: str, *parties: str) -> None:
    """Wait until a job waits for these owners."""
    wait_until(lambda: client.job(job).approval == parties, f"{job} to wait for the approval of {parties}")


def decide(world: World, party: str, *, allow: bool, reason: str = "") -> None:
    """Decide about the one order that waits at a party, as its owner does beside the running service."""
    with Approvals(world.root / party / "state", 7) as record:
        (entry,) = record.listed()
        record.decide(entry.id, allow=allow, reason=reason)


@pytest.mark.parametrize("lead", ["coordinator", pytest.param(None, marks=pytest.mark.slow)])
def test_a_job_waits_for_both_owners_and_then_runs(tmp_path: Path, lead: str | None) -> None:
    with running(asking(World(tmp_path, small_tables()), "bank", "shop")) as world, user_of(world, lead=lead) as alice:
        job = alice.client.submit(small_training(alice)).job
        waits(alice.client, job, "bank", "shop")
        facts = alice.client.job(job)
        assert (facts.state, facts.waits) == ("queued", "waiting for the approval of bank, shop")
        decide(world, "shop", allow=True)
        waits(alice.client, job, "bank")
        decide(world, "bank", allow=True)
        done = alice.client.finish(job)
        assert (done.state, done.waits) == ("done", "")


@pytest.mark.slow
def test_a_refusal_reaches_the_user_and_takes_the_order_off_the_other_list(tmp_path: Path) -> None:
    with running(asking(World(tmp_path, small_tables()), "bank", "shop")) as world, user_of(world) as alice:
        job = alice.client.submit(small_training(alice)).job
        waits(alice.client, job, "bank", "shop")
        decide(world, "shop", allow=False, reason="not this quarter")
        with pytest.raises(
            JobFailed, match="party 'shop': the owner of its data has refused this job: not this quarter"
        ):
            alice.client.finish(job)
        with Approvals(tmp_path / "bank" / "state", 7) as record:
            wait_until(lambda: not record.listed(), "the bank to hear that the job has ended")


@pytest.mark.slow
def test_a_job_that_waits_holds_up_no_other_and_can_be_cancelled(tmp_path: Path) -> None:
    world = asking(World(tmp_path, small_tables()), "bank")
    world.settings["bank"]["policy"]["approve"] = ["train"]
    world.coordinator_settings["max_running_jobs"] = 1
    with running(world), user_of(world) as alice:
        job = alice.client.submit(small_training(alice)).job
        waits(alice.client, job, "bank")
        parts = {party: Part(table="customers") for party in ("bank", "shop")}
        alice.client.finish(alice.client.submit(AlignOrder(**alice.client.order_fields(parts))).job)
        assert alice.client.job(job).approval == ("bank",)
        alice.client.cancel(job)
        wait_until(lambda: alice.client.job(job).state == "cancelled", "the job to end")


def test_the_command_lists_allows_and_refuses(bench: Bench, tmp_path: Path) -> None:
    run, config = CliRunner(), tmp_path / "party.toml"
    settings = bench.world.settings["bank"] | {"state": str(tmp_path / "state")}
    write_toml(config, {"coordinator": bench.world.address, **settings})
    with desk(bench, tmp_path / "state", time.time) as record:
        for _ in range(2):
            order = train_order(bench)
            with pytest.raises(ApprovalPendingError):
                bench.job("bank", order.job).handle(bench.opening(order))
        first, second = record.listed()
    shown = run.invoke(app, ["approvals", "--config", str(config)])
    assert shown.exit_code == 0, shown.output
    for words in (first.id, second.id, "alice", "customers", "late", "at stake", "label holder"):
        assert words in " ".join(shown.output.split()), words
    told = json.loads(run.invoke(app, ["approvals", "--config", str(config), "--json"]).output)
    assert [entry["id"] for entry in told["approvals"]] == [first.id, second.id]
    assert run.invoke(app, ["approvals", "allow", first.id, "--config", str(config)], input="n\n").exit_code == 1
    yes = run.invoke(app, ["approvals", "allow", first.id, "--config", str(config), "--yes"])
    assert (yes.exit_code, "is allowed" in yes.output) == (0, True)
    no = run.invoke(app, ["approvals", "refuse", second.id, "--config", str(config), "--reason", "no", "--json"])
    assert json.loads(no.output)["reason"] == "no"
    assert "No order waits" in run.invoke(app, ["approvals", "--config", str(config)]).output
    assert run.invoke(app, ["approvals", "allow", second.id, "--config", str(config), "--yes"]).exit_code == 1


@pytest.mark.slow
def test_waiting_and_deciding_survive_kill_9_of_everybody(tmp_path: Path) -> None:
    world = asking(World(tmp_path, small_tables()), "bank", "shop")
    with closing(Processes(world)) as services:
        services.start()
        services.wait_connected()
        with user_of(world) as alice:
            job = alice.client.submit(small_training(alice)).job
            waits(alice.client, job, "bank", "shop")
            for name in ("coordinator", "bank", "shop"):  # while it waits
                services.kill(name)
                services.restart(name)
            waits(alice.client, job, "bank", "shop")
            services.kill("bank")
            decide(world, "bank", allow=True)  # beside a service that is down
            services.restart("bank")
            waits(alice.client, job, "shop")
            services.kill("bank")  # after it has opened the job
            services.kill("coordinator")
            decide(world, "shop", allow=True)
            services.restart("coordinator")
            services.restart("bank")
            assert alice.client.finish(job).state == "done"
            with Approvals(tmp_path / "bank" / "state", 7) as record:
                assert [entry.state for entry in record.listed(every=True)] == ["used"]
    assert (tmp_path / "bank" / "state" / APPROVALS).stat().st_mode & 0o077 == 0
