"""A user's orders: what is to be done, signed by the user, with a part for each party that only it can read."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509 import load_pem_x509_certificate

from woodlot.crypto.dtpkc import DEFAULT_BITS, Setting
from woodlot.data.decoding import from_json
from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.horizontal.methods import HorizontalPlan
from woodlot.protocols.linear.model import LinearPlan
from woodlot.protocols.messages.vertical import Wire
from woodlot.protocols.revocable.plan import RevocablePlan
from woodlot.protocols.vertical.plan import ForestPlan, Task
from woodlot.service.identity import Identity, Trust
from woodlot.trees.predict import Vote

PURPOSE = "job order"
"""What a user's signature under an order is for."""

MAX_REQUEST_BYTES = 3_000_000
"""The largest encrypted request, in bytes: every member is brought the order that it is part of, in a header."""

JOB_ID = re.compile(r"[0-9a-f]{32}")
_POINT = 65  # bytes of an uncompressed point of P-256
_NONCE = bytes(12)  # every sealed part has a key of its own

# \Z, not $: that would let a line end through behind the digits
JobId: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^{JOB_ID.pattern}\Z")]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What only one party is told: its table, and its columns with labels and weights, where it has them.

    In an encrypted prediction there is no table; `columns` names, for each column of the request, the party's own, or
    is empty where it is another party's. A scoring has the key with which the user seals ids to this party.
    """

    table: str = ""
    label: str | None = None
    weight: str | None = None
    columns: tuple[str, ...] = ()
    key: bytes = b""


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """What all orders say.

    Attributes
    ----------
    job : str
        The job's name, drawn by the user: 32 hexadecimal digits.
    created : float
        When it was ordered, in seconds since 1970.
    parties : tuple of str
        Who takes part.
    sealed : dict of str to bytes
        A part for each of them; see `Part`.

    """

    job: JobId
    created: float
    parties: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    sealed: dict[str, bytes]

    @property
    def kind(self) -> str:
        """What is ordered, such as "train"; policies speak of it by this name."""
        return str(type(self).__struct_config__.tag)


class AlignedOrder(Order, frozen=True, kw_only=True):
    """What orders to parties with different columns say besides.

    Attributes
    ----------
    method, join
        How the common rows are found; see `woodlot.protocols.align`.
    alignment : str or None
        The job that has found them already.

    """

    method: Literal["keyed-hash", "psi"] = "keyed-hash"
    join: Literal["inner", "outer"] = "inner"
    alignment: JobId | None = None

    @property
    def row_parties(self) -> tuple[str, ...]:
        """Those of the parties that have rows."""
        return self.parties


class AlignOrder(AlignedOrder, frozen=True, tag="align"):
    """Find the common rows, and keep them for later jobs."""


class TrainOrder(AlignedOrder, frozen=True, tag="train"):
    """Grow a forest.

    Attributes
    ----------
    holder : str
        The party with the labels.
    plan : ForestPlan
        What to grow.
    settings : str
        The estimator and its parameters, as JSON: kept with the model for the user.
    name : str
        What the user calls the model.

    """

    holder: str
    plan: ForestPlan
    settings: str
    name: str = ""


class PredictOrder(AlignedOrder, frozen=True, tag="predict"):
    """Predict with a forest that was grown before.

    Attributes
    ----------
    model : str
        The job that has grown it.
    score_at : str or None
        The party that scores the answers with its labels.
    deliver_to : str or None
        The party that keeps the answers with its ids.
    give_answers : bool
        Whether the user gets the answers.
    shuffled : (feature, seed), optional
        For permutation importance.
    absent : tuple of str
        Parties whose part of the forest is left out, as if they were away: to measure what they contribute.

    """

    model: JobId
    how: Literal["one-round", "classical", "sealed"] = "one-round"
    wire: Wire = "decisions"
    vote: Vote = "soft"
    score_at: str | None = None
    deliver_to: str | None = None
    give_answers: bool = True
    shuffled: tuple[int, int] | None = None
    absent: tuple[str, ...] = ()


class TrainLinearOrder(AlignedOrder, frozen=True, kw_only=True, tag="train-linear"):
    """Fit a linear model.

    Attributes
    ----------
    plan : LinearPlan
        What to fit.
    holder, settings, name
        As for `TrainOrder`.

    """

    holder: str
    plan: LinearPlan
    settings: str
    name: str = ""


class PredictLinearOrder(AlignedOrder, frozen=True, kw_only=True, tag="predict-linear"):
    """Predict with a linear model that was fitted before.

    Attributes
    ----------
    model, score_at, deliver_to, give_answers
        As for `PredictOrder`.

    """

    model: JobId
    score_at: str | None = None
    deliver_to: str | None = None
    give_answers: bool = True


class RevokeOrder(AlignedOrder, frozen=True, tag="revoke"):
    """Take a party out of a forest; the parties of the order are those that stay.

    Attributes
    ----------
    model : str
        The job that has grown it.
    leaver : str
        Who leaves.
    level : {1, 3}
        Its nodes only, or exact.
    task : {"classes", "targets"}
        What the label holder's labels are.

    """

    model: JobId
    leaver: str
    task: Task
    level: Literal[1, 3] = 1


class RevocableOrder(AlignedOrder, frozen=True, kw_only=True):
    """What orders about revocable forests say; helper and key service, where there are such, are among the parties.

    Attributes
    ----------
    holder : str
        The party with the labels, which it sends to the coordinator.
    helper, key_service : str or None
        Who they are; None where splits are not encrypted.
    bits, setting
        Of the modulus of a new epoch; see `woodlot.crypto.dtpkc`.

    """

    holder: str
    helper: str | None = None
    key_service: str | None = None
    bits: int = DEFAULT_BITS
    setting: Setting = "standard"

    @property
    def row_parties(self) -> tuple[str, ...]:
        """Those of the parties that have rows."""
        return tuple(party for party in self.parties if party not in (self.helper, self.key_service))

    @property
    def keyring(self) -> str:
        """The name under which the members keep the keys: the job that has begun the first epoch."""
        return self.job


class TrainRevocableOrder(RevocableOrder, frozen=True, kw_only=True, tag="train-revocable"):
    """Grow a revocable forest, and have its splits encrypted.

    Attributes
    ----------
    plan : RevocablePlan
        What to grow.
    settings, name
        As for `TrainOrder`.

    """

    plan: RevocablePlan
    settings: str
    name: str = ""


class RevokeRevocableOrder(RevocableOrder, frozen=True, kw_only=True, tag="revoke-revocable"):
    """Take a party out of a revocable forest; the parties of the order are those that stay.

    Attributes
    ----------
    model, leaver, task
        As for `RevokeOrder`.
    level : {1, 2, 3}
        Its nodes only; also a new epoch of keys; or exact.
    keys : str
        The keyring of the model; empty where it has none.

    """

    model: JobId
    leaver: str
    task: Task
    level: Literal[1, 2, 3] = 1
    keys: Annotated[str, msgspec.Meta(pattern=rf"^({JOB_ID.pattern})?\Z")] = ""

    @property
    def keyring(self) -> str:
        """The name under which the members keep the keys."""
        return self.keys


class TrainRowsOrder(Order, frozen=True, kw_only=True, tag="train-rows"):
    """Grow a whole forest over the rows of parties that have the same columns.

    Attributes
    ----------
    plan : HorizontalPlan
        What to grow, and by which method. A party does this and nothing else.
    settings, name
        As for `TrainOrder`.

    """

    plan: HorizontalPlan
    settings: str
    name: str = ""


class RevokeRowsOrder(TrainRowsOrder, frozen=True, kw_only=True, tag="revoke-rows"):
    """Take a party out of a forest over rows: the others grow it anew, by the plan of its training.

    Attributes
    ----------
    model : str
        The job that has grown it.
    leaver : str
        Who leaves.
    level : {3}
        Exact.

    """

    model: JobId
    leaver: str
    level: Literal[3] = 3


class PredictRowsOrder(Order, frozen=True, kw_only=True, tag="predict-rows"):
    """Have every party predict its own rows with a whole forest, and keep the answers.

    A party whose `Part` names a label tells how good they are.

    Attributes
    ----------
    model : str
        The job that has grown it.

    """

    model: JobId


class ScoreOrder(Order, frozen=True, kw_only=True, tag="score"):
    """Open a scoring: rows that the user names by their ids, a few at a time, until it is closed.

    Attributes
    ----------
    model : str
        The job that has grown the forest.
    vote : {"soft", "majority"}
        What a tree answers.

    """

    model: JobId
    vote: Vote = "soft"


class MemberOrder(Order, frozen=True, kw_only=True):
    """What orders say in which a helper and a key service take part; they are among the parties.

    Attributes
    ----------
    model : str
        The job that has grown the forest.
    helper, key_service : str
        Who they are.
    keys : str
        The name under which the members keep the keys; empty where it is that of the model. A model that a party has
        left takes over those of the model before.

    """

    model: JobId
    helper: str
    key_service: str
    keys: Annotated[str, msgspec.Meta(pattern=rf"^({JOB_ID.pattern})?\Z")] = ""

    @property
    def keyring(self) -> str:
        """The name under which the members keep the keys."""
        return self.keys or self.model


class KeysOrder(MemberOrder, frozen=True, kw_only=True, tag="keys"):
    """Begin a new epoch of keys for a forest, and have its splits encrypted; the epoch before is over.

    Attributes
    ----------
    bits, setting
        Of the modulus; see `woodlot.crypto.dtpkc`.

    """

    bits: int = DEFAULT_BITS
    setting: Setting = "standard"


class PredictEncryptedOrder(MemberOrder, frozen=True, kw_only=True, tag="predict-encrypted"):
    """Predict rows that nobody can read.

    Attributes
    ----------
    epoch : int
        Of the keys.
    rows, columns : int
        The size of the request.
    values : bytes
        Its ciphertexts, row after row.
    vote : {"soft", "hard"}
        Whether trees give shares or a vote.

    """

    epoch: int
    rows: Annotated[int, msgspec.Meta(ge=1)]
    columns: Annotated[int, msgspec.Meta(ge=1)]
    values: Annotated[bytes, msgspec.Meta(max_length=MAX_REQUEST_BYTES)]
    vote: Vote = "soft"


AnyOrder: TypeAlias = (
    AlignOrder
    | TrainOrder
    | PredictOrder
    | RevokeOrder
    | TrainRevocableOrder
    | RevokeRevocableOrder
    | TrainLinearOrder
    | PredictLinearOrder
    | TrainRowsOrder
    | RevokeRowsOrder
    | PredictRowsOrder
    | ScoreOrder
    | KeysOrder
    | PredictEncryptedOrder
)


def new_job() -> str:
    """A name for a job that nobody else draws."""
    return os.urandom(16).hex()


def common_fields(parts: Mapping[str, Part], certificates: Mapping[str, bytes]) -> dict[str, Any]:
    """The fields of an order that say who takes part; each party's part is sealed to its certificate."""
    job = new_job()
    return {
        "job": job,
        "created": time.time(),
        "parties": tuple(parts),
        "sealed": {p: _seal(part, certificates[p], job, p) for p, part in parts.items()},
    }


def sign_order(order: AnyOrder, identity: Identity) -> tuple[bytes, bytes]:
    """The bytes of an order, and the user's signature under them."""
    data = msgspec.json.encode(order)
    return data, identity.sign(data, PURPOSE)


def read_order(data: bytes) -> AnyOrder:
    """An order from its bytes; anything else is a `RemoteProtocolError`."""
    try:
        order: AnyOrder = from_json(data, AnyOrder)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"this is no order: {error}") from None
    if set(order.sealed) != set(order.parties) or len(set(order.parties)) != len(order.parties):
        raise RemoteProtocolError("an order must have one sealed part for each of its parties")
    members = ("helper", "key_service")
    named = {
        "train": ("holder",),
        "predict": ("score_at", "deliver_to"),
        "train-linear": ("holder",),
        "predict-linear": ("score_at", "deliver_to"),
        "keys": members,
        "predict-encrypted": members,
        "train-revocable": ("holder", *members),
        "revoke-revocable": ("holder", *members),
    }.get(order.kind, ())
    for field in named:
        if (party := getattr(order, field)) is not None and party not in order.parties:
            raise RemoteProtocolError(f"the order names {party!r}, who is not among its parties")
    if isinstance(order, RevocableOrder) and (order.helper is None) != (order.key_service is None):
        raise RemoteProtocolError("an order with encrypted splits names both a helper and a key service")
    if isinstance(order, RevocableOrder) and (not order.row_parties or order.holder not in order.row_parties):
        raise RemoteProtocolError("helper and key service have no rows; there must be others, the label holder first")
    if isinstance(order, RevokeOrder | RevokeRevocableOrder | RevokeRowsOrder) and order.leaver in order.parties:
        raise RemoteProtocolError(f"{order.leaver!r} leaves: it takes no part in growing the forest without it")
    if isinstance(order, TrainOrder | TrainLinearOrder | RevokeOrder | RevocableOrder) and order.join != "inner":
        raise RemoteProtocolError("training needs every row at every party: join must be 'inner'")
    return order


def check_order(data: bytes, signature: bytes, certificate: bytes, trust: Trust) -> tuple[AnyOrder, str]:
    """The order and the name of the user who has signed it."""
    user = trust.verify(certificate, PURPOSE, data, signature, role="user")
    return read_order(data), user.name


def open_part(order: AnyOrder, identity: Identity) -> Part:
    """The part of an order that is sealed to this party."""
    sealed = order.sealed.get(identity.name, b"")
    try:
        share = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sealed[:_POINT])
        key = serialization.load_pem_private_key(identity.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("not a key of this kind")
        cipher = _cipher(key.exchange(ec.ECDH(), share), sealed[:_POINT], order.job, identity.name)
        return from_json(cipher.decrypt(_NONCE, sealed[_POINT:], None), Part)
    except (ValueError, InvalidTag, msgspec.MsgspecError):
        raise RemoteProtocolError(
            "the order has no part that this party can open; was its certificate renewed?"
        ) from None


def _seal(part: Part, certificate: bytes, job: str, party: str) -> bytes:
    theirs = load_pem_x509_certificate(certificate).public_key()
    if not isinstance(theirs, ec.EllipticCurvePublicKey):
        raise RemoteProtocolError(f"the certificate of {party!r} has a key of another kind")
    own = ec.generate_private_key(ec.SECP256R1())
    share = own.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    return share + _cipher(own.exchange(ec.ECDH(), theirs), share, job, party).encrypt(
        _NONCE, msgspec.json.encode(part), None
    )


def _cipher(secret: bytes, share: bytes, job: str, party: str) -> ChaCha20Poly1305:
    info = b"woodlot order part\0" + share + f"{job}\0{party}".encode()
    return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(secret))
