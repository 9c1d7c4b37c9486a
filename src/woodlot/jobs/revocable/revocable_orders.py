"""Orders about revocable forests, and to the helper and the key service that hide their splits."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from woodlot.crypto.dtpkc import DEFAULT_BITS, Setting
from woodlot.crypto.knowledge import MAX_PROOF_BYTES
from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.orders import AlignedOrder, JobId, KeysName, Order, check_left
from woodlot.protocols.core.forest_plan import Task
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.protocols.revocable.split_list import HASH_BYTES
from woodlot.trees.predict import Vote

MAX_REQUEST_BYTES = 3_000_000
"""The largest encrypted request, in bytes: every member is brought the order that it is part of, in a header."""


SharesScheme: TypeAlias = Literal["shares"] | msgspec.UnsetType
"""How splits and requests are hidden: split between helper and key service; unset: encrypted, as in the paper."""


class RevocableOrder(AlignedOrder, frozen=True, kw_only=True):
    """What orders about revocable forests say; helper and key service, where there are such, are among the parties.

    Attributes
    ----------
    holder : str
        The party with the labels, which it sends to the coordinator.
    helper, key_service : str or None
        Who they are; None where splits are not encrypted.
    bits, setting
        Of the modulus of a new epoch; see `woodlot.crypto.dtpkc`. Shares have none.
    scheme : {"shares"}, unset by default
        How splits are hidden; unset: the paper's encryption.

    """

    naming: ClassVar[tuple[str, ...]] = ("holder", "helper", "key_service")
    every_row: ClassVar[bool] = True

    holder: str
    helper: str | None = None
    key_service: str | None = None
    bits: int = DEFAULT_BITS
    setting: Setting = "standard"
    scheme: SharesScheme = msgspec.UNSET

    @property
    def is_shared(self) -> bool:
        """Whether splits are split between helper and key service, and not encrypted."""
        return self.scheme == "shares"

    def check(self) -> None:
        """Refuse what cannot be; see `Order`."""
        super().check()
        _check_scheme(self)
        if self.is_shared and self.helper is None:
            raise RemoteProtocolError("splits are shared between a helper and a key service; the order names none")
        if (self.helper is None) != (self.key_service is None):
            raise RemoteProtocolError("an order with encrypted splits names both a helper and a key service")
        if not self.row_parties or self.holder not in self.row_parties:
            raise RemoteProtocolError(
                "helper and key service have no rows; there must be others, the label holder first"
            )

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

    any_rows: ClassVar[bool] = False

    model: JobId
    leaver: str
    task: Task
    level: Literal[1, 2, 3] = 1
    keys: KeysName = ""

    def check(self) -> None:
        """Refuse what cannot be; see `Order`."""
        super().check()
        check_left(self.leaver, self.parties)

    @property
    def keyring(self) -> str:
        """The name under which the members keep the keys."""
        return self.keys


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
    scheme : {"shares"}, unset by default
        How splits and requests are hidden; unset: the paper's encryption.

    """

    naming: ClassVar[tuple[str, ...]] = ("helper", "key_service")

    model: JobId
    helper: str
    key_service: str
    keys: KeysName = ""
    scheme: SharesScheme = msgspec.UNSET

    @property
    def is_shared(self) -> bool:
        """Whether splits and requests are split between helper and key service, and not encrypted."""
        return self.scheme == "shares"

    @property
    def keyring(self) -> str:
        """The name under which the members keep the keys."""
        return self.keys or self.model


class KeysOrder(MemberOrder, frozen=True, kw_only=True, tag="keys"):
    """Begin a new epoch of keys for a forest, and have its splits encrypted; the epoch before is over.

    Attributes
    ----------
    bits, setting
        Of the modulus; see `woodlot.crypto.dtpkc`. Shares have none.

    """

    bits: int = DEFAULT_BITS
    setting: Setting = "standard"

    def check(self) -> None:
        """Refuse what cannot be; see `Order`."""
        super().check()
        _check_scheme(self)


class PredictEncryptedOrder(MemberOrder, frozen=True, kw_only=True, tag="predict-encrypted"):
    """Predict rows that nobody can read.

    Attributes
    ----------
    epoch : int
        Of the keys.
    rows, columns : int
        The size of the request. Whose each column is, the helper is told in its part.
    splits : bytes
        The hash of the splits that it may be compared with, as the helper has registered them.
    values : bytes
        Its ciphertexts, row after row; with shares, the helper's shares of its values, sealed.
    proof : bytes
        That the user knows the values; see `woodlot.crypto.knowledge`. Empty with shares.
    vote : {"soft", "hard"}
        Whether trees give shares or a vote.

    """

    epoch: int
    rows: Annotated[int, msgspec.Meta(ge=1)]
    columns: Annotated[int, msgspec.Meta(ge=1)]
    splits: Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
    values: Annotated[bytes, msgspec.Meta(max_length=MAX_REQUEST_BYTES)]
    proof: Annotated[bytes, msgspec.Meta(max_length=MAX_PROOF_BYTES)]
    vote: Vote = "soft"

    @property
    def answers_user(self) -> bool:
        """The user is given the predictions."""
        return True


def _check_scheme(order: RevocableOrder | KeysOrder) -> None:
    """Shares have no modulus: an order that says how long it is was meant for the other scheme."""
    if order.is_shared and (order.bits, order.setting) != (DEFAULT_BITS, "standard"):
        raise RemoteProtocolError("an order with scheme='shares' says nothing of a modulus: there is none")
