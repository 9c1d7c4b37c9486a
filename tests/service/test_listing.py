"""However much one user orders, the coordinator's disk and everybody's lists stay usable."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.linear.linear_orders import TrainLinearOrder
from woodlot.jobs.order_seal import read_order
from woodlot.jobs.orders import MAX_PARTIES
from woodlot.protocols.core.message import Message
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.runtime.codec import DEFAULT_LIMIT, MAX_HEADER, decode, encode
from woodlot.runtime.peers import Peer
from woodlot.service import allowance
from woodlot.service.allowance import Allowance
from woodlot.service.client import Client
from woodlot.service.user_desk import UserDesk

ALICE = Peer(name="alice", role="user", serial=1, certificate=b"")
PLAN = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=1,
    tol=1e-3,
)  # fmt: skip
ORDER: dict[str, Any] = {
    "job": "1" * 32, "created": 1.0, "federation": "", "coordinator": "", "parties": ("bank",),
    "sealed": {"bank": b""}, "holder": "bank", "plan": PLAN, "settings": "{}",
}  # fmt: skip


# --- what an order may be ---


def test_orders_have_short_names_and_settings_and_not_too_many_parties() -> None:
    def data(**changes: Any) -> bytes:
        plain = msgspec.to_builtins(TrainLinearOrder(**ORDER)) | changes
        return msgspec.json.encode(plain)

    assert read_order(data(name="risk-2025.1", settings=" " * 65_536)).kind == "train-linear"
    crowd = [f"p{k}" for k in range(MAX_PARTIES + 1)]
    for changes in (
        {"name": "N" * 65}, {"name": "a\nb"}, {"name": "-x"}, {"settings": " " * 65_537}, {"settings": "€" * 30_000},
        {"parties": crowd, "sealed": dict.fromkeys(crowd, "")},
    ):  # fmt: skip
        with pytest.raises(RemoteProtocolError, match="this is no order"):
            read_order(data(**changes))
    with pytest.raises(DataError, match="of 3,670,016 characters must be up to 64 letters"):  # at the user's, in words
        TrainLinearOrder(**ORDER, name="N" * 3_670_016)
    with pytest.raises(DataError, match="the settings have 65,537 bytes, and 65,536 are taken at most"):
        TrainLinearOrder(**ORDER | {"settings": " " * 65_537})


# --- what is kept ---


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with closing(JobStore(tmp_path)) as made:
        yield made


def job_facts(number: int, **changes: Any) -> msg.JobFacts:
    known: dict[str, Any] = {"kind": "align", "user": "alice", "state": "queued", "version": 1, "parties": ("bank",)}
    return msg.JobFacts(**{"job": f"{number:032x}", "created": float(number // 3)} | known | changes)


@pytest.mark.parametrize(
    ("kind", "state", "is_kept"),
    [
        ("train", "running", True), ("train", "stopped", True), ("train", "failed", False),
        ("train-linear", "cancelled", False), ("train-rows", "done", True), ("predict", "done", True),
        ("predict-encrypted", "done", False), ("align", "done", False), ("revoke", "failed", True),
    ],
)  # fmt: skip
def test_an_order_is_kept_only_as_long_as_it_is_needed(store: JobStore, kind: str, state: str, is_kept: bool) -> None:
    needle = hashlib.sha256(b"of this order").hexdigest().encode()
    order = b"{" + needle + b" " * 100_000 + needle + b"}"
    store.add(order, b"s", b"c", job_facts(1, kind=kind))
    for _ in range(2):
        store.update(job_facts(1, kind=kind, state=state))
    stored = store.job(job_facts(1).job)
    assert stored is not None
    assert stored.order == (order if is_kept else b"sha256:" + hashlib.sha256(order).hexdigest().encode())
    assert stored.is_of(order)
    assert not stored.is_of(order + b" ")
    assert (store.bytes_of_user("alice", 0.0) > 100_000) == is_kept
    on_disk = b"".join(path.read_bytes() for path in store.folder.glob("jobs.sqlite*"))
    assert (needle in on_disk) == is_kept


def test_refused_orders_do_not_fill_the_disk(store: JobStore) -> None:
    path = store.folder / "jobs.sqlite"
    for number in range(30):
        store.add(b"o" * 3_000_000, b"s", b"c", job_facts(number))
        store.update(job_facts(number, state="failed"))
    assert path.stat().st_size < 10_000_000


@pytest.mark.slow
def test_one_users_record_of_a_day_has_a_limit(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "MAX_BYTES", 100_000)
    counted = Allowance(store)

    def order(number: int, user: str) -> None:
        counted.take(user, 30_000)
        store.add(b"o" * 30_000, b"", b"", job_facts(number, user=user, created=time.time()))

    for number in range(3):
        order(number, "mallory")
    with pytest.raises(PolicyError, match="cancel those that have stopped, or order later"):
        order(3, "mallory")
    with pytest.raises(PolicyError, match="100,000 is the most"):  # as well after a restart
        Allowance(store).take("mallory", 30_000)
    order(4, "alice")
    store.update(job_facts(0, user="mallory", state="cancelled"))
    with pytest.raises(PolicyError):  # it is not counted again at once
        order(5, "mallory")
    monkeypatch.setattr(allowance, "COUNT_SECONDS", 0.0)
    order(5, "mallory")
    for number in range(10, 1_000):  # those that end leave little behind
        counted.take("bob", 30_000)
        store.add(b"o" * 30_000, b"", b"", job_facts(number, user="bob", created=1.0))
        store.update(job_facts(number, user="bob", state="failed"))


# --- what is listed ---


@pytest.fixture
def client(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Alice, who talks to the desk without a network."""
    desk = UserDesk(SimpleNamespace(store=store, live={}, config=SimpleNamespace(message_limit=DEFAULT_LIMIT)))  # type: ignore[arg-type]

    def ask(self: Client, request: Message, kind: type[Message]) -> Message:
        reply = desk.serve(ALICE, encode(request))
        assert isinstance(reply, bytes)
        message = decode(reply)
        assert isinstance(message, kind), message
        return message

    monkeypatch.setattr(Client, "ask", ask)
    made = Client.__new__(Client)
    made._leaders = {}  # it has ordered nothing
    return made


def test_jobs_are_listed_page_by_page(store: JobStore, client: Client) -> None:
    for number in range(450):
        store.add(b"", b"", b"", job_facts(number, name="N" * 20_000 if number % 2 else ""))
    store.add(b"", b"", b"", job_facts(999, user="bob"))
    names = [f"{number:032x}" for number in reversed(range(450))]
    assert [facts.job for facts in client.all_jobs()] == names
    assert [facts.job for facts in client.all_jobs(7)] == names
    assert [facts.job for facts in client.jobs()] == names[:200]
    assert [facts.job for facts in client.jobs(1_000)] == names
    assert client.ask(msg.ListJobs(limit=1), msg.JobList).more
    assert not client.ask(msg.ListJobs(below=(0.0, names[-2])), msg.JobList).more


def test_a_job_that_is_longer_than_a_message_does_not_spoil_the_list(store: JobStore, client: Client) -> None:
    """Such as were recorded before there were limits, or a party's long words."""
    store.add(b"", b"", b"", job_facts(1, name="N" * MAX_HEADER, error="E" * MAX_HEADER))
    store.add(b"", b"", b"", job_facts(2))
    second, first = client.jobs()
    assert (first.name, first.error) == ("N" * 64, "E" * 1_000)
    assert second == job_facts(2)


def model_facts(number: int, **changes: Any) -> msg.ModelFacts:
    known: dict[str, Any] = {
        "name": "", "user": "alice", "forest": "f", "parties": ("bank",), "holder": "bank", "n_rows": 3, "n_trees": 1,
        "n_nodes": 1, "splits": {}, "classes": (), "complete": True, "unwilling": (), "oob_score": None,
        "settings": "{}", "disclosure": '[{"kind": "Ready"}]', "cost": '{"rounds": 3}',
    }  # fmt: skip
    return msg.ModelFacts(**{"model": f"{number:032x}", "created": float(number // 3)} | known | changes)


def keep(store: JobStore, facts: msg.ModelFacts) -> None:
    folder = store.folder / "models" / facts.model
    folder.mkdir(parents=True)
    (folder / "facts.json").write_bytes(msgspec.json.encode(facts))


def test_models_are_listed_page_by_page_without_their_accounts(store: JobStore, client: Client) -> None:
    for number in range(120):
        keep(store, model_facts(number, settings=" " * 65_536, disclosure=f'["{"a" * 40_000}"]'))
    keep(store, model_facts(120, settings=" " * MAX_HEADER, classes=("c" * MAX_HEADER,)))
    listed = client.models()
    assert [model.model for model in listed] == [f"{number:032x}" for number in reversed(range(121))]
    assert {(model.disclosure, model.cost) for model in listed} == {("[]", "{}")}
    assert client.ask(msg.ListModels(), msg.ModelList).more
    assert client.find_model(model_facts(7).model).cost == '{"rounds": 3}'
