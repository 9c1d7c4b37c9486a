"""What a member has of an epoch, and how numbers, proofs and sealed messages of it travel."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from woodlot.crypto.dtpkc import Group, Setting
from woodlot.exceptions import EpochError, RemoteProtocolError
from woodlot.protocols.core.agreement import derive
from woodlot.protocols.revocable import key_messages as msg

TAG = "woodlot revocable keys 1"
"""The protocol and its version; in everything that is signed, tagged or made a key of."""

GROUP_PURPOSE = "revocable group"
"""What a key service's identity signs groups for."""

TAG_BYTES = 32
"""Bytes of a proof of `tag_of`."""

_NONCE_BYTES = 12

SEAL_BYTES = _NONCE_BYTES + 16
"""By how many bytes `seal` makes a message longer: nonce and tag."""


class EpochKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that one member has of one epoch. It is secret, and its erasure ends the epoch for the member.

    Attributes
    ----------
    epoch : int
        Which one.
    group : PublicGroup or None
        Modulus and generator; None under the scheme of shares, which has none.
    setting : str
        The shortest modulus that the member takes.
    helper, key_service : str
        Who they are.
    peers : dict of str to bytes
        What it has in common with each other member.
    secret : bytes
        A party's weak key, the helper's share of the strong key, a seed of the key service.
    public : dict of str to bytes
        At the helper: the parties' public keys.
    revoked : tuple of str
        Who has left since the epoch began; at helper and key service.
    registered : bytes
        At the helper: the hash of the splits that may be compared; empty before they are told. See `split_list`.
    forests : tuple of str
        At a party: the forests whose splits it has encrypted under these keys. At the helper: that of the splits.
    transcript : bytes
        What all members were told alike when they met; of the scheme of shares only, where no modulus tells epochs
        apart.

    """

    epoch: int
    group: msg.PublicGroup | None
    setting: Setting
    helper: str
    key_service: str
    peers: dict[str, bytes]
    secret: bytes
    public: dict[str, bytes] = {}
    revoked: tuple[str, ...] = ()
    registered: bytes = b""
    forests: tuple[str, ...] = ()
    transcript: bytes = b""

    def __repr__(self) -> str:
        return f"EpochKeys(epoch={self.epoch}, secret)"

    def read_group(self) -> Group:
        """The group that ciphertexts of this epoch live in."""
        if self.group is None:
            raise EpochError(f"epoch {self.epoch} is one of shares, without a modulus; nothing is encrypted under it")
        return read_group(self.group, self.setting)

    def key_with(self, peer: str, *purpose: object) -> bytes:
        """A key in common with another member, for one purpose."""
        if peer not in self.peers:
            raise RemoteProtocolError(f"{peer!r} is no member of epoch {self.epoch}")
        return derive(TAG, self.peers[peer], self.epoch, *purpose)


def number_bytes(number: Any) -> bytes:
    """A number of any length, little-endian."""
    return int(number).to_bytes((int(number).bit_length() + 7) // 8, "little")


def bytes_number(data: bytes) -> int:
    """What `number_bytes` wrote."""
    return int.from_bytes(data, "little")


def public_group(group: Group) -> msg.PublicGroup:
    """A group as it travels."""
    return msg.PublicGroup(epoch=group.epoch, modulus=number_bytes(group.N), generator=number_bytes(group.g))


def bit_length(public: msg.PublicGroup) -> int:
    """Length of the modulus of a group that was received; nothing is checked."""
    return bytes_number(public.modulus).bit_length()


def read_group(public: msg.PublicGroup, setting: Setting) -> Group:
    """A group that was received; it is checked.

    Raises
    ------
    CiphertextError
        If the modulus is too short for the setting, or the generator none.

    """
    return Group(bytes_number(public.modulus), bytes_number(public.generator), epoch=public.epoch, setting=setting)


def proof_bytes(
    job: str, setting: Setting, members: tuple[str, ...], helper: str, key_service: str, public: msg.PublicGroup
) -> bytes:
    """What a key service signs of a group: for whom it has made it, in which job, and how long it had to be."""
    return msgspec.msgpack.encode((TAG, "group", job, setting, members, helper, key_service, public))


def tag_of(key: bytes, *told: object) -> bytes:
    """Proof that who has the key has told this."""
    return hmac.new(key, msgspec.msgpack.encode(told), hashlib.sha256).digest()


def check_tag(key: bytes, tag: bytes, wrong: str, *told: object) -> None:
    """Refuse what was not told by who has the key; `wrong` says so."""
    if not hmac.compare_digest(tag, tag_of(key, *told)):
        raise RemoteProtocolError(wrong)


def seal(key: bytes, data: bytes, *about: object) -> bytes:
    """Encrypt a message for who has the key, and bind it to what it is about.

    The same message is sealed to the same bytes, also after a restart, and no nonce serves two messages.
    """
    nonce = tag_of(derive(TAG, key, "nonce"), data, *about)[:_NONCE_BYTES]
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, data, msgspec.msgpack.encode(about))


def unseal(
    key: bytes, sealed: bytes, *about: object, wrong: str = "a sealed message was changed, or is not for this member"
) -> bytes:
    """What `seal` made.

    Raises
    ------
    RemoteProtocolError
        If it is something else, or was changed; `wrong` says so.

    """
    nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, rest, msgspec.msgpack.encode(about))
    except (InvalidTag, ValueError):  # a nonce that is too short is none
        raise RemoteProtocolError(wrong) from None
