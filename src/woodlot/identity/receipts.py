"""Receipts of revocations: JSON, signed by the coordinator, checked by anybody without asking anybody.

A receipt says which party left which model and how: fingerprints of all parts before and after, nodes destroyed and
regrown, what it cost, the score before and after, and the signed request that asked for it. The signature stands under
the whole receipt, so that no field can be changed, added or dropped. In one process, where the coordinator has no
certificate, a fresh key signs: such a receipt proves that it is whole, not who made it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from woodlot.data.decoding import from_json
from woodlot.data.markup import html_facts
from woodlot.exceptions import IdentityError, PolicyError, ReceiptError
from woodlot.identity import certificates
from woodlot.identity.identity import Identity, to_sign
from woodlot.runtime.audit import Cost

RECEIPT = "revocation receipt"
REQUEST = "revocation request"
"""What the signatures are for."""
REQUEST_SECONDS = 24 * 3600.0
"""How long a request for a revocation may be acted upon."""
CLOCK_SECONDS = 300.0
"""How far the clocks of two organisations may differ."""
MAX_BYTES = 64 * 2**20

Count = Annotated[int, msgspec.Meta(ge=0)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Says what it says, and nothing else."""


class TreeChange(_Strict, frozen=True):
    """Nodes of one tree that were destroyed, and that were made in their place."""

    tree: Count
    removed: Count
    regrown: Count


def tree_changes(removed: Sequence[int], regrown: Sequence[int]) -> tuple[TreeChange, ...]:
    """The trees in which anything changed, by the numbers of nodes of all trees."""
    pairs = enumerate(zip(removed, regrown, strict=True))
    return tuple(TreeChange(tree=tree, removed=gone, regrown=new) for tree, (gone, new) in pairs if gone or new)


class CostOf(_Strict, frozen=True):
    """What the revocation cost: exchanges, bytes of all parties, seconds, and nodes that were searched."""

    rounds: Count
    bytes: Count
    seconds: float
    nodes_searched: Count


def cost_of(cost: Cost, searched: int) -> CostOf:
    """What a receipt says of the cost."""
    return CostOf(
        rounds=cost.rounds,
        bytes=cost.bytes_sent + cost.bytes_received,
        seconds=round(cost.total_seconds, 6),
        nodes_searched=searched,
    )


class RevocationScores(_Strict, frozen=True):
    """Accuracy or R2 on rows that the trees had not seen, before and after."""

    measure: Literal["accuracy", "R2"]
    rows: Literal["out of bag", "held out"]
    before: float
    after: float


class Statement(_Strict, frozen=True):
    """What a receipt states.

    Attributes
    ----------
    party : str
        Who has left.
    level : {1, 2, 3}
        1: its nodes and all under them are gone; 2: as 1, and nothing old can be used any more; 3: the forest is the
        one that would have been grown without it, on the rows that ``rows`` names.
    model : str
        Fingerprint of the coordinator's part before, or the name of the model at the coordinator.
    parties_before, parties_after : tuple of str
        Who took part.
    before, after : dict of str to str
        SHA-256 of every part that is known here.
    epoch_before, epoch_after : int
        Of the model: it grows with every revocation.
    keys_before, keys_after : int
        Epoch of the encryption keys; 0 where nothing is encrypted.
    trees : tuple of TreeChange
        Where anything changed.
    nodes_before, nodes_after : int
        Of all trees.
    notified : tuple of str
        Parties that were told, and hold the new parts only.
    revoked_key : str
        Fingerprint of the leaver's key that counts no longer; empty where it had none. With ``scheme="shares"``
        "shares" and the leaver's word on the shares of its splits, which helper and key service have deleted.
    rows : {"of the training", "of those who stay"}
        What the forest is of: the same rows as before, which the leaver had in common with all others, so that rows
        which it alone lacked stay out; or, where parties have rows of their own, those of the others.
    """

    party: str
    level: Literal[1, 2, 3]
    model: str
    created: str
    parties_before: tuple[str, ...]
    parties_after: tuple[str, ...]
    before: dict[str, Sha256]
    after: dict[str, Sha256]
    epoch_before: Count
    epoch_after: Count
    keys_before: Count
    keys_after: Count
    trees: tuple[TreeChange, ...]
    nodes_before: Count
    nodes_after: Count
    cost: CostOf
    scores: RevocationScores | None
    notified: tuple[str, ...]
    revoked_key: str
    rows: Literal["of the training", "of those who stay"]

    @property
    def rows_in_words(self) -> str:
        """Which rows the forest is of, and which it is not of."""
        if self.rows == "of those who stay":
            return f"Its rows are those of the parties that stay; those of {self.party} are gone."
        return (
            f"Its rows are those of the training, which every party had, {self.party} too: rows that only {self.party} "
            "lacked stay out. To learn from them, train again without it."
        )

    @property
    def removed(self) -> int:
        return sum(tree.removed for tree in self.trees)

    @property
    def regrown(self) -> int:
        return sum(tree.regrown for tree in self.trees)

    @property
    def exact(self) -> bool:
        """Whether the forest was from then on the one grown from scratch without the leaver, on the rows it states."""
        return self.level == 3


class Signed(_Strict, frozen=True):
    """A signature and whose it is: a certificate of the federation, or a bare key."""

    algorithm: Literal["Ed25519", "ECDSA-P256-SHA256"]
    public_key: str
    certificate: str
    signature: str


class SignedRequest(_Strict, frozen=True):
    """What was asked for, as it was signed: the bytes and the signature under them."""

    data: bytes
    purpose: str
    signed: Signed


class RevocationRequest(_Strict, frozen=True):
    """What a request for a revocation says, where it is not an order of a service."""

    party: str
    level: Literal[1, 2, 3]
    model: str
    created: str
    expires: str
    nonce: str


class _Paper(_Strict, frozen=True):
    """A receipt without its signature: what is signed."""

    format: Literal["woodlot-receipt"]
    version: Literal[1]
    statement: Statement
    request: SignedRequest


class _ReceiptFile(_Paper, frozen=True):
    signed: Signed


# --- who signs ---


class PurposeSigner(Protocol):
    """Whoever can sign for a purpose."""

    def signed(self, data: bytes, purpose: str) -> Signed:
        """A signature under the data."""


class MemberKey:
    """Signs as a member of a federation."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def signed(self, data: bytes, purpose: str) -> Signed:
        """A signature under the data."""
        return signature_of(self._identity.certificate, self._identity.sign(data, purpose))


class FreshKey:
    """Signs with a key made for this receipt, which nobody vouches for."""

    def __init__(self) -> None:
        self._key = ed25519.Ed25519PrivateKey.generate()

    def signed(self, data: bytes, purpose: str) -> Signed:
        """A signature under the data."""
        return Signed(
            algorithm="Ed25519",
            public_key=_pem(self._key.public_key()),
            certificate="",
            signature=base64.b64encode(self._key.sign(to_sign(purpose, data))).decode(),
        )


def signature_of(certificate: bytes, signature: bytes) -> Signed:
    """A member's signature, with its certificate."""
    return Signed(
        algorithm="ECDSA-P256-SHA256",
        public_key="",
        certificate=certificate.decode(),
        signature=base64.b64encode(signature).decode(),
    )


def check_signature(signed: Signed, purpose: str, data: bytes, what: str) -> str:
    """Check a signature; returns the fingerprint of the key."""
    try:
        signature = base64.b64decode(signed.signature, validate=True)
        if signed.algorithm == "Ed25519":
            key = load_pem_public_key(signed.public_key.encode())
            is_ours = isinstance(key, ed25519.Ed25519PublicKey) and _pem(key) == signed.public_key
            if not isinstance(key, ed25519.Ed25519PublicKey) or not is_ours or signed.certificate:
                raise ReceiptError(f"{what} has a key of another kind than its signature")
            key.verify(signature, to_sign(purpose, data))
            return _fingerprint(key)
        certificate = certificates.parse_certificate(signed.certificate.encode(), what)
        if signed.public_key or certificate.public_bytes(Encoding.PEM).decode() != signed.certificate:
            raise ReceiptError(f"{what} has something beside its certificate")
        member = certificates.public_key(certificate)
        member.verify(signature, to_sign(purpose, data), ec.ECDSA(SHA256(), deterministic_signing=True))
        return certificates.fingerprint(member)
    except InvalidSignature:
        raise ReceiptError(f"the signature under {what} is not of this key: something in it was changed") from None
    except (ValueError, TypeError, UnsupportedAlgorithm, IdentityError) as error:
        raise ReceiptError(f"the signature under {what} cannot be read: {error}") from None


def _pem(key: ed25519.Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _fingerprint(key: ed25519.Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


# --- requests ---


def make_request(
    party: str, level: int, model: str, signer: PurposeSigner, seconds: float = REQUEST_SECONDS
) -> SignedRequest:
    """Ask for a revocation.

    Parameters
    ----------
    party : str
        Who is to leave.
    level : {1, 2, 3}
        How.
    model : str
        Fingerprint of the model.
    signer : PurposeSigner
        Who asks.
    seconds : float
        How long the request may be acted upon.
    """
    now = datetime.now(UTC)
    asked = {
        "party": party, "level": level, "model": model, "created": now.isoformat(),
        "expires": (now + timedelta(seconds=seconds)).isoformat(), "nonce": secrets.token_hex(16),
    }  # fmt: skip
    data = msgspec.json.encode(asked, order="sorted")
    return SignedRequest(data=data, purpose=REQUEST, signed=signer.signed(data, REQUEST))


def check_request(
    request: SignedRequest, party: str, level: int, model: str, now: datetime | None = None
) -> RevocationRequest:
    """Refuse a request that is forged, over, or for something else.

    A request that was acted upon before names a model that is not there any more: it cannot be used twice.
    """
    try:
        check_signature(request.signed, request.purpose, request.data, "the request")
        asked = from_json(request.data, RevocationRequest)
        begins, ends = (datetime.fromisoformat(moment) for moment in (asked.created, asked.expires))
        slack = timedelta(seconds=CLOCK_SECONDS)
        if not begins - slack <= (now or datetime.now(UTC)) < ends:
            raise PolicyError(f"the request is not valid now: it was made at {asked.created} for {asked.expires}")
    except (ReceiptError, ValueError, TypeError, OverflowError) as error:
        raise PolicyError(f"the request is not taken: {error}") from None
    if request.purpose != REQUEST or (asked.party, asked.level) != (party, level):
        raise PolicyError(f"the request is for {asked.party!r} at level {asked.level}, not for {party!r} at {level}")
    if asked.model != model:
        raise PolicyError("the request is for another model, or was used before: the model is not what it was then")
    return asked


# --- receipts ---


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a check of a receipt has found, where nothing is wrong.

    Attributes
    ----------
    signer, requester : str
        Who has signed the receipt and who the request: role and name as vouched for by the authority; without one the
        fingerprints of their keys, to compare with what was told by another way.
    vouched : bool
        Whether an authority's certificate was given and both are of it.
    """

    signer: str
    requester: str
    vouched: bool


class WrittenReceipt:
    """A receipt as text and in files; what it says and how it is checked is each kind's own.

    Parameters
    ----------
    file : msgspec.Struct
        The receipt with its signature.
    """

    file_type: ClassVar[type[msgspec.Struct]]
    of_what: ClassVar[str]

    def __init__(self, file: Any) -> None:
        self._file = file

    def _repr_html_(self) -> str:
        return html_facts(type(self).__name__, self._in_words() | {"signed": self._file.statement.created})

    def _in_words(self) -> dict[str, str]:
        """What it says first, for people."""
        raise NotImplementedError

    def to_json(self) -> str:
        """The receipt as text."""
        return msgspec.json.format(msgspec.json.encode(self._file, order="deterministic"), indent=1).decode() + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the receipt to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a receipt; `verify` checks it."""
        try:
            if Path(path).stat().st_size > MAX_BYTES:
                raise ReceiptError(f"{path} is too large for a receipt")
            return cls.parse(Path(path).read_bytes())
        except OSError as error:
            raise ReceiptError(f"{path} cannot be read: {error.strerror}") from None

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """A receipt from its text."""
        try:
            json.loads(data, object_pairs_hook=unique_fields)
            return cls(from_json(data, cls.file_type))
        except (ValueError, RecursionError) as error:
            raise ReceiptError(f"this is no receipt of {cls.of_what}, or it was changed: {error}") from None


class Receipt(WrittenReceipt):
    """A signed receipt. ``statement`` is what it says.

    Parameters
    ----------
    file : _ReceiptFile
        The receipt with its signature; read one with `Receipt.load`, make one with `make_receipt`.
    """

    file_type = _ReceiptFile
    of_what = "a revocation"

    def __init__(self, file: _ReceiptFile) -> None:
        super().__init__(file)
        self.statement = file.statement
        self.request = file.request

    def __repr__(self) -> str:
        s = self.statement
        return (
            f"Receipt: {s.party} has left at level {s.level}; {s.removed:,} of {s.nodes_before:,} nodes removed, "
            f"{s.regrown:,} regrown, epoch {s.epoch_after}"
        )

    def _in_words(self) -> dict[str, str]:
        s = self.statement
        told = {
            "party": f"{s.party} has left, at level {s.level}",
            "nodes": f"{s.removed:,} of {s.nodes_before:,} removed, {s.regrown:,} grown again",
            "who stays": ", ".join(s.parties_after),
            "rows": s.rows_in_words,
        }
        if s.scores is not None:
            measure = f"{s.scores.measure}, {s.scores.rows}"
            told[measure] = f"{s.scores.before:.4f} before, {s.scores.after:.4f} after"
        return told

    def verify(self, authority: bytes | None = None) -> Verdict:
        """Check the receipt offline: signatures, request, and that its numbers go together.

        Parameters
        ----------
        authority : bytes, optional
            The certificate (PEM) of the federation's authority, which vouches for whoever has signed.

        Raises
        ------
        ReceiptError
            Where anything is not as it was signed.
        """
        file, statement = self._file, self.statement
        signer = check_signature(file.signed, RECEIPT, _paper(file), "the receipt")
        requester = check_signature(self.request.signed, self.request.purpose, self.request.data, "the request")
        leader = _check_asked(self.request, statement)
        _check_numbers(statement)
        if authority is None:
            return Verdict(f"key {signer}", f"key {requester}", False)
        when = signing_time(statement.created)
        return Verdict(
            vouched_signer(
                file.signed, authority, when, ("party",) if leader else ("coordinator",), "the receipt", leader
            ),
            vouched_signer(self.request.signed, authority, when, ("user", "party"), "the request"),
            True,
        )


def make_receipt(statement: Statement, request: SignedRequest, signer: PurposeSigner) -> Receipt:
    """Sign a statement."""
    paper = _Paper(format="woodlot-receipt", version=1, statement=statement, request=request)
    signed = signer.signed(msgspec.json.encode(paper, order="deterministic"), RECEIPT)
    return Receipt(
        _ReceiptFile(format=paper.format, version=paper.version, statement=statement, request=request, signed=signed)
    )


def now() -> str:
    """The time, as receipts have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _paper(file: _ReceiptFile) -> bytes:
    paper = _Paper(format=file.format, version=file.version, statement=file.statement, request=file.request)
    return msgspec.json.encode(paper, order="deterministic")


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a field stands there twice")
    return dict(pairs)


def _check_asked(request: SignedRequest, statement: Statement) -> str:
    """The request asked for what was done; an order of a service calls the leaver ``leaver``.

    Returns the party that the request names as the leader of the job, if it names one: that party signs the receipt.
    """
    try:
        asked = json.loads(request.data)
        leader = str(asked.get("led_by") or "")
        named = (asked.get("party") or asked.get("leaver"), asked["level"], asked["model"])
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ReceiptError(f"the request in the receipt cannot be read: {error!r}") from None
    if named != (statement.party, statement.level, statement.model):
        raise ReceiptError("the request in the receipt asks for something else than what the receipt states")
    return leader


def _check_numbers(s: Statement) -> None:
    if s.nodes_before - s.removed + s.regrown != s.nodes_after:
        raise ReceiptError("the numbers of nodes do not add up")
    if s.party not in s.parties_before or s.party in s.parties_after:
        raise ReceiptError("the receipt does not say that its party has left")
    if s.party in s.after or s.party in s.notified:
        raise ReceiptError("the party that has left still holds a part")
    if s.level == 2 and s.keys_after <= s.keys_before:
        raise ReceiptError("at level 2 a new epoch of keys begins, and the receipt has none")
    if s.epoch_after <= s.epoch_before or len({tree.tree for tree in s.trees}) != len(s.trees):
        raise ReceiptError("the epochs or trees are not in order")


def signing_time(text: str) -> datetime:
    """A time as `now` writes it."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = datetime.min
    if when.tzinfo is None:
        raise ReceiptError(f"the receipt was not signed at a time, but at {text[:40]!r}")
    return when


def vouched_signer(
    signed: Signed, authority: bytes, when: datetime, roles: tuple[str, ...], what: str, name: str = ""
) -> str:
    """Role and name of who has signed, if the authority vouches for it; ``name``: nobody else may have."""
    if not signed.certificate:
        raise ReceiptError(
            f"{what} is signed by a key without certificate, made in one process: no authority vouches for it; "
            "check it without one, and compare the key's fingerprint"
        )
    try:
        issuer = certificates.parse_authority(authority, "the authority's certificate")
        certificate = certificates.parse_certificate(signed.certificate.encode(), f"the certificate under {what}")
        certificates.check_issued(certificate, issuer, f"the certificate under {what}")
        subject = certificates.subject_of(certificate, f"the certificate under {what}")
    except IdentityError as error:
        raise ReceiptError(str(error)) from None
    if not certificate.not_valid_before_utc <= when <= certificate.not_valid_after_utc:
        raise ReceiptError(f"the certificate under {what} was not valid when it was signed")
    if subject.role not in roles:
        raise ReceiptError(f"{what} is signed by {subject}; it takes a {' or a '.join(roles)}")
    if name and subject.name != name:
        raise ReceiptError(f"{what} is signed by {subject}, and its request names {name!r} as the leader of the job")
    return str(subject)
