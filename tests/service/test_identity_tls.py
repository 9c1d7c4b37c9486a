"""Woodlot's certificates in real TLS handshakes: OpenSSL and gRPC agree on who is let in."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from members import NOW, Federation, pem_of, self_signed

from woodlot.exceptions import IdentityError
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import COORDINATOR_HOST, Subject
from woodlot.identity.identity import Identity, Trust
from woodlot.runtime.drivers.grpc_wire import grpc
from woodlot.runtime.peers import Credentials


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, Authority.create(tmp_path / "authority", "north", days=3650))


def server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def client_context(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def shake(server: ssl.SSLContext, client: ssl.SSLContext, trust: Trust) -> tuple[str, str]:
    """Connect over localhost; return how it went at the server and at the client."""
    outcome = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            try:
                with server.wrap_socket(connection, server_side=True) as secured:
                    der = secured.getpeercert(binary_form=True)
                    assert der is not None
                    peer = trust.admit(ssl.DER_cert_to_PEM_cert(der).encode())
                    secured.sendall(peer.name.encode())
                    outcome.append(f"let in {peer.role} {peer.name}")
            except (OSError, IdentityError) as error:
                outcome.append(f"refused: {error}")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), 10) as connection,
                client.wrap_socket(connection, server_hostname=COORDINATOR_HOST) as secured,
            ):
                answer = secured.recv(100).decode()
                seen = f"heard {answer}" if answer else "closed"
        except OSError as error:
            seen = f"refused: {error}"
        thread.join(300)
    return outcome[0], seen


def test_tls_lets_members_in(federation: Federation) -> None:
    hub, trust = federation.join("coordinator", "hub"), federation.trust()
    for role, name in [("party", "bank"), ("user", "alice"), ("party", "north"), ("coordinator", "hub2")]:
        folder = federation.join(role, name)
        assert shake(server_context(hub), client_context(folder), trust) == (f"let in {role} {name}", f"heard {name}")


def test_tls_keeps_the_others_out(federation: Federation) -> None:
    hub, trust = federation.join("coordinator", "hub"), federation.trust()
    bank = Subject("party", "bank")
    twin = Federation(federation.root / "t", Authority.create(federation.root / "t" / "authority", "north", days=60))
    foreign = twin.join("party", "bank")
    (foreign / "ca.pem").write_bytes(federation.ca)
    revoked = federation.join("party", "mallory")
    federation.authority.revoke("mallory")
    root = federation.root
    members = {
        "self-signed": (self_signed(root / "1", bank, federation.ca), "CERTIFICATE_VERIFY_FAILED"),
        "foreign": (foreign, "CERTIFICATE_VERIFY_FAILED"),
        "expired": (federation.forge(root / "2", bank, ends=NOW - timedelta(seconds=1)), "certificate has expired"),
        "revoked": (revoked, "party 'mallory' .* is revoked"),
    }
    server = server_context(hub)
    server.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the forged ones are to fail for their own reason only
    for folder, reason in members.values():
        at_server, at_client = shake(server, client_context(folder), trust)
        assert at_server.startswith("refused")
        assert re.search(reason, at_server), at_server
        assert not at_client.startswith("heard")
    anonymous = ssl.create_default_context(cafile=str(hub / "ca.pem"))
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in shake(server, anonymous, trust)[0]


def test_nobody_but_a_coordinator_can_be_the_server(federation: Federation) -> None:
    trust, alice = federation.trust(), client_context(federation.join("user", "alice"))
    party = federation.join("party", "bank")
    able = federation.forge(
        federation.root / "able",
        Subject("party", "shop"),
        usages=[ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    )
    alice.verify_flags &= ~ssl.VERIFY_X509_STRICT
    assert "unsuitable certificate purpose" in shake(server_context(party), alice, trust)[1]
    assert f"certificate is not valid for '{COORDINATOR_HOST}'" in shake(server_context(able), alice, trust)[1]
    posing = self_signed(federation.root / "posing", Subject("coordinator", "hub"), federation.ca)
    assert "CERTIFICATE_VERIFY_FAILED" in shake(server_context(posing), alice, trust)[1]


def test_openssl_reads_the_list_too(federation: Federation) -> None:
    hub, trust = federation.join("coordinator", "hub"), federation.trust()
    bank, shop = (client_context(federation.join("party", name)) for name in ("bank", "shop"))
    federation.authority.revoke("bank")
    server = server_context(hub)
    server.load_verify_locations(federation.revoked)
    server.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    assert "certificate revoked" in shake(server, bank, trust)[0]
    assert shake(server, shop, trust)[0] == "let in party shop"


@contextmanager
def grpc_server(credentials: Credentials, trust: Trust) -> Iterator[int]:
    """A server that answers with the caller's name, if it is let in."""

    def answer(_: bytes, context: Any) -> bytes:
        try:
            return trust.admit(context.auth_context()["x509_pem_cert"][0], role="party").name.encode()
        except IdentityError as error:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            raise

    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Name": handler})])
    secure = grpc.ssl_server_credentials(
        [(credentials.key, credentials.certificate)], credentials.authority, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", secure)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def call(port: int, credentials: Credentials) -> str:
    secure = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    options = [("grpc.ssl_target_name_override", COORDINATOR_HOST)]
    with grpc.secure_channel(f"127.0.0.1:{port}", secure, options) as channel:
        try:
            answer: bytes = channel.unary_unary("/test/Name")(b"", timeout=300)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return answer.decode()


def test_grpc_agrees(federation: Federation) -> None:
    hub, trust = Identity.load(federation.join("coordinator", "hub")).credentials, federation.trust()
    bank = Identity.load(federation.join("party", "bank")).credentials
    north = Identity.load(federation.join("party", "north")).credentials
    alice = Identity.load(federation.join("user", "alice")).credentials
    outsider_folder = self_signed(federation.root / "x", Subject("party", "bank"), federation.ca)
    expired_folder = federation.forge(federation.root / "y", Subject("party", "bank"), ends=NOW - timedelta(seconds=1))
    outsider, expired = (
        Credentials((folder / "key.pem").read_bytes(), pem_of(folder), federation.ca)
        for folder in (outsider_folder, expired_folder)
    )
    with grpc_server(hub, trust) as port:
        assert call(port, bank) == "bank"
        assert call(port, north) == "north"  # named as the federation
        assert call(port, alice) == "UNAUTHENTICATED: the certificate is of user 'alice'; here a party is needed"
        assert call(port, outsider).startswith("UNAVAILABLE")
        assert call(port, expired).startswith("UNAVAILABLE")
        federation.authority.revoke("bank")
        assert call(port, bank).endswith("is revoked")
    with grpc_server(bank, trust) as port:
        assert call(port, alice).startswith("UNAVAILABLE")
