"""How a user makes an order that nobody can change, with parts that only their parties read; and how it is checked."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from woodlot.data.decoding import from_json
from woodlot.exceptions import IdentityError, PolicyError, RemoteProtocolError
from woodlot.identity.exchange import SHARE_BYTES, secret_of, secret_with
from woodlot.identity.identity import Identity, Trust
from woodlot.identity.receipts import CLOCK_SECONDS
from woodlot.jobs import job_messages as msg
from woodlot.jobs.kind import any_order
from woodlot.jobs.leaving_orders import Forgetting, Revocation
from woodlot.jobs.linear.linear_orders import TrainLinearOrder
from woodlot.jobs.orders import Order, Part, TrainOrder
from woodlot.jobs.padding import pad, unpad
from woodlot.jobs.signers import signing_party
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.linear.linear_model import LinearPlan

O = TypeVar("O", bound=Order)

PURPOSE = "job order"
"""What a user's signature under an order is for."""

PASSED_ON = "job order passed on"
"""What a coordinator's signature under an order is for."""

ORDER_DAYS = 30
"""For how long an order can be taken: one that was cancelled, or never ran, must not be kept for later."""

_MAX_NAME = 64  # characters of a name that the other side has written
_NONCE = bytes(12)  # every sealed part has a key of its own
_PART_BYTES = 1 << 10  # names of tables and columns, and how many classes have weights, do not show in the length


def new_job() -> str:
    """A name for a job that nobody else draws."""
    return os.urandom(16).hex()


def housekeeping_job(job: str) -> str:
    """The job under which parties are told that a job has ended: its own record, for that job's is closed."""
    return hashlib.sha256(f"forget {job}".encode()).hexdigest()[:32]


def common_fields(
    parts: Mapping[str, Part],
    certificates: Mapping[str, bytes],
    *,
    federation: str,
    coordinator: str,
    job: str | None = None,
) -> dict[str, Any]:
    """The fields of an order that say who takes part, and where; each party's part is sealed to its certificate.

    ``job``: its name, where parts depend on it (`new_job`); drawn without.
    """
    job = job or new_job()
    return {
        "job": job,
        "created": time.time(),
        "federation": federation,
        "coordinator": coordinator,
        "parties": tuple(parts),
        "sealed": {p: _seal(part, certificates[p], job, p) for p, part in parts.items()},
    }


def sign_order(order: Order, identity: Identity) -> tuple[bytes, bytes]:
    """The bytes of an order, and the user's signature under them."""
    data = msgspec.json.encode(order)
    return data, identity.sign(data, PURPOSE)


def read_order(data: bytes) -> Order:
    """An order from its bytes; anything else is a `RemoteProtocolError`."""
    try:
        order: Order = from_json(data, any_order())
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"this is no order: {error}") from None
    order.check()
    return order


def check_order(
    data: bytes, signature: bytes, certificate: bytes, trust: Trust, *, again: bool = False
) -> tuple[Order, str]:
    """The order and the name of the user who has signed it.

    A party signs an order to leave a model itself (Protocol 3 of the RevFRF paper, line 1), or to have rows of a model
    that it takes part in forgotten, and no other; see `signing_party` for its name.

    With ``again``, an order that was taken before: the user's certificate may have expired since, and not been revoked.
    Otherwise there must be a list of revocations that is good now.
    """
    signer = trust.verify(certificate, PURPOSE, data, signature, again=again)
    if signer.role not in ("user", "party"):
        raise IdentityError(f"the certificate is of {signer.role} {signer.name!r}; here a user is needed")
    if not again:
        trust.check_fresh()
    order = read_order(data)
    if signer.role == "party" and not _may_sign(order, signer.name):
        raise IdentityError(
            f"the order is signed by the party {signer.name!r}, which can order its own leaving of a model, or that "
            "rows of one are forgotten, and nothing else; here a user is needed"
        )
    if order.federation != trust.federation:
        raise PolicyError(
            f"the order is for another federation (its authority's key is {order.federation:.16}..., this one's is "
            f"{trust.federation:.16}...); order it in this federation"
        )
    return order, signer.name if signer.role == "user" else signing_party(signer.name)


def _may_sign(order: Order, party: str) -> bool:
    """Whether a party can order this itself."""
    if isinstance(order, Revocation):
        return order.leaver == party
    return isinstance(order, Forgetting) and party in order.parties


def pass_on(data: bytes, identity: Identity) -> tuple[bytes, bytes]:
    """The coordinator's certificate, and its signature that tells parties that it has been given this order."""
    return identity.certificate, identity.sign(data, PASSED_ON)


def check_passed_on(message: msg.OpenJob | msg.LeaveNotice, trust: Trust, *, again: bool = False) -> tuple[Order, str]:
    """As `check_order`, at a party: the order must also come from the coordinator that it is for."""
    order, user = check_order(message.order, message.signature, message.certificate, trust, again=again)
    coordinator = trust.verify(
        message.coordinator, PASSED_ON, message.order, message.passed, role="coordinator", again=again
    )
    if coordinator.name != order.coordinator:
        raise PolicyError(
            f"the order is for coordinator {order.coordinator[:_MAX_NAME]!r}, and {coordinator.name!r} has passed it "
            "on; order it there"
        )
    return order, user


def check_age(order: Order) -> None:
    """Refuse an order that was signed too long ago to be begun now, or that would stay young for longer than others.

    Raises
    ------
    PolicyError
        If it is older than `ORDER_DAYS`, or dated further ahead than clocks may differ, by the clock of whoever checks
        it.

    """
    age = time.time() - order.created
    if age < -CLOCK_SECONDS:
        raise PolicyError(
            f"the order is dated more than {CLOCK_SECONDS / 60:g} minutes ahead; check the user's clock and this one's"
        )
    if age > ORDER_DAYS * 86_400:
        raise PolicyError(f"the order was signed more than {ORDER_DAYS} days ago; order again, or check the clocks")


def open_part(order: Order, identity: Identity) -> Part:
    """The part of an order that is sealed to this party."""
    sealed = order.sealed.get(identity.name, b"")
    share = sealed[:SHARE_BYTES]
    try:
        cipher = _cipher(secret_of(identity, share), share, order.job, identity.name)
        return from_json(unpad(cipher.decrypt(_NONCE, sealed[SHARE_BYTES:], None)), Part)
    except (ValueError, InvalidTag, msgspec.MsgspecError):
        raise RemoteProtocolError(
            "the order has no part that this party can open; was its certificate renewed?"
        ) from None


def completed(order: O, part: Part) -> O:
    """An order with what only its leader is told of it."""
    if isinstance(part.class_weight, msgspec.UnsetType):
        return order
    if not isinstance(order, TrainOrder | TrainLinearOrder) or order.leader is None:
        raise RemoteProtocolError("weights by class are sealed in the order of a training that a party leads")
    plan: ForestPlan | LinearPlan
    if isinstance(order.plan, LinearPlan):
        plan = msgspec.structs.replace(order.plan, class_weight=part.class_weight)
    else:
        plan = replace(order.plan, class_weight=part.class_weight)
    settings = order.settings if isinstance(part.settings, msgspec.UnsetType) else part.settings
    return msgspec.structs.replace(order, plan=plan, settings=settings)


def _seal(part: Part, certificate: bytes, job: str, party: str) -> bytes:
    share, secret = secret_with(certificate, party)
    return share + _cipher(secret, share, job, party).encrypt(_NONCE, pad(msgspec.json.encode(part), _PART_BYTES), None)


def _cipher(secret: bytes, shares: bytes, job: str, party: str) -> ChaCha20Poly1305:
    info = b"woodlot order part 3\0" + shares + f"{job}\0{party}".encode()
    return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(secret))
