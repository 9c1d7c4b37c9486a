"""Alignments in one process: parties with identities, and what passes between them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from woodlot.data.alignment import align_rows
from woodlot.exceptions import IdentityError
from woodlot.protocols.align import Alignment, AlignParty, Signer, align
from woodlot.protocols.core.message import Message
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

Ids = list[int] | list[str]
SECRET = bytes(range(40, 72))
RAW_KEY = 32
SIGNATURE = 64


class Operator:
    """Signs names and keys: the least that a federation's certificates are."""

    def __init__(self, seed: bytes = b"operator") -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed).digest())
        self.public = self._key.public_key()

    def admit(self, name: str) -> Identity:
        own = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"key of " + name.encode()).digest())
        key = own.public_key().public_bytes_raw()
        return Identity(self.public, own, key + self._key.sign(key + name.encode()))


class Identity:
    """A party's `Signer`."""

    def __init__(self, operator: Ed25519PublicKey, key: Ed25519PrivateKey, certificate: bytes) -> None:
        self._operator, self._key, self.certificate = operator, key, certificate

    def sign(self, purpose: str, data: bytes) -> bytes:
        return self._key.sign(purpose.encode() + b"\0" + data)

    def verify(self, name: str, certificate: bytes, purpose: str, data: bytes, signature: bytes) -> None:
        key = certificate[:RAW_KEY]
        try:
            self._operator.verify(certificate[RAW_KEY:], key + name.encode())
            Ed25519PublicKey.from_public_bytes(key).verify(signature, purpose.encode() + b"\0" + data)
        except (InvalidSignature, ValueError):
            raise IdentityError(f"not the identity of {name}") from None


OPERATOR = Operator()


def entropy_of(name: str, job: str = "") -> Callable[[str], bytes]:
    return lambda purpose: hashlib.sha256(f"{name}/{job}/{purpose}".encode()).digest()


def party(
    name: str, ids: Any, *, secret: bytes | None = None, signer: Signer | Literal["own"] | None = "own", job: str = ""
) -> AlignParty:
    """A party; with an identity unless told otherwise."""
    who = OPERATOR.admit(name) if signer == "own" else signer
    return AlignParty(name, ids, entropy=entropy_of(name, job), shared_secret=secret, signer=who, job=job)


def run_alignment(
    parties: Mapping[str, Any],
    method: Literal["keyed-hash", "psi"],
    join: Literal["inner", "outer"] = "inner",
    ledger: Ledger | None = None,
) -> Alignment:
    """Align through the in-process driver; `parties` may be anything that handles messages."""
    book = Ledger() if ledger is None else ledger
    with InProcessDriver(parties, ledger=book) as driver:
        return run(align(tuple(parties), method=method, join=join), driver, ledger=book)


def expected_rows(tables: Mapping[str, Ids], join: str) -> set[tuple[int, ...]]:
    """The common rows, as the row of each party, by the join in clear."""
    dtype = object if isinstance(next((v for t in tables.values() for v in t), 0), str) else np.int64
    frames = {name: {"id": np.array(ids, dtype)} for name, ids in tables.items()}
    _, rows = align_rows(frames, "id", join)
    assert rows is not None
    return set(zip(*(own.tolist() for own in rows.values()), strict=True))


def traces_of(values: Ids) -> list[bytes]:
    """The forms in which somebody might find an id in a message: encodings, and hashes without a secret."""
    traces: list[bytes] = []
    for value in values:
        forms = [str(value).encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be")]
        if isinstance(value, int):
            forms += [value.to_bytes(width, order) for width in (4, 8) for order in ("little", "big")]
        for form in [*forms, b"t" + forms[0], b"i" + bytes(1) + forms[-1]]:
            for name in ("md5", "sha1", "sha256"):
                digest = hashlib.new(name, form, usedforsecurity=False)
                traces += [digest.digest()[:8], digest.hexdigest()[:16].encode()]
        traces += forms
    return traces


def is_found(traces: list[bytes], messages: list[bytes]) -> bool:
    return any(trace in message for message in messages for trace in traces)


class Between:
    """A coordinator's hand on the wire: changes requests on their way to one party."""

    def __init__(self, handler: Any, change: Callable[[Message], Message]) -> None:
        self._handler, self._change = handler, change

    def handle(self, message: Message) -> Message:
        return self._handler.handle(self._change(message))


class Liar:
    """A party whose replies are changed before they leave it."""

    def __init__(self, handler: Any, change: Callable[[Message], Message]) -> None:
        self._handler, self._change = handler, change

    def handle(self, message: Message) -> Message:
        return self._change(self._handler.handle(message))
