"""Who is let in, and how revocations get about."""

from __future__ import annotations

import base64
import os
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from members import DAY, NOW, Federation, build_certificate, files_in, pem_of, self_signed

from woodlot.exceptions import IdentityError
from woodlot.identity import certificates
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import COORDINATOR_HOST, Subject
from woodlot.identity.identity import Trust, request


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, Authority.create(tmp_path / "authority", "north", days=3650))


# --- whom to let in ---


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    root = tmp_path_factory.mktemp("standing")
    federation = Federation(root, Authority.create(root / "authority", "north", days=60))
    federation.join("party", "bank")
    return federation


def test_members_are_let_in_under_their_role(federation: Federation) -> None:
    trust = federation.trust()
    for role, name in [("party", "bank"), ("user", "alice"), ("coordinator", "hub"), ("party", "north")]:
        folder = federation.join(role, name)
        peer = trust.admit(pem_of(folder), role=role)
        assert (peer.role, peer.name, peer.certificate) == (role, name, pem_of(folder))
        certificate = x509.load_pem_x509_certificate(pem_of(folder))
        assert peer.serial == certificate.serial_number
        assert certificate.issuer != certificate.subject  # also for the party that is named as the federation
        assert trust.admit(pem_of(folder) + federation.ca) == peer
        for other in {"party", "user", "coordinator"} - {role}:
            with pytest.raises(IdentityError, match=f"{role} '{name}'; here a {other} is needed"):
                trust.admit(pem_of(folder), role=other)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ends": NOW - timedelta(seconds=1)}, "has expired"),
        ({"starts": NOW + timedelta(hours=1), "ends": NOW + DAY}, "valid only from"),
        ({"hosts": [COORDINATOR_HOST]}, "other uses"),
        ({"hosts": ["bank.party.woodlot", COORDINATOR_HOST]}, "other uses"),
        ({"usages": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]}, "other uses"),
        ({"uris": []}, "role and name"),
        ({"uris": ["woodlot://party/bank", "woodlot://coordinator/bank"]}, "role and name"),
        ({"uris": ["woodlot://owner/bank"]}, "no role"),
        ({"common": "shop"}, "role and name"),
        ({"ca": True}, "authority's own"),
    ],
)
def test_what_no_authority_of_woodlot_signs_is_refused(
    federation: Federation, changes: dict[str, Any], reason: str
) -> None:
    fine = federation.forge(federation.root / "fine", Subject("party", "bank"))
    assert federation.trust().admit(pem_of(fine)).name == "bank"
    wrong = federation.forge(federation.root / "wrong", Subject("party", "bank"), **changes)
    with pytest.raises(IdentityError, match=reason):
        federation.trust().admit(pem_of(wrong))


def test_only_an_authority_of_its_own_can_be_trusted(federation: Federation) -> None:
    below = federation.forge(federation.root / "below", Subject("party", "bank"), ca=True)
    for pem, reason in [
        (pem_of(below), "is of another federation's authority"),
        (pem_of(federation.join("party", "shop")), "no authority's certificate"),
        (b"", "cannot be read"),
    ]:
        with pytest.raises(IdentityError, match=reason):
            Trust(pem, None)


def test_outsiders_are_refused(federation: Federation) -> None:
    trust = federation.trust()
    twin = Authority.create(federation.root / "twin", "north", days=30)  # same name, another key
    south = Authority.create(federation.root / "south", "south", days=30)
    for name, authority in [("twin", twin), ("south", south)]:
        bundle = authority.sign(request(federation.root / f"bank-{name}", "party", "bank"), days=5)
        with pytest.raises(IdentityError, match="federation's authority"):
            trust.admit(bundle)
    outsider = self_signed(federation.root / "x", Subject("party", "bank"), federation.ca)
    with pytest.raises(IdentityError, match="not signed by this federation's authority"):
        trust.admit(pem_of(outsider))
    with pytest.raises(IdentityError, match="the authority's own"):
        trust.admit(federation.ca)
    for garbage in (b"", b"hello", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"):
        with pytest.raises(IdentityError, match="cannot be read"):
            trust.admit(garbage)


def test_an_authority_that_has_ended_lets_nobody_in(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")])
    north = Subject("party", "north")
    ca = build_certificate(key, north, key, name, ends=NOW - timedelta(minutes=1), ca=True)
    member = ec.generate_private_key(ec.SECP256R1())
    certificate = build_certificate(member, Subject("party", "bank"), key, name)
    with pytest.raises(IdentityError, match=r"authority's own certificate has expired .* needs a new authority"):
        Trust(ca.public_bytes(Encoding.PEM), None).admit(certificate.public_bytes(Encoding.PEM))


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 10**6), value=st.integers(0, 255))
@pytest.mark.filterwarnings("ignore::UserWarning")  # the library's own remarks on damaged numbers
def test_no_changed_byte_gets_past_the_authoritys_signature(standing: Federation, at: int, value: int) -> None:
    trust = Trust(standing.ca, None)
    certificate, revocations = pem_of(standing.root / "bank"), standing.revoked.read_bytes()
    # the byte that counts the unused bits of the signature can be written in more than one way: that changes nothing
    with suppress(IdentityError):
        damaged = change_byte(certificate, at, value)
        trust.admit(damaged)
        signed = x509.load_pem_x509_certificate(certificate).tbs_certificate_bytes
        assert x509.load_pem_x509_certificate(damaged).tbs_certificate_bytes == signed
    with suppress(IdentityError):
        damaged = change_byte(revocations, at, value)
        trust.update(damaged)
        signed = x509.load_pem_x509_crl(revocations).tbs_certlist_bytes
        assert x509.load_pem_x509_crl(damaged).tbs_certlist_bytes == signed


def change_byte(pem: bytes, at: int, value: int) -> bytes:
    first, *middle, last = pem.splitlines()
    der = bytearray(base64.b64decode(b"".join(middle)))
    der[at % len(der)] = value
    return b"\n".join([first, base64.b64encode(der), last, b""])


@pytest.mark.parametrize("target", ["certificate", "revocations"])
def test_a_changed_name_number_or_signature_is_refused(standing: Federation, target: str) -> None:
    trust = Trust(standing.ca, None)
    if target == "certificate":
        pem, take = pem_of(standing.root / "bank"), trust.admit
        signed = x509.load_pem_x509_certificate(pem).tbs_certificate_bytes
    else:
        pem, take = standing.revoked.read_bytes(), trust.update
        signed = x509.load_pem_x509_crl(pem).tbs_certlist_bytes
    der = base64.b64decode(b"".join(pem.splitlines()[1:-1]))
    for at in (der.index(b"north") + 2, der.index(signed) + len(signed) - 1, len(der) - 1):
        with pytest.raises(IdentityError):
            take(change_byte(pem, at, der[at] ^ 1))
    take(pem)


# --- revocations ---


def test_a_revocation_counts_at_once(federation: Federation) -> None:
    trust, bank = federation.trust(), federation.join("party", "bank")
    shop = federation.join("party", "shop")
    assert trust.admit(pem_of(bank)).name == "bank"
    federation.authority.revoke("bank")
    with pytest.raises(IdentityError, match=r"party 'bank' \(serial [0-9a-f]+\) is revoked"):
        trust.admit(pem_of(bank))
    assert trust.admit(pem_of(shop)).name == "shop"
    assert trust.revocation_list() == federation.revoked.read_bytes()


def test_an_older_or_forged_list_in_the_file_is_not_taken(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    old, bank = federation.revoked.read_bytes(), federation.join("party", "bank")
    federation.authority.revoke("bank")
    new = federation.revoked.read_bytes()
    trust = federation.trust()
    twin = Authority.create(federation.root / "twin", "north", days=30)
    for _ in range(3):
        twin.sign(request(federation.root / f"x{_}", "party", f"x{_}"), days=1)
        twin.revoke(f"x{_}")
    for content, reason in [
        (old, "older than 2"),
        ((twin.folder / "revoked.pem").read_bytes(), "not signed by the federation's authority"),
        (new[:200], "cannot be read"),
        (b"", "cannot be read"),
    ]:
        federation.revoked.write_bytes(content)
        for _ in range(2):
            with pytest.raises(IdentityError, match="is revoked"):
                trust.admit(pem_of(bank))
        assert [reason in record.getMessage() for record in caplog.records] == [True]  # said once, not each time
        caplog.clear()
        if content != old:
            with pytest.raises(IdentityError, match=reason):
                federation.trust()
    assert trust.update(new) is False
    assert federation.revoked.read_bytes() == new


def test_a_missing_list_is_an_error_then_and_later(federation: Federation) -> None:
    trust, bank = federation.trust(), federation.join("party", "bank")
    federation.revoked.unlink()
    with pytest.raises(IdentityError, match=r"revoked\.pem is missing; put the list"):
        trust.admit(pem_of(bank))
    with pytest.raises(IdentityError, match=r"revoked\.pem is missing; put the list"):
        federation.trust()


def test_a_list_from_a_peer_is_checked_and_stored(federation: Federation) -> None:
    first, bank = federation.revoked.read_bytes(), federation.join("party", "bank")
    federation.join("party", "shop")
    own = federation.root / "bank" / "revoked.pem"
    trust, unstored = Trust(federation.ca, own), Trust(federation.ca, None)
    assert unstored.revocation_list() == b""
    federation.authority.revoke("shop")
    federation.authority.revoke("bank")
    newest = federation.revoked.read_bytes()
    twin = Authority.create(federation.root / "twin", "north", days=30)
    for wrong in (b"", (twin.folder / "revoked.pem").read_bytes(), newest[:300], pem_of(bank)):
        with pytest.raises(IdentityError):
            trust.update(wrong)
    assert own.read_bytes() == first
    assert trust.admit(pem_of(bank)).name == "bank"
    for taker in (trust, unstored):
        assert taker.update(b"whatever a relay writes around it\n" + newest) is True
        assert taker.update(newest) is False
        assert taker.update(first) is False
        assert taker.revocation_list() == newest
        with pytest.raises(IdentityError, match="is revoked"):
            taker.admit(pem_of(bank))
    assert own.read_bytes() == newest
    assert Trust(federation.ca, own).revocation_list() == newest


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow: every write fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_loses_nothing(federation: Federation) -> None:
    bank, made = federation.join("party", "bank"), request(federation.root / "shop", "party", "shop")
    own = bank / "revoked.pem"
    trust, first = Trust(federation.ca, own), own.read_bytes()
    federation.authority.revoke("bank")
    newest = federation.revoked.read_bytes()
    before = files_in(federation.authority.folder)
    with full_disk():
        with pytest.raises(IdentityError, match=r"revoked\.pem cannot be written") as update:
            trust.update(newest)
        with pytest.raises(IdentityError, match=r"issued\.jsonl cannot be written"):
            federation.authority.sign(made, days=30)
        with pytest.raises(IdentityError, match="cannot be written"):
            Authority.create(federation.root / "new", "new", days=30)
    assert str(own) in str(update.value)
    assert files_in(federation.authority.folder) == before
    assert not (federation.root / "new").exists()
    assert not [path for path in federation.root.iterdir() if path.name.startswith(".")]
    with pytest.raises(IdentityError, match="is revoked"):  # in use although not stored
        trust.admit(pem_of(bank))
    assert own.read_bytes() == first
    assert trust.update(newest) is False
    assert own.read_bytes() == newest


def test_threads_may_ask_while_lists_change(federation: Federation) -> None:
    bank, trust = federation.join("party", "bank"), federation.trust()
    ended = threading.Event()

    def ask() -> int:
        asked = 0
        while not ended.is_set():
            trust.admit(pem_of(bank))
            asked += 1
        return asked

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask) for _ in range(3)]
        for number in range(5):
            federation.join("user", f"u{number}")
            federation.authority.revoke(f"u{number}")
        ended.set()
        assert all(future.result() > 0 for future in waiting)


def test_what_was_let_in_before_is_refused_once_it_is_revoked_or_has_expired(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a certificate says is found out once; whether it still counts is looked at every time."""
    trust, bank, shop = federation.trust(), federation.join("party", "bank"), federation.join("party", "shop")
    for folder in (bank, shop):
        assert trust.admit(pem_of(folder)) is trust.admit(pem_of(folder))
    federation.authority.revoke("bank")
    # as of a tool that keeps the times of files: the list is read all the same
    os.utime(federation.revoked, (1.0, 1.0))
    with pytest.raises(IdentityError, match="is revoked"):
        trust.admit(pem_of(bank))
    later = NOW + 365 * DAY

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return later

    monkeypatch.setattr(certificates, "datetime", Later)
    with pytest.raises(IdentityError, match="has expired"):
        trust.admit(pem_of(shop))
