"""Lists of revocations end. Who has none that is good takes no orders; the coordinator is not the only way to one."""

from __future__ import annotations

import http.server
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from halts import HANGS
from party_bench import Bench, play
from typer.testing import CliRunner
from world import World, running

from woodlot.cli import app
from woodlot.exceptions import ConfigError, IdentityError
from woodlot.identity import certificates
from woodlot.identity.authority import LIST_DAYS, Authority
from woodlot.identity.certificates import key_bytes
from woodlot.identity.identity import Trust
from woodlot.identity.revocation_source import ListSource, RevocationSource
from woodlot.jobs import job_messages as msg
from woodlot.jobs.order_seal import sign_order
from woodlot.jobs.orders import AlignOrder
from woodlot.jobs.revocable.revocable_orders import KeysOrder
from woodlot.protocols.core.message import Refusal
from woodlot.runtime.codec import decode, encode
from woodlot.service.agent import Agent
from woodlot.service.config import MemberConfig, PartyConfig
from woodlot.service.coordinator import Coordinator
from woodlot.service.member import MemberService
from woodlot.service.party import Party

ENDED = (
    r"list of revoked certificates here \(number 1\) was good until .*woodlot identity revocations AUTHORITY --renew"
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as made:
        yield made


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the days of a list pass; certificates are good for longer."""

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=LIST_DAYS, minutes=1)

    return lambda: monkeypatch.setattr(certificates, "datetime", Later)


def renewed(authority: Authority) -> bytes:
    """A list that is good when the days have passed."""
    return authority.renew_revocations(days=2 * LIST_DAYS).pem


def reason(reply: bytes) -> str:
    message = decode(reply)
    assert isinstance(message, Refusal)
    return message.reason


def opening(bench: Bench) -> tuple[str, bytes]:
    order = AlignOrder(**bench.fields())
    return order.job, encode(bench.opening(order))


# --- the authority ---


def test_a_list_is_good_for_some_days_and_is_renewed(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority", "north", days=30, list_days=3)
    first = authority.revocations()
    assert (first.number, first.serials) == (1, frozenset())
    soon = datetime.now(UTC) + timedelta(days=3)
    assert abs(first.expires - soon) < timedelta(minutes=1)
    second = authority.renew_revocations()
    assert (second.number, second.serials) == (2, frozenset())
    assert abs(second.expires - soon) < timedelta(minutes=1)
    third = authority.renew_revocations(days=9)
    assert third.expires - second.expires > timedelta(days=5)
    with pytest.raises(IdentityError, match="at least 1 day, not 0"):
        authority.renew_revocations(days=0)
    default = Authority.create(tmp_path / "other", "south", days=30).revocations()
    assert abs(default.expires - datetime.now(UTC) - timedelta(days=LIST_DAYS)) < timedelta(minutes=1)


def test_a_renewed_list_keeps_who_was_revoked(bench: Bench) -> None:
    authority = bench.world.authority
    authority.revoke("bob")
    revoked = authority.revocations()
    again = authority.renew_revocations()
    assert again.serials == revoked.serials
    assert len(again.serials) == 1
    assert again.number == revoked.number + 1


# --- who has none that is good takes no orders ---


def test_a_party_refuses_orders_and_goes_on_with_what_it_has_begun(bench: Bench, wait: Callable[[], None]) -> None:
    record = play(bench, AlignOrder(**bench.fields()))
    config, last = bench.world.party_config("bank"), len(record.asked["bank"])
    job, order = opening(bench)
    with Party(config) as party:
        for number in range(1, last):
            party.answer(record.job, number, record.asked["bank"][number - 1])
    wait()
    with Party(config) as party:
        assert party.answer(record.job, last, record.asked["bank"][-1]) == record.answered["bank"][-1]
        assert re.search(ENDED, reason(party.answer(job, 1, order)))
        # the coordinator passes a new one on
        party._learn_revocations(renewed(bench.world.authority))
        job, order = opening(bench)
        assert isinstance(decode(party.answer(job, 1, order)), msg.JobOpened)


def test_a_party_without_any_list_refuses_orders(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    config = bench.world.party_config("bank")
    list_file = config.identity / "revoked.pem"
    list_file.unlink()
    job, order = opening(bench)
    with Party(config) as party:
        assert "no list of revoked certificates found" in reason(party.answer(job, 1, order))
        party.start()
        assert "no orders are taken: no list of revoked certificates found" in caplog.text
        party._learn_revocations(bench.world.authority.revocations().pem)
        job, order = opening(bench)
        assert isinstance(decode(party.answer(job, 1, order)), msg.JobOpened)
    assert list_file.exists()  # and is there after a restart


def test_so_does_a_helper(bench: Bench, wait: Callable[[], None]) -> None:
    order = KeysOrder(**bench.fields(), model="1" * 32, helper="bank", key_service="shop")
    raw = {"coordinator": "localhost:1", "allow_same_host": True, "policy": {"train": ["alice"]}}
    config = MemberConfig.parse(raw, folder=bench.world.root / "bank", origin="helper.toml")
    wait()
    with MemberService(config, "helper") as helper:
        assert re.search(ENDED, reason(helper.answer(order.job, 1, encode(bench.opening(order)))))


def test_so_does_the_coordinator(bench: Bench, wait: Callable[[], None]) -> None:
    bench.coordinator.close()
    with Coordinator(bench.world.coordinator_config()) as coordinator:
        order = AlignOrder(**bench.fields())
        data, signature = sign_order(order, bench.users["alice"])
        wait()
        with pytest.raises(IdentityError, match=ENDED):
            coordinator.take(data, signature, bench.users["alice"].certificate)
        path = bench.world.root / "coordinator" / "identity" / "revoked.pem"
        path.write_bytes(renewed(bench.world.authority))
        with pytest.raises(Exception, match="never joined this federation"):  # the next thing that it checks
            coordinator.take(data, signature, bench.users["alice"].certificate)


# --- the ways of a list ---


def test_a_list_in_a_configured_file_does_not_need_the_coordinator(bench: Bench, wait: Callable[[], None]) -> None:
    """The coordinator withholds every list; who was revoked is refused, and a party goes on after the list's end."""
    shared = bench.world.root / "shared.pem"
    raw = bench.world.settings["bank"] | {"coordinator": bench.world.address, "revocations": "../shared.pem"}
    config = PartyConfig.parse(raw, folder=bench.world.root / "bank", origin="party.toml")
    with Party(config) as party:
        job, order = opening(bench)
        assert isinstance(decode(party.answer(job, 1, order)), msg.JobOpened)  # nothing is there yet
        wait()
        shared.write_bytes(renewed(bench.world.authority))
        job, order = opening(bench)
        assert isinstance(decode(party.answer(job, 1, order)), msg.JobOpened)
        assert (config.identity / "revoked.pem").read_bytes() == shared.read_bytes()
        bench.world.authority.revoke("alice")
        shared.write_bytes(bench.world.authority.revocations().pem)
        job, order = opening(bench)
        assert "is revoked" in reason(party.answer(job, 1, order))
        shared.write_bytes(b"damaged")  # changes nothing
        job, order = opening(bench)
        assert "is revoked" in reason(party.answer(job, 1, order))


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the list; counts how often."""

    asked = 0
    body = b""

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An https server that this process trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )  # fmt: skip
    path = folder / "server.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + key_bytes(key))
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/revoked.pem"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_list_at_an_address(
    bench: Bench, wait: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority, identity = bench.world.authority, bench.users["alice"]
    own = tmp_path / "revoked.pem"
    own.write_bytes(authority.revocations().pem)
    with served(tmp_path, monkeypatch) as address:
        Quiet.body, Quiet.asked = renewed(authority), 0
        trust = Trust(identity.authority, own, source=RevocationSource(ListSource.parse(address)))
        wait()
        for _ in range(3):
            trust.check_fresh()
        assert Quiet.asked == 1  # not once for every order
        assert own.read_bytes() == Quiet.body
        Quiet.body = b"no list"
        other = Trust(identity.authority, own, source=RevocationSource(ListSource.parse(address)))
        other.check_fresh()
        assert Quiet.asked == 2
    # nobody answers: what there is counts, and is checked
    away = Trust(identity.authority, None, source=RevocationSource(ListSource.parse(address)))
    with pytest.raises(IdentityError, match="no list of revoked certificates found"):
        away.check_fresh()


def test_where_a_list_can_be(tmp_path: Path) -> None:
    raw: dict[str, Any] = {"coordinator": "localhost:1"}
    for wrong in ("http://authority.example/revoked.pem", "ftp://x/y", "", 3):
        with pytest.raises(ConfigError, match="revocations"):
            MemberConfig.parse(raw | {"revocations": wrong}, folder=tmp_path, origin="helper.toml")
    for right in ("https://authority.example/revoked.pem", "/srv/revoked.pem"):
        config = MemberConfig.parse(raw | {"revocations": right}, folder=tmp_path, origin="helper.toml")
        assert config.revocations == right
    config = MemberConfig.parse(raw | {"revocations": "revoked.pem"}, folder=tmp_path, origin="helper.toml")
    assert config.revocations == str(tmp_path / "revoked.pem")
    assert msgspec.structs.asdict(MemberConfig.parse(raw, folder=tmp_path, origin="helper.toml"))["revocations"] is None


def test_a_party_that_is_connected_gets_a_renewed_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    world = World(tmp_path, {"bank": {"customers": pa.table({"id": [1, 2], "age": [1.0, 2.0]})}})
    arrived, wanted, learn = threading.Event(), [b""], Agent._learn_revocations

    def learnt(self: Agent, data: bytes) -> None:
        learn(self, data)
        if data == wanted[0]:
            arrived.set()

    monkeypatch.setattr(Agent, "_learn_revocations", learnt)
    with running(world):
        wanted[0] = world.authority.renew_revocations().pem
        (tmp_path / "coordinator" / "identity" / "revoked.pem").write_bytes(wanted[0])
        assert arrived.wait(HANGS)
        assert (tmp_path / "bank" / "identity" / "revoked.pem").read_bytes() == wanted[0]


def test_the_command(bench: Bench, wait: Callable[[], None], tmp_path: Path) -> None:
    def run(*words: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["identity", "revocations", *map(str, words)])
        return result.exit_code, result.output + str(result.exception or "")

    authority, bank = bench.world.authority.folder, bench.world.root / "bank" / "identity"
    assert run(authority)[0] == 0
    code, said = run(bank, "--json")
    assert code == 0
    assert '"number": 1' in said
    wait()
    code, said = run(bank)
    assert code == 1
    assert "was good until" in said
    code, said = run(authority, "--renew", "--days", 30, "--export", tmp_path / "new.pem")
    assert code == 0, said
    assert "to the coordinator" in said
    assert run(bank, "--import", tmp_path / "new.pem")[0] == 0
    assert (bank / "revoked.pem").read_bytes() == (tmp_path / "new.pem").read_bytes()
    for wrong in (
        (bank, "--renew"),
        (authority, "--import", tmp_path / "new.pem"),
        (bank, "--import", bank / "ca.pem"),
    ):
        assert run(*wrong)[0] == 1
    (bank / "revoked.pem").unlink()
    code, said = run(bank)
    assert code == 1
    assert "no list of revoked certificates found" in said
