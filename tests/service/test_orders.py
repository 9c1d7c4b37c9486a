"""Signed orders and their sealed parts: only the user's own words count, and only the right party can read its part."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from members import Federation, pem_of, self_signed

from woodlot.exceptions import IdentityError, PolicyError, RemoteProtocolError
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import CertificateRequest, Subject
from woodlot.identity.identity import Identity, Trust
from woodlot.identity.kem import kem_key
from woodlot.jobs.order_seal import PURPOSE, check_order, common_fields, open_part, read_order, sign_order
from woodlot.jobs.orders import AlignOrder, Order, Part, PredictOrder, TrainOrder
from woodlot.jobs.padding import unpad
from woodlot.protocols.core.forest_plan import ForestPlan

PLAN = ForestPlan(
    task="targets", n_estimators=3, entropy=False, max_depth=None, min_samples_split=0.1, min_samples_leaf=2,
    min_weight_fraction_leaf=0.0, max_features=1.0, max_leaf_nodes=7, min_impurity_decrease=0.5, bootstrap=True,
    max_samples=0.7, class_weight=(("yes", 2.0),), feature_sampling="tree", max_bins=255, out_of_bag="soft", seed=4,
)  # fmt: skip
PARTS = {"bank": Part(table="customers", label="default", weight="weight"), "shop": Part(table="orders")}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    root = tmp_path_factory.mktemp("orders")
    made = Federation(root, Authority.create(root / "authority", "north", days=300))
    for role, name in [("user", "alice"), ("user", "bob"), ("party", "bank"), ("party", "shop")]:
        made.join(role, name)
    return made


def identity(federation: Federation, name: str) -> Identity:
    return Identity.load(federation.root / name)


def fields(federation: Federation) -> dict[str, Any]:
    certificates = {party: pem_of(federation.root / party) for party in PARTS}
    here = identity(federation, "alice").federation
    return common_fields(PARTS, certificates, federation=here, coordinator="coordinator")


def orders(federation: Federation) -> list[Order]:
    return [
        AlignOrder(**fields(federation), method="psi"),
        TrainOrder(**fields(federation), holder="bank", plan=PLAN, settings="{}", name="first"),
        PredictOrder(
            **fields(federation), model="0" * 32, join="outer", how="classical", wire="ranks", vote="majority",
            score_at="bank", deliver_to="shop", give_answers=False, shuffled=(3, 1),
        ),
    ]  # fmt: skip


def test_an_order_is_not_taken_in_another_federation_of_the_same_user(federation: Federation) -> None:
    """Whoever has one key certified in two federations signs for one of them at a time."""
    alice = identity(federation, "alice")
    data, signature = sign_order(orders(federation)[0], alice)
    root = federation.root / "south"
    south = Authority.create(root, "south", days=300)
    asked = CertificateRequest.parse((federation.root / "alice" / "request.pem").read_bytes(), "request.pem")
    (root / "alice.pem").write_bytes(south.sign(asked, days=20))
    certificate = (root / "alice.pem").read_bytes()
    there = Trust((root / "ca.pem").read_bytes(), root / "revoked.pem")
    there.verify(certificate, PURPOSE, data, signature, role="user")  # the signature alone is good there, too
    with pytest.raises(PolicyError, match="the order is for another federation"):
        check_order(data, signature, certificate, there)


def test_an_order_arrives_as_it_was_given(federation: Federation) -> None:
    alice = identity(federation, "alice")
    for order in orders(federation):
        data, signature = sign_order(order, alice)
        read, user = check_order(data, signature, alice.certificate, federation.trust())
        assert (read, user) == (order, "alice")
        assert read.kind == type(order).__name__.removesuffix("Order").lower()
        for party, part in PARTS.items():
            assert open_part(read, identity(federation, party)) == part
        for word in ("customers", "orders", "default", "weight"):
            assert f'"{word}"'.encode() not in data


def test_jobs_have_names_of_their_own(federation: Federation) -> None:
    assert len({order.job for _ in range(20) for order in orders(federation)}) == 60


# --- whose words they are ---


def test_only_the_users_own_signature_counts(federation: Federation) -> None:
    alice, bob, bank = (identity(federation, name) for name in ("alice", "bob", "bank"))
    order = orders(federation)[1]
    data, signature = sign_order(order, alice)
    trust = federation.trust()
    others = [
        (data, sign_order(order, bob)[1], alice.certificate),
        (data, signature, bob.certificate),
        (data, alice.sign(data, "receipt"), alice.certificate),
        (data, b"", alice.certificate),
        (msgspec.json.encode(msgspec.structs.replace(order, holder="shop")), signature, alice.certificate),
        (data + b" ", signature, alice.certificate),
    ]
    for changed, signed, certificate in others:
        with pytest.raises(IdentityError, match="signature"):
            check_order(changed, signed, certificate, trust)
    with pytest.raises(IdentityError, match="party"):
        check_order(*sign_order(order, bank), bank.certificate, trust)


def test_outsiders_and_the_revoked_give_no_orders(tmp_path: Path) -> None:
    federation = Federation(tmp_path, Authority.create(tmp_path / "authority", "north", days=300))
    for role, name in [("user", "alice"), ("party", "bank"), ("party", "shop")]:
        federation.join(role, name)
    outsider = self_signed(tmp_path / "mallory", Subject("user", "alice"), federation.ca)
    order, alice = orders(federation)[0], identity(federation, "alice")
    forged = replace(alice, key=(outsider / "key.pem").read_bytes(), certificate=pem_of(outsider))
    with pytest.raises(IdentityError, match="not signed by this federation's authority"):
        check_order(*sign_order(order, forged), forged.certificate, federation.trust())
    trust = federation.trust()
    check_order(*sign_order(order, alice), alice.certificate, trust)
    federation.authority.revoke("alice")
    with pytest.raises(IdentityError, match="is revoked"):
        check_order(*sign_order(order, alice), alice.certificate, trust)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10**6), value=st.integers(1, 255))
def test_no_changed_byte_gets_past_the_users_signature(federation: Federation, at: int, value: int) -> None:
    alice = identity(federation, "alice")
    data, signature = sign_order(orders(federation)[2], alice)
    changed = bytearray(data)
    changed[at % len(data)] ^= value
    with pytest.raises(IdentityError):
        check_order(bytes(changed), signature, alice.certificate, federation.trust())


# --- what is no order ---


def test_an_order_must_make_sense(federation: Federation) -> None:
    align, train, predict = map(msgspec.to_builtins, orders(federation))
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (align, {"job": "0" * 31}, "job"),
        (align, {"job": "../" + "0" * 29}, "job"),
        (align, {"job": "0" * 32 + "\n"}, "job"),
        (align, {"parties": ["bank", "bank"]}, "sealed part for each"),
        (align, {"parties": ["bank"]}, "sealed part for each"),
        (align, {"parties": []}, "parties"),
        (align, {"sealed": {}}, "sealed part for each"),
        (align, {"method": "md5"}, "method"),
        (align, {"alignment": "x"}, "alignment"),
        (align, {"kind": "resign"}, "kind|Invalid"),
        (align, {"surprise": 1}, "surprise"),
        (train, {"holder": "post"}, "'post', who is not among its parties"),
        (train, {"join": "outer"}, "join must be 'inner'"),
        (train, {"plan": {**train["plan"], "task": "poetry"}}, "task"),
        (predict, {"model": "/etc/passwd"}, "model"),
        (predict, {"model": "0" * 32 + "\n"}, "model"),
        (predict, {"score_at": "post"}, "'post', who is not among its parties"),
        (predict, {"deliver_to": "post"}, "'post', who is not among its parties"),
        (predict, {"wire": "everything"}, "wire"),
    ]
    for order, changes, words in wrong:
        read_order(msgspec.json.encode(order))
        with pytest.raises(RemoteProtocolError, match=words):
            read_order(msgspec.json.encode(order | changes))
    for rubbish in (b"", b"{}", b"[]", b"null", b"\xff", b'{"kind":"align"}', b"[" * 100_000):
        with pytest.raises(RemoteProtocolError, match="no order"):
            read_order(rubbish)


# --- sealed parts ---


def test_a_part_is_for_one_party_and_one_job(federation: Federation) -> None:
    bank, shop = identity(federation, "bank"), identity(federation, "shop")
    order, other = orders(federation)[0], orders(federation)[0]
    swapped = {"bank": order.sealed["shop"], "shop": order.sealed["bank"]}
    for changes in (
        {"sealed": swapped},
        {"sealed": other.sealed},
        {"job": other.job},
        {"sealed": {"shop": order.sealed["shop"]}},
        {"sealed": {"bank": b"", "shop": b""}},
        {"sealed": {"bank": order.sealed["bank"][:64], "shop": b""}},
        {"sealed": {"bank": order.sealed["bank"][:1000], "shop": b""}},
    ):
        with pytest.raises(RemoteProtocolError, match="no part that this party can open; was its certificate renewed"):
            open_part(msgspec.structs.replace(order, **changes), bank)
    with pytest.raises(RemoteProtocolError, match="no part that this party can open"):
        open_part(order, replace(shop, name="bank"))


def test_a_part_is_sealed_with_both_keys(federation: Federation) -> None:
    """Whoever has one of the two private keys alone cannot open it."""
    bank, order = identity(federation, "bank"), orders(federation)[0]
    key = load_pem_private_key(bank.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    sealed = order.sealed["bank"]
    point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sealed[:65])
    classical, lattice = key.exchange(ec.ECDH(), point), kem_key(key).decapsulate(sealed[65 : 65 + 1088])
    info = b"woodlot order part 3\0" + sealed[: 65 + 1088] + f"{order.job}\0bank".encode()

    def opened(secret: bytes) -> bytes:
        cipher = ChaCha20Poly1305(HKDF(SHA256(), 32, salt=None, info=info).derive(secret))
        return cipher.decrypt(bytes(12), sealed[65 + 1088 :], None)

    assert msgspec.json.decode(unpad(opened(classical + lattice)), type=Part) == open_part(order, bank)
    for secret in (classical, lattice, classical + bytes(32), bytes(32) + lattice):
        with pytest.raises(InvalidTag):
            opened(secret)


def test_nothing_is_sealed_to_a_certificate_without_a_key_for_it(federation: Federation) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bank")])
    now = datetime.now(UTC)
    plain = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, SHA256())
    )  # fmt: skip
    with pytest.raises(IdentityError, match="'bank' has no ML-KEM-768 key"):
        common_fields(
            {"bank": Part(table="t")}, {"bank": plain.public_bytes(Encoding.PEM)}, federation="f", coordinator="c"
        )


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10**6), value=st.integers(1, 255))
def test_no_changed_byte_gets_past_the_seal(federation: Federation, at: int, value: int) -> None:
    order = orders(federation)[0]
    sealed = bytearray(order.sealed["bank"])
    sealed[at % len(sealed)] ^= value
    with pytest.raises(RemoteProtocolError, match="no part that this party can open"):
        open_part(
            msgspec.structs.replace(order, sealed=order.sealed | {"bank": bytes(sealed)}), identity(federation, "bank")
        )


def test_two_seals_of_the_same_part_have_nothing_in_common(federation: Federation) -> None:
    first, second = (orders(federation)[0].sealed["bank"] for _ in range(2))
    assert len(first) == len(second)
    assert sum(a == b for a, b in zip(first, second, strict=True)) < len(first) / 4


def test_a_hidden_plan_is_refused_where_the_coordinator_would_run_it(federation: Federation) -> None:
    plan = replace(PLAN, protection="hidden", max_bins=32, out_of_bag=None)
    order = TrainOrder(**fields(federation), holder="bank", plan=plan, settings="{}", server="shop")
    with pytest.raises(RemoteProtocolError, match="order with lead='holder'"):
        read_order(msgspec.json.encode(order))
