"""Peers that should not be there connect to a real coordinator, over real sockets and with real certificates."""

from __future__ import annotations

import base64
import math
import shutil
import socket
import ssl
import struct
import textwrap
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509 import load_pem_x509_certificate
from members import Federation, self_signed
from processes import small_tables, wait_until
from world import World

from woodlot.exceptions import (
    DataError,
    IdentityError,
    LocalProtocolError,
    PolicyError,
    RemoteProtocolError,
    WoodlotError,
)
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import COORDINATOR_HOST, Subject
from woodlot.identity.identity import Identity
from woodlot.jobs import job_messages as msg
from woodlot.jobs.order_seal import common_fields, sign_order
from woodlot.jobs.orders import AlignOrder, Part
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable.key_messages import AskKeys
from woodlot.protocols.vertical import forest_messages
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers.grpc_wire import grpc
from woodlot.runtime.frames import FrameKind, Label, split
from woodlot.runtime.peers import Peer
from woodlot.service import coordinator
from woodlot.service.client import Client
from woodlot.service.user_desk import UserDesk

PATIENCE = 300.0
PAST = datetime.now(UTC) - timedelta(hours=1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A coordinator that listens, and a party that has joined."""
    made = World(tmp_path_factory.mktemp("world"), small_tables())
    for user in ("fired", "carol"):
        made.member("user", user)
    made.coordinator_settings["revocations"] = str(made.root / "authority" / "revoked.pem")
    made.authority.revoke("fired")
    try:
        made.start_coordinator()
        made.start_party("bank")
        assert made.parties["bank"].wait_connected(PATIENCE)
        yield made
    finally:
        made.close()


EVERY_CIPHER = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"
"""So that nothing but the server refuses: by itself this side's OpenSSL would not even ask for what is too old."""


def context(
    folder: Path | None, ca: Path, newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED, *, ciphers: str = ""
) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(ca))
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    made.set_alpn_protocols(["h2"])
    loosen(made, ciphers or EVERY_CIPHER, newest)
    if folder is not None:
        made.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return made


def loosen(made: ssl.SSLContext, ciphers: str, newest: ssl.TLSVersion) -> None:
    made.set_ciphers(ciphers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is what is tried
        made.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        made.maximum_version = newest


def knock(port: int, made: ssl.SSLContext) -> str:
    """What happens after a handshake: the server's first bytes, or how it hung up."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), PATIENCE) as connection,
            made.wrap_socket(connection, server_hostname=COORDINATOR_HOST) as secured,
        ):
            secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            heard = secured.recv(1000)
            return f"heard {secured.version()}" if heard else "closed"
    except OSError as error:
        return f"refused: {error}"


class OtherServer:
    """A server of ours with the coordinator's certificate, which takes anything that is called TLS.

    Parameters
    ----------
    world : World
        Whose coordinator it poses as.
    asks : bool
        Whether it asks for a certificate of the authority; otherwise it lets everybody in.

    """

    def __init__(self, world: World, *, asks: bool = False) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        loosen(self._context, EVERY_CIPHER, ssl.TLSVersion.MAXIMUM_SUPPORTED)
        folder = world.root / "coordinator" / "identity"
        self._context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        if asks:
            self._context.load_verify_locations(ca_of(world))
            self._context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.refusals: list[str] = []
        """Why handshakes have failed, in the words of this side."""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # it is closed
                return
            try:
                with connection, self._context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(1000)
                    secured.sendall(b"come in")
            except OSError as error:
                self.refusals.append(str(error))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()


@pytest.fixture(scope="module")
def careless(world: World) -> Iterator[int]:
    """The port of a server that lets everybody in: whoever is heard there has really asked the coordinator."""
    with closing(OtherServer(world)) as server:
        yield server.port


def test_members_are_heard_and_only_under_tls_1_3(world: World) -> None:
    assert knock(world.port, context(world.root / "alice" / "identity", ca_of(world))) == "heard TLSv1.3"


def ca_of(world: World) -> Path:
    return world.root / "authority" / "ca.pem"


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1])
def test_older_versions_of_tls_are_refused_even_with_a_good_certificate(
    world: World, careless: int, newest: ssl.TLSVersion
) -> None:
    made = context(world.root / "alice" / "identity", ca_of(world), newest)
    assert knock(careless, made) == f"heard {newest.name.replace('_', '.')}"  # this side would
    assert knock(world.port, made).startswith(("refused", "closed"))


@pytest.mark.parametrize("cipher", ["ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-NULL-SHA"])
def test_weak_ciphers_are_refused(world: World, careless: int, cipher: str) -> None:
    folder = world.root / "alice" / "identity"
    made = context(folder, ca_of(world), ssl.TLSVersion.TLSv1_2, ciphers=f"{cipher}:@SECLEVEL=0")
    assert knock(careless, made) == "heard TLSv1.2"
    assert knock(world.port, made).startswith(("refused", "closed"))


def test_strangers_hear_nothing(world: World, careless: int, tmp_path: Path) -> None:
    """No certificate, a self-signed one, another authority's and an expired one; a server that lets all in does so."""
    federation = Federation(tmp_path, world.authority)
    ca = ca_of(world)
    elsewhere = Federation(tmp_path / "e", Authority.create(tmp_path / "e" / "authority", "test", days=60))
    strangers = {
        "nothing": None,
        "self-signed": self_signed(tmp_path / "self", Subject("party", "bank"), ca.read_bytes()),
        "foreign": elsewhere.join("party", "bank"),
        "expired": federation.forge(tmp_path / "expired", Subject("party", "bank"), ends=PAST),
    }
    for name, folder in strangers.items():
        made = context(folder, ca)
        assert knock(careless, made) == "heard TLSv1.3", name
        assert knock(world.port, made).startswith(("refused", "closed")), name
    assert world.coordinator is not None
    assert set(world.coordinator.hub.connected()) == {"bank"}  # the true one is not pushed out


def test_a_partys_certificate_is_nothing_without_its_key(world: World, tmp_path: Path) -> None:
    """What everybody may see of a party, under the signature of another key.

    A file of a key has its public half beside it, and OpenSSL compares only these: with the party's own half beside
    another key it goes on to sign, and it is for the server to find out.
    """
    shown = world.root / "bank" / "identity" / "certificate.pem"
    theirs = load_pem_x509_certificate(shown.read_bytes()).public_key()
    other = ec.generate_private_key(ec.SECP256R1())
    der = other.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    own, stolen = (
        key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint) for key in (other.public_key(), theirs)
    )
    assert own in der
    shutil.copy(shown, tmp_path / "certificate.pem")
    (tmp_path / "key.pem").write_text(ssl_pem(der.replace(own, stolen)))
    attempt = context(tmp_path, ca_of(world))
    with closing(OtherServer(world, asks=True)) as server:  # which tells what it is that comes to a server
        assert knock(server.port, context(world.root / "bank" / "identity", ca_of(world))) == "heard TLSv1.3"
        assert knock(server.port, attempt).startswith("refused")
        wait_until(lambda: server.refusals, "the refusal")
    assert "BAD_SIGNATURE" in server.refusals[0]
    assert knock(world.port, attempt).startswith(("refused", "closed"))
    assert world.coordinator is not None
    assert set(world.coordinator.hub.connected()) == {"bank"}


def ssl_pem(der: bytes) -> str:
    lines = textwrap.fill(base64.b64encode(der).decode(), 64)
    return f"-----BEGIN EC PRIVATE KEY-----\n{lines}\n-----END EC PRIVATE KEY-----\n"


def call(world: World, folder: Path, method: str, frames: Iterable[bytes] = ()) -> tuple[grpc.StatusCode, str]:
    """How the coordinator ends a call of somebody whose certificate its authority has signed."""
    shown = [(folder / name).read_bytes() for name in ("ca.pem", "key.pem", "certificate.pem")]
    name = [("grpc.ssl_target_name_override", COORDINATOR_HOST)]
    with grpc.secure_channel(f"127.0.0.1:{world.port}", grpc.ssl_channel_credentials(*shown), name) as channel:
        try:
            list(channel.stream_stream(f"/woodlot.Coordinator/{method}")(iter(frames), timeout=PATIENCE))
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize(
    ("member", "method", "words"),
    [
        ("alice", "Party", "role 'user', and 'party' is needed"),
        ("coordinator", "Party", "role 'coordinator', and 'party' is needed"),
        ("coordinator", "User", "role 'coordinator', and 'user' is needed"),
        ("fired", "User", "is revoked"),
    ],
)
def test_the_wrong_role_and_the_revoked_are_refused_by_name(world: World, member: str, method: str, words: str) -> None:
    code, details = call(world, world.root / member / "identity", method)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert words in details


def test_an_unknown_method_is_not_there(world: World) -> None:
    assert call(world, world.root / "bank" / "identity", "Admin")[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture(scope="module")
def job(world: World) -> str:
    """A job of alice's, cancelled at once: it is there to be asked for."""
    with Client(world.address, world.root / "alice" / "identity") as alice:
        order = AlignOrder(**alice.order_fields({"bank": Part(table="customers")}))
        alice.submit(order)
        alice.cancel(order.job)
    return order.job


def test_a_user_has_some_jobs_in_the_queue_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MAX_UNFINISHED", 2)
    made = World(tmp_path, small_tables())
    bank = Identity.load(made.root / "bank" / "identity").certificate

    def submit(user: str) -> str:
        me = Identity.load(made.root / user / "identity")
        where = {"federation": me.federation, "coordinator": "coordinator"}
        order = AlignOrder(**common_fields({"bank": Part(table="customers")}, {"bank": bank}, **where))
        job = here.take(*sign_order(order, me), me.certificate)
        assert here.enqueue(job) is not None
        return job

    with coordinator.Coordinator(made.coordinator_config()) as here:  # it is not started: nothing runs
        here.store.remember_party("bank", bank)
        first, _ = submit("alice"), submit("alice")
        with pytest.raises(PolicyError, match="you have 2 jobs that wait or run"):
            submit("alice")
        submit("bob")
        here.live.pop(first)  # it has ended
        submit("alice")


def test_another_users_jobs_are_as_unknown_as_those_that_never_were(world: World, job: str) -> None:
    questions: list[tuple[Message, type[Message]]] = []
    for name in (job, "f" * 32, "../jobs.sqlite", f"{job}\n", ""):
        questions += [
            (msg.AskJob(job=name, seen=0, wait=0.0), msg.JobStatus),
            (msg.CancelJob(job=name), msg.JobStatus),
            (msg.ResumeJob(job=name), msg.JobStatus),
            (msg.AskPredictions(job=name), msg.Predictions),
            (msg.AskReceipt(job=name), msg.ReceiptText),
            (msg.AskAudit(job=name), msg.AuditReport),
        ]
    with Client(world.address, world.root / "bob" / "identity") as bob:
        for question, kind in questions:
            with pytest.raises(DataError, match="you have no job"):
                bob.ask(question, kind)
        for name in (job, "../../authority", "..", f"../models/{job}", ""):
            for question, kind in ((msg.AskModel(model=name), msg.ModelPart), (AskKeys(model=name), Message)):
                with pytest.raises(DataError, match="there is no model"):
                    bob.ask(question, kind)
        assert bob.ask(msg.ListJobs(), msg.JobList).jobs == ()


@pytest.mark.parametrize("wait", [math.nan, math.inf])
def test_a_wait_that_is_no_finite_number_is_declined(world: World, job: str, wait: float) -> None:
    """A NaN among the coordinator's timers would hold up the others, and certificates were checked no more."""
    some = 1.1
    data = encode(msg.AskJob(job=job, seen=0, wait=some)).replace(struct.pack(">d", some), struct.pack(">d", wait))
    assert world.coordinator is not None
    reply = UserDesk(world.coordinator).serve(Peer(name="alice", role="user", serial=1, certificate=b""), data)
    assert isinstance(reply, bytes)
    told = decode(reply)
    assert isinstance(told, msg.Declined)
    assert told.kind == "protocol"
    assert "malformed message" in told.reason


def test_a_long_name_comes_back_neither_in_the_answer_nor_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    header = msgspec.msgpack.encode(("FindModel", {"name": "x" * 3_900_000}))
    data = struct.pack("<4sIQ", b"WOOD", 1, len(header)) + header
    assert world.coordinator is not None
    reply = UserDesk(world.coordinator).serve(Peer(name="bob", role="user", serial=1, certificate=b""), data)
    assert isinstance(reply, bytes)
    assert isinstance(decode(reply), msg.Declined)
    assert len(reply) < 1_000
    assert "user 'bob': " in caplog.text
    assert len(caplog.text) < 1_000


def test_a_reason_for_a_user_is_cut(world: World) -> None:
    class Store:
        def of_user(self, *_: object) -> None:
            raise DataError("x" * 10_000)

    class Broken:
        config = world.coordinator_config()
        store = Store()

    reply = UserDesk(Broken()).serve(  # type: ignore[arg-type]
        Peer(name="bob", role="user", serial=1, certificate=b""), encode(msg.ListJobs())
    )
    assert isinstance(reply, bytes)
    told = decode(reply)
    assert isinstance(told, msg.Declined)
    assert told.reason == "x" * 2_000


def test_what_is_between_coordinator_and_party_is_not_for_users(world: World) -> None:
    """A user cannot speak to a party in the coordinator's place, nor ask for what a party keeps."""
    with Client(world.address, world.root / "bob" / "identity") as bob:
        for stray in (
            forest_messages.RevealSplits(),
            forest_messages.OpenTraining(max_bins=None),
            msg.ForgetJob(job="0" * 32),
        ):
            with pytest.raises(LocalProtocolError, match="does not take"):
                bob.ask(stray, Message)


def test_a_party_only_answers_and_cannot_ask_for_what_another_keeps(world: World) -> None:
    """With the right certificate of a party: a model, its keys, another's splits, answers, jobs."""
    questions = [
        msg.AskModel(model="0" * 32), AskKeys(model="0" * 32), forest_messages.RevealSplits(), msg.ListJobs(),
        msg.AskPredictions(job="0" * 32), msg.AskAudit(job="0" * 32),
    ]  # fmt: skip
    for question in questions:
        frames = split(Label(FrameKind.request, "ab" * 16, 1), encode(question))
        code, details = call(world, world.root / "shop" / "identity", "Party", frames)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "unexpected request: nothing was asked for it" in details


def test_an_order_is_its_signers_and_nobody_elses(world: World) -> None:
    with Client(world.address, world.root / "alice" / "identity") as alice:
        order = AlignOrder(**alice.order_fields({"bank": Part(table="customers")}))
        data, signature = sign_order(order, alice.identity)
    with Client(world.address, world.root / "bob" / "identity") as bob:
        for stolen in (signature, bytes(64), b""):
            with pytest.raises((PolicyError, IdentityError, RemoteProtocolError)):
                bob.ask(msg.SubmitJob(order=data, signature=stolen), msg.JobStatus)
    assert world.coordinator is not None
    assert world.coordinator.store.job(order.job) is None


def test_a_user_without_permission_is_refused_by_the_party_itself(world: World) -> None:
    """The coordinator takes her order, as anybody's; the party's own policy refuses her."""
    with Client(world.address, world.root / "carol" / "identity") as carol:
        order = AlignOrder(**carol.order_fields({"bank": Part(table="customers")}))
        with pytest.raises(WoodlotError, match=r"may not|policy"):
            carol.finish(carol.submit(order).job)
