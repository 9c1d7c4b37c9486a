"""A member's side: making a key, installing its certificate, loading and signing with it."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from members import NOW, Federation, build_request, files_in, pem_of, self_signed, uri

from woodlot.exceptions import IdentityError
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import CertificateRequest, Subject, key_bytes, write_file
from woodlot.identity.identity import Identity, install, request
from woodlot.runtime.peers import Credentials


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, Authority.create(tmp_path / "authority", "north", days=3650))


# --- requests ---


def test_a_key_stays_with_its_owner(tmp_path: Path) -> None:
    made = request(tmp_path / "new" / "bank", "party", "bank")
    folder = tmp_path / "new" / "bank"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
    assert sorted(files_in(folder)) == ["key.pem", "request.pem"]
    assert b"PRIVATE" not in (folder / "request.pem").read_bytes()
    assert CertificateRequest.parse((folder / "request.pem").read_bytes(), "it").fingerprint == made.fingerprint


def test_a_second_request_leaves_the_key_alone(tmp_path: Path) -> None:
    request(tmp_path / "bank", "party", "bank")
    before = files_in(tmp_path / "bank")
    with pytest.raises(IdentityError, match=r"holds a key already; .*request\.pem again"):
        request(tmp_path / "bank", "party", "bank")
    assert files_in(tmp_path / "bank") == before


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("party", ""),
        ("party", "-bank"),
        ("party", "a" * 64),
        ("party", "bank\n"),
        ("party", "bank.example"),
        ("party", "bänk"),
        ("party", "../bank"),
        ("party", "coordinator"),
        ("user", "Coordinator"),
        ("owner", "bank"),
        ("", "bank"),
    ],
)
def test_bad_names_and_roles_are_refused_and_nothing_is_written(tmp_path: Path, role: str, name: str) -> None:
    with pytest.raises(IdentityError):
        request(tmp_path / "bank", role, name)
    assert not (tmp_path / "bank").exists()


@given(st.text(max_size=70))
def test_a_name_is_a_word_or_an_error(name: str) -> None:
    allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    good = 0 < len(name) <= 63 and set(name) <= {*allowed, "-", "_"} and name[0] in allowed
    if good and name.lower() != "coordinator":
        assert Subject("party", name).host == f"{name}.party.woodlot"
    else:
        with pytest.raises(IdentityError):
            Subject("party", name)


@pytest.mark.parametrize(
    ("pem", "reason"),
    [
        (lambda: b"", "cannot be read"),
        (lambda: b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "cannot be read"),
        (lambda: build_request(rsa.generate_private_key(65537, 2048)), "P-256"),
        (lambda: build_request(ec.generate_private_key(ec.SECP384R1())), "P-256"),
        (lambda: build_request(names=[]), "cannot be read"),
        (lambda: build_request(names=[x509.DNSName("bank.party.woodlot")]), "role and name"),
        (lambda: build_request(names=uri("woodlot://party/bank", "woodlot://user/bank")), "role and name"),
        (lambda: build_request(names=uri("https://party/bank")), "role and name"),
        (lambda: build_request(names=uri("woodlot://party/bank/")), "role and name"),
        (lambda: build_request(names=uri("woodlot://owner/bank")), "no role 'owner'"),
        (lambda: build_request(common="shop"), "role and name"),
        (
            lambda: build_request(None, "coordinator", uri("woodlot://party/coordinator")),
            "cannot be named 'coordinator'",
        ),
    ],
)
def test_a_request_that_says_something_else_is_refused(pem: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(IdentityError, match=reason):
        CertificateRequest.parse(pem(), "request.pem")


def test_a_request_for_another_key_than_the_signers_is_refused() -> None:
    honest = x509.load_pem_x509_csr(build_request()).public_bytes(Encoding.DER)
    other = x509.load_pem_x509_csr(build_request()).public_bytes(Encoding.DER)
    point = honest.index(b"\x03\x42\x00\x04") + 4
    swapped = honest[:point] + other[point : point + 64] + honest[point + 64 :]
    pem = x509.load_der_x509_csr(swapped).public_bytes(Encoding.PEM)
    with pytest.raises(IdentityError, match="not signed by its own key"):
        CertificateRequest.parse(pem, "request.pem")


# --- identities ---


def test_an_identity_has_all_that_a_connection_needs(federation: Federation) -> None:
    folder = federation.join("party", "bank")
    identity = Identity.load(folder)
    assert (identity.name, identity.role) == ("bank", "party")
    assert identity.credentials == Credentials(
        key=(folder / "key.pem").read_bytes(), certificate=pem_of(folder), authority=federation.ca
    )
    assert timedelta(days=29) < identity.expires - NOW < timedelta(days=31)
    secret = identity.key.split(b"\n")[1].decode()
    assert secret not in repr(identity)
    assert secret not in repr(identity.credentials)
    assert [f"{identity.serial:x}"] == [f"{one.serial:x}" for one in federation.authority.issued()]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o644, 0o777])
def test_a_key_that_others_can_use_is_refused(federation: Federation, mode: int) -> None:
    folder = federation.join("party", "bank")
    (folder / "key.pem").chmod(mode)
    with pytest.raises(IdentityError, match=rf"mode {mode:04o}.*chmod 600 {folder}/key\.pem"):
        Identity.load(folder)
    (federation.authority.folder / "ca-key.pem").chmod(mode)
    with pytest.raises(IdentityError, match=r"chmod 600 .*ca-key\.pem"):
        Authority.open(federation.authority.folder)


def test_a_stricter_mode_is_fine(federation: Federation) -> None:
    folder = federation.join("party", "bank")
    (folder / "key.pem").chmod(0o400)
    assert Identity.load(folder).name == "bank"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("key.pem", None, "key.pem is missing; make one"),
        ("certificate.pem", None, r"have the operator sign .*request\.pem"),
        ("ca.pem", None, "comes from the federation's operator"),
        ("key.pem", b"", "not a private key"),
        ("key.pem", key_bytes(ec.generate_private_key(ec.SECP256R1())), "is not of the key beside it"),
        ("key.pem", key_bytes(ec.generate_private_key(ec.SECP384R1())), "P-256"),
        ("certificate.pem", b"x" * 17 * 2**20, "larger than"),
        ("certificate.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
    ],
    ids=[
        "no key",
        "no certificate",
        "no authority",
        "empty key",
        "another key",
        "longer key",
        "large",
        "no certificate in it",
    ],  # the keys are drawn, and names of tests are not
)
def test_an_identity_with_a_bad_file_is_refused(
    federation: Federation, name: str, content: bytes | None, reason: str
) -> None:
    folder = federation.join("party", "bank")
    (folder / name).unlink()
    if content is not None:
        write_file(folder / name, content, 0o600)
    with pytest.raises(IdentityError, match=reason):
        Identity.load(folder)


def test_an_identity_that_others_would_refuse_is_refused_at_once(federation: Federation) -> None:
    bank = Subject("party", "bank")
    cases = {
        "has expired on": federation.forge(federation.root / "1", bank, ends=NOW - timedelta(seconds=1)),
        "is valid only from": federation.forge(federation.root / "2", bank, starts=NOW + timedelta(hours=1)),
        "not signed by this federation": self_signed(federation.root / "3", bank, federation.ca),
    }
    for reason, folder in cases.items():
        with pytest.raises(IdentityError, match=reason):
            Identity.load(folder)
    other = Authority.create(federation.root / "other", "south", days=30)
    member = federation.join("party", "bank")
    (member / "ca.pem").write_bytes((other.folder / "ca.pem").read_bytes())
    with pytest.raises(IdentityError, match="another federation's"):
        Identity.load(member)
    (member / "ca.pem").write_bytes(pem_of(member))
    with pytest.raises(IdentityError, match="no authority's certificate"):
        Identity.load(member)
    with pytest.raises(IdentityError, match="is not a folder"):
        Identity.load(federation.root / "nowhere")


# --- installing ---


def test_installing_checks_everything_before_it_writes(federation: Federation) -> None:
    root, authority = federation.root, federation.authority
    made = request(root / "bank", "party", "bank")
    other = request(root / "shop", "party", "shop")
    foreign = Authority.create(root / "foreign", "north", days=60)
    teller = authority.sign(CertificateRequest(Subject("user", "teller"), made.key, made.kem), days=30)
    good = authority.sign(made, days=30, replace=True)
    bundles = {
        "not of the key": authority.sign(other, days=30),
        "another's ML-KEM-768 key": authority.sign(replace(made, kem=other.kem), days=30, replace=True),
        "'teller', but party 'bank' was asked": teller,
        "not signed by this federation": good.replace(federation.ca, (foreign.folder / "ca.pem").read_bytes()),
        "holds no authority's certificate": good[: good.index(federation.ca)],
    }
    before = files_in(root / "bank")
    for reason, bundle in bundles.items():
        (root / "bundle").write_bytes(bundle)
        with pytest.raises(IdentityError, match=reason):
            install(root / "bank", root / "bundle")
    (root / "bundle").write_bytes(good)
    with pytest.raises(IdentityError, match=r"key\.pem is missing"):
        install(root / "elsewhere", root / "bundle")
    with pytest.raises(IdentityError, match="name the file that the operator sent"):
        install(root / "bank", root / "nothing")
    assert files_in(root / "bank") == before
    assert install(root / "bank", root / "bundle") == Identity.load(root / "bank")
    assert sorted(files_in(root / "bank")) == ["ca.pem", "certificate.pem", "key.pem", "request.pem", "revoked.pem"]


def test_installing_from_two_files(federation: Federation) -> None:
    made = request(federation.root / "bank", "party", "bank")
    bundle = federation.authority.sign(made, days=30)
    path = federation.root / "only"
    path.write_bytes(x509.load_pem_x509_certificate(bundle).public_bytes(Encoding.PEM))
    install(federation.root / "bank", path, federation.authority.folder / "ca.pem")
    assert Identity.load(federation.root / "bank").name == "bank"
    assert not (federation.root / "bank" / "revoked.pem").exists()


def test_installing_never_changes_the_authority_or_goes_back(federation: Federation) -> None:
    root, authority = federation.root, federation.authority
    member = federation.join("party", "bank")
    early = authority.sign(request(root / "shop", "party", "shop"), days=30)
    federation.join("user", "mallory")
    authority.revoke("mallory")
    newest = federation.revoked.read_bytes()
    (root / "shop" / "revoked.pem").write_bytes(newest)
    (root / "early").write_bytes(early)
    install(root / "shop", root / "early")
    assert (root / "shop" / "revoked.pem").read_bytes() == newest
    foreign = Authority.create(root / "foreign", "north", days=60)
    asked = CertificateRequest.parse((member / "request.pem").read_bytes(), "it")
    (root / "foreign.pem").write_bytes(foreign.sign(asked, days=30))
    before = files_in(member)
    with pytest.raises(IdentityError, match=r"ca\.pem is another authority's; remove it"):
        install(member, root / "foreign.pem")
    revoked = authority.sign(asked, days=30)
    authority.revoke("bank")
    (root / "late").write_bytes(x509.load_pem_x509_certificate(revoked).public_bytes(Encoding.PEM))
    with (root / "late").open("ab") as file:
        file.write(federation.ca + federation.revoked.read_bytes())
    with pytest.raises(IdentityError, match="is revoked"):
        install(member, root / "late")
    assert files_in(member) == before


# --- signatures ---


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Federation, Identity, Identity]:
    root = tmp_path_factory.mktemp("pair")
    federation = Federation(root, Authority.create(root / "authority", "north", days=60))
    bank, shop = (Identity.load(federation.join("party", name)) for name in ("bank", "shop"))
    return federation, bank, shop


@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=200), purpose=st.text("abc- ", min_size=1, max_size=9), at=st.integers(0, 10**6))
def test_a_signature_is_for_one_text_one_purpose_and_one_signer(
    pair: tuple[Federation, Identity, Identity], data: bytes, purpose: str, at: int
) -> None:
    federation, bank, shop = pair
    trust, signature = federation.trust(), bank.sign(data, purpose)
    assert trust.verify(bank.certificate, purpose, data, signature, role="party").name == "bank"
    damaged = bytearray(signature)
    damaged[at % len(damaged)] ^= 1
    wrong = [
        (bank.certificate, purpose, data + b"\0", signature),
        (bank.certificate, purpose + "x", data, signature),
        (bank.certificate, purpose[:-1] + "\x7f", data, signature),
        (shop.certificate, purpose, data, signature),
        (bank.certificate, purpose, data, bytes(damaged)),
        (bank.certificate, purpose, data, b""),
    ]
    for certificate, why, what, by in wrong:
        with pytest.raises(IdentityError, match="signature is not"):
            trust.verify(certificate, why, what, by, role="party")


def test_a_signature_counts_only_from_who_is_let_in(federation: Federation) -> None:
    bank = Identity.load(federation.join("party", "bank"))
    signature, trust = bank.sign(b"data", "receipt"), federation.trust()
    with pytest.raises(IdentityError, match="here a coordinator is needed"):
        trust.verify(bank.certificate, "receipt", b"data", signature, role="coordinator")
    federation.authority.revoke("bank")
    with pytest.raises(IdentityError, match="is revoked"):
        trust.verify(bank.certificate, "receipt", b"data", signature, role="party")


@pytest.mark.parametrize("purpose", ["", "a\0b", "é"])
def test_a_purpose_is_plain_text(pair: tuple[Federation, Identity, Identity], purpose: str) -> None:
    with pytest.raises(IdentityError, match="purpose"):
        pair[1].sign(b"data", purpose)


# --- the module itself ---


def test_it_loads_nothing_heavy() -> None:
    script = (
        "import sys, woodlot.identity.authority, woodlot.identity.identity\n"
        "print([m for m in ('numpy', 'numba', 'sklearn', 'pyarrow', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"
