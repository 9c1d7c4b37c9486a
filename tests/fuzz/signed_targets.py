"""What is behind a signature or a seal, which no fuzzer gets past by itself: the input is signed and sealed here."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from workshop import federation

from woodlot.exceptions import WoodlotError
from woodlot.identity import certificates
from woodlot.identity.certificates import CertificateRequest, Revocations
from woodlot.identity.exchange import secret_with
from woodlot.identity.identity import Trust
from woodlot.identity.receipts import MemberKey, Receipt, Statement, check_request, make_receipt, signature_of
from woodlot.identity.receipts import SignedRequest as Asked
from woodlot.jobs import order_seal
from woodlot.jobs.orders import AlignOrder
from woodlot.jobs.scores.score_seal import KEY_BYTES, IdSeal

_ECDSA = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
PEMS = ("CERTIFICATE", "X509 CRL", "CERTIFICATE REQUEST")


def statements(data: bytes) -> None:
    """A receipt of which parts of statement and request were replaced, three bytes for each, under good signatures."""
    given: dict[str, Any] = {
        "statement": federation().statement(datetime.now(UTC)),
        "request": {"leaver": "shop", "level": 1, "model": "m"},
        "purpose": "revocation request",
    }
    for at in range(0, len(data) - 2, 3):
        change(given, *data[at : at + 3])
    try:
        statement = msgspec.convert(given.get("statement"), Statement)
    except ValueError:  # it would not be read from a file either
        return
    asked, purpose = json.dumps(given.get("request")).encode(), str(given.get("purpose"))
    alice, coordinator = federation().identity("alice"), federation().identity("coordinator")
    signed = Asked(data=asked, purpose=purpose, signed=signature_of(alice.certificate, alice.sign(asked, purpose)))
    with suppress(WoodlotError):
        check_request(signed, statement.party, statement.level, statement.model)
    receipt = Receipt.parse(make_receipt(statement, signed, MemberKey(coordinator)).to_json().encode())
    repr(receipt)
    receipt.verify()
    receipt.verify(federation().ca)


EXTREMES: list[Any] = [
    None, 0, 1, 2, 3, -1, 2**53, 2**62, 10**30, "", "shop", "bank", "\0", "\ud7ff" * 50, "now", "0" * 64, 0.1, 1e308,
    -1e-308, "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", [], ["shop"], {}, {"shop": "0" * 64}, True,
    [{"tree": 0, "removed": 0, "regrown": 2**62}] * 2,
]  # fmt: skip


def change(given: Any, which: int, how: int, value: int) -> None:
    """Replace, remove or repeat one of the things that nested lists and dictionaries hold, themselves included."""
    places = list(_places(given))
    if not places:
        return
    holder, key = places[which % len(places)]
    match how % 8:
        case 0:
            del holder[key]
        case 1:
            other, there = places[value % len(places)]
            holder[key] = copy.deepcopy(other[there])
        case 2:
            holder[key] = copy.deepcopy(EXTREMES[value % len(EXTREMES)])
        case 3 if isinstance(holder[key], int):
            holder[key] = value
        case _:  # of the same kind, or it would seldom be read
            alike = [extreme for extreme in EXTREMES if type(extreme) is type(holder[key])]
            holder[key] = copy.deepcopy(alike[value % len(alike)])


def _places(given: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(given) if isinstance(given, dict) else range(len(given)):
        yield given, key
        if isinstance(given[key], dict | list):
            yield from _places(given[key])


def parts(data: bytes) -> None:
    """What an order seals to a party, and what a user seals for a scoring: the text itself is the input."""
    bank = federation().identity("bank")
    order = AlignOrder(
        job="0" * 32, created=0.0, federation="", coordinator="", parties=("bank",), sealed={"bank": _sealed(data)}
    )
    with suppress(WoodlotError):
        order_seal.open_part(order, bank)
        return
    seal = IdSeal(bytes(KEY_BYTES), order.job, "bank")
    seal.open(1, seal._cipher.encrypt((1).to_bytes(12, "big"), data, seal._about))


def _sealed(text: bytes) -> bytes:
    """As `order_seal` seals a part, whatever the text is."""
    share, secret = secret_with(federation().identity("bank").certificate, "bank")
    return share + order_seal._cipher(secret, share, "0" * 32, "bank").encrypt(bytes(12), text, None)


def issued(data: bytes) -> None:
    """A certificate, a list of revocations or a request whose content is the input, behind a byte for which of them."""
    if not data:
        return
    kind = data[0] % len(PEMS)
    pem = signed_document(kind, data[1:])
    authority = certificates.parse_authority(federation().ca, "the authority")
    trust = Trust(federation().ca, None)
    if kind == 1:
        Revocations.parse(pem, authority, "a list")
        trust.update(pem)
        trust.admit(federation().identity("bank").certificate)
    elif kind == 2:
        CertificateRequest.parse(pem, "a request")
    else:
        certificate = certificates.parse_certificate(pem, "a certificate")
        for read in (
            lambda: certificates.check_issued(certificate, authority, "a certificate"),
            lambda: certificates.subject_of(certificate, "a certificate"),
            lambda: trust.verify(pem, "purpose", b"data", b"signature", role="user"),
            lambda: Trust(pem, None),
        ):
            with suppress(WoodlotError):
                read()
        trust.admit(pem)


def signed_document(kind: int, content: bytes) -> bytes:
    """The content, whatever it is, under the signature of the authority; a request's under that of the bank."""
    key = _key("bank" if kind == 2 else "")
    signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
    der = _der(0x30, content + _ECDSA + _der(0x03, b"\0" + signature))
    name = PEMS[kind]
    return f"-----BEGIN {name}-----\n{base64.encodebytes(der).decode()}-----END {name}-----\n".encode()


@cache
def _key(member: str) -> Any:
    root = federation().root
    return certificates.read_key(root / member / "key.pem" if member else root / "authority" / "ca-key.pem", "nothing")


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content
