"""Certificates that expire or are revoked in the middle of a job that is then rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from party_bench import Bench, Play, play

from woodlot.identity import certificates
from woodlot.identity.certificates import CertificateRequest
from woodlot.identity.identity import install
from woodlot.jobs import job_messages as msg
from woodlot.jobs.orders import AlignOrder
from woodlot.jobs.revocable.revocable_orders import KeysOrder
from woodlot.protocols.align import align_messages
from woodlot.protocols.core.message import Refusal, Unanswered
from woodlot.runtime.codec import decode, encode
from woodlot.service.config import MemberConfig
from woodlot.service.member import MemberService
from woodlot.service.party import Party

LATER = 12
"""Days until everybody's certificate has expired but the bank's."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    bank = tmp_path / "bank"
    asked = CertificateRequest.parse((bank / "identity" / "request.pem").read_bytes(), "the request")
    (bank / "longer.pem").write_bytes(made.world.authority.sign(asked, days=2 * LATER))
    install(bank / "identity", bank / "longer.pem")
    made.homes["bank"].store.close()
    made.homes["bank"] = made._home("bank")
    yield made
    made.close()


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the days pass."""

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=LATER)

    return lambda: monkeypatch.setattr(certificates, "datetime", Later)


def ask(party: Party, record: Play, numbers: range) -> list[bytes]:
    """Send the bank what it was sent in a job; returns what it answers."""
    return [party.answer(record.job, number, record.asked["bank"][number - 1]) for number in numbers]


def refusal(reply: bytes) -> str:
    message = decode(reply)
    assert isinstance(message, Refusal)
    return message.reason


def meeting(record: Play) -> int:
    """The number of the request that brings the partners' certificates."""
    brings = (align_messages.DrawSecret, align_messages.TakeSecret)
    return 1 + [isinstance(decode(data), brings) for data in record.asked["bank"]].index(True)


def test_a_job_is_rebuilt_when_the_certificates_of_user_and_partners_have_expired(
    bench: Bench, wait: Callable[[], None]
) -> None:
    record = play(bench, AlignOrder(**bench.fields()))
    config, last = bench.world.party_config("bank"), len(record.asked["bank"])
    assert 1 < meeting(record) < last
    with Party(config) as party:
        assert ask(party, record, range(1, last)) == record.answered["bank"][:-1]
    wait()
    with Party(config) as party:
        assert ask(party, record, range(last, last + 1)) == record.answered["bank"][-1:]


def test_so_it_is_at_a_helper(bench: Bench, wait: Callable[[], None]) -> None:
    order = KeysOrder(**bench.fields(), model="1" * 32, helper="bank", key_service="shop")
    raw = {"coordinator": "localhost:1", "allow_same_host": True, "policy": {"train": ["alice"]}}
    config = MemberConfig.parse(raw, folder=bench.world.root / "bank", origin="helper.toml")
    opening, other = encode(bench.opening(order)), encode(msg.KeepAlignment())
    with MemberService(config, "helper") as helper:
        assert isinstance(decode(helper.answer(order.job, 1, opening)), msg.JobOpened)
    wait()
    with MemberService(config, "helper") as helper:
        assert "KeepAlignment" in refusal(helper.answer(order.job, 2, other))  # so the job was opened, again
        assert "has expired" in refusal(helper.answer("f" * 32, 1, opening))


def test_what_has_expired_begins_nothing(bench: Bench, wait: Callable[[], None]) -> None:
    record, late = play(bench, AlignOrder(**bench.fields())), AlignOrder(**bench.fields())
    config, meets = bench.world.party_config("bank"), meeting(record)
    with Party(config) as party:
        ask(party, record, range(1, meets))
    wait()
    with Party(config) as party:
        (reply,) = ask(party, record, range(meets, meets + 1))
        assert "the introduction of party 'shop' is not signed by its identity" in refusal(reply)
        assert "has expired" in refusal(party.answer(late.job, 1, encode(bench.opening(late))))


def test_who_was_revoked_stops_a_job_that_is_rebuilt_and_the_job_says_so(bench: Bench) -> None:
    order = AlignOrder(**bench.fields())
    config = bench.world.party_config("bank")
    with Party(config) as party:
        assert isinstance(decode(party.answer(order.job, 1, encode(bench.opening(order)))), msg.JobOpened)
    bench.world.authority.revoke("alice")
    (config.identity / "revoked.pem").write_bytes(bench.world.authority.revocations().pem)
    with Party(config) as party:
        reply = party.answer(order.job, 2, encode(msg.KeepAlignment()))
        assert isinstance(decode(reply), Unanswered)
        assert "it refuses request 1, which it has answered before: the order is not taken" in refusal(reply)
        assert "is revoked" in refusal(reply)
