"""The operator's side: what is signed, what is not, and what a damaged authority does."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from members import NOW, Federation, build_request, files_in, pem_of, self_signed, uri

from woodlot.exceptions import IdentityError
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import COORDINATOR_HOST, CertificateRequest, Subject
from woodlot.identity.identity import request


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, Authority.create(tmp_path / "authority", "north", days=3650))


def test_only_key_role_and_name_get_into_a_certificate(federation: Federation) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    greedy = build_request(
        key,
        "bank",
        [*uri("woodlot://party/bank"), x509.DNSName(COORDINATOR_HOST)],
        x509.BasicConstraints(ca=True, path_length=None),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    bundle = federation.authority.sign(CertificateRequest.parse(greedy, "it"), days=30)
    certificate = x509.load_pem_x509_certificate(bundle)
    extensions = certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert certificate.subject.rfc4514_string() == "CN=bank"
    assert certificate.public_key() == key.public_key()
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["woodlot://party/bank"]
    assert names.get_values_for_type(x509.DNSName) == ["bank.party.woodlot"]
    assert len(names) == 2
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.digital_signature
    assert not usage.value.key_cert_sign
    now = datetime.now(UTC)
    assert timedelta(0) < now - certificate.not_valid_before_utc < timedelta(minutes=6)
    assert timedelta(days=29) < certificate.not_valid_after_utc - now < timedelta(days=31)


def test_a_name_belongs_to_one_key_and_a_key_to_one_name(federation: Federation) -> None:
    authority = federation.authority
    first = request(federation.root / "first", "party", "bank")
    second = request(federation.root / "second", "party", "bank")
    authority.sign(first, days=30)
    authority.sign(first, days=60)  # renewal
    for rival in (
        second,
        CertificateRequest(Subject("user", "BANK"), second.key, second.kem),
        CertificateRequest(Subject("user", "bank"), first.key, first.kem),
    ):
        with pytest.raises(IdentityError, match=r"is in use by party 'bank' \(serial .*--replace"):
            authority.sign(rival, days=30)
    with pytest.raises(IdentityError, match="this key is in use by party 'bank'"):
        authority.sign(CertificateRequest(Subject("party", "shop"), first.key, first.kem), days=30)
    assert [one.state for one in authority.issued()] == ["valid", "valid"]
    assert authority.revocations().number == 1
    authority.sign(second, days=30, replace=True)
    assert [one.state for one in authority.issued()] == ["superseded", "superseded", "valid"]
    with pytest.raises(IdentityError, match="in use"):
        authority.sign(first, days=30)


def test_an_expired_certificate_does_not_hold_its_name(federation: Federation) -> None:
    old = federation.forge(federation.root / "old", Subject("party", "bank"), ends=NOW - timedelta(hours=1))
    line = json.dumps({"certificate": pem_of(old).decode()}) + "\n"
    (federation.authority.folder / "issued.jsonl").write_text(line)
    federation.join("party", "bank")
    assert [one.state for one in federation.authority.issued()] == ["expired", "valid"]


def test_a_revoked_key_is_never_signed_again(federation: Federation) -> None:
    made = request(federation.root / "bank", "party", "bank")
    federation.authority.sign(made, days=30)
    assert [one.subject.name for one in federation.authority.revoke("bank")] == ["bank"]
    for replace in (False, True):
        with pytest.raises(IdentityError, match="revoked; ask for a request with a new key"):
            federation.authority.sign(made, days=30, replace=replace)
    federation.authority.sign(request(federation.root / "again", "party", "bank"), days=30)


@pytest.mark.parametrize("days", [0, -1, 3651, 10**7, 10**12])
def test_no_certificate_outlasts_its_authority(federation: Federation, days: int) -> None:
    made = request(federation.root / "bank", "party", "bank")
    with pytest.raises(IdentityError, match=r"\bdays?\b"):
        federation.authority.sign(made, days=days)
    assert federation.authority.issued() == []


def test_revoking_by_serial_spares_the_others(federation: Federation) -> None:
    made = request(federation.root / "bank", "party", "bank")
    federation.authority.sign(made, days=30)
    federation.authority.sign(made, days=40)
    old, _ = federation.authority.issued()
    federation.authority.revoke(f"{old.serial:X}")
    assert [one.state for one in federation.authority.issued()] == ["revoked", "valid"]
    assert federation.authority.revoke(f"{old.serial:x}") == []
    assert federation.authority.revocations().number == 2
    with pytest.raises(IdentityError, match="neither a name nor a serial number"):
        federation.authority.revoke("ban")


def test_changes_at_the_same_time_are_all_kept(federation: Federation) -> None:
    requests = [request(federation.root / f"p{i}", "party", f"p{i}") for i in range(12)]
    same = [request(federation.root / f"same{i}", "user", "same") for i in range(4)]

    def sign_and_revoke(made: CertificateRequest) -> bool:
        authority = Authority.open(federation.authority.folder)
        try:
            authority.sign(made, days=30)
        except IdentityError:
            return False
        if made.subject.name != "same":
            authority.revoke(made.subject.name)
        return True

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(sign_and_revoke, [*requests, *same]))
    assert all(done[:12])
    assert sum(done[12:]) == 1
    assert len(federation.authority.issued()) == 13
    assert len(federation.authority.revocations().serials) == 12
    assert federation.authority.revocations().number == 13


def test_an_authority_is_made_once_and_whole(tmp_path: Path) -> None:
    made = Authority.create(tmp_path / "a", "north", days=30)
    before = files_in(tmp_path / "a")
    assert sorted(before) == ["ca-key.pem", "ca.pem", "issued.jsonl", "revoked.pem"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "ca-key.pem").stat().st_mode) == 0o600
    assert (made.federation, made.revocations().number, made.issued()) == ("north", 1, [])
    with pytest.raises(IdentityError, match="not an empty folder"):
        Authority.create(tmp_path / "a", "north", days=30)
    with pytest.raises(IdentityError, match="cannot be a name"):
        Authority.create(tmp_path / "b", "no/rth", days=30)
    with pytest.raises(IdentityError, match="cannot be made a folder"):
        Authority.create(tmp_path / "a" / "ca.pem" / "c", "north", days=30)
    assert files_in(tmp_path / "a") == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("issued.jsonl", b"{}\n", "line 1 is not a record"),
        ("issued.jsonl", b"[[\n", "line 1 is not a record"),
        ("issued.jsonl", None, "is missing; restore it"),
        ("revoked.pem", None, "is missing; restore it"),
        ("revoked.pem", b"nothing", "cannot be read"),
        ("ca.pem", None, "is missing"),
        ("ca-key.pem", None, "is missing; make an authority"),
    ],
)
def test_a_damaged_authority_signs_nothing(
    federation: Federation, name: str, content: bytes | None, reason: str
) -> None:
    made = request(federation.root / "bank", "party", "bank")
    path = federation.authority.folder / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    before = files_in(federation.authority.folder)
    with pytest.raises(IdentityError, match=reason):
        Authority.open(federation.authority.folder).sign(made, days=30)
    assert files_in(federation.authority.folder) == before


def test_a_record_that_the_authority_did_not_sign_is_noticed(federation: Federation) -> None:
    outsider = self_signed(federation.root / "x", Subject("party", "bank"), federation.ca)
    (federation.authority.folder / "issued.jsonl").write_text(json.dumps({"certificate": pem_of(outsider).decode()}))
    with pytest.raises(IdentityError, match="line 1 is not signed"):
        federation.authority.issued()


def test_the_key_of_another_authority_is_noticed(federation: Federation) -> None:
    other = Authority.create(federation.root / "other", "north", days=30)
    (federation.authority.folder / "ca-key.pem").write_bytes((other.folder / "ca-key.pem").read_bytes())
    with pytest.raises(IdentityError, match="is not the key of"):
        Authority.open(federation.authority.folder)
