"""The key service (KGC): makes moduli, splits their strong keys, and deals the randomness of comparisons.

It is trusted: it could open everything. So it keeps as little as it can: the factors of a modulus are forgotten as soon
as the strong key is split, and weak keys never come here.

States of the keys are those of `EpochMember`; MakeGroup is this role's message. Besides::

    _made    epoch -> what was asked        the same again gives the same modulus; anything else is refused
    _dealt   (request, block)               randomness is dealt once

RevokeAtService writes the party into the present keys and stores them; a second one changes nothing. A refused message
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from woodlot.crypto import dealer, packed
from woodlot.crypto.dtpkc import Group, Setting, check_bits
from woodlot.crypto.master import MasterKey
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import ConfigError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import derive, secret_bytes
from woodlot.protocols.core.handling import takes
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import (
    GROUP_PURPOSE,
    TAG,
    TAG_BYTES,
    EpochKeys,
    number_bytes,
    proof_bytes,
    public_group,
    seal,
    tag_of,
)
from woodlot.protocols.revocable.revocable_keys import PURPOSE, EpochMember
from woodlot.protocols.revocable.tickets import request_facts

MAX_COMPARISONS = 1 << 17
"""The most comparisons that are dealt in one message."""


def comparison_stream(keys: EpochKeys, peer: str, ticket: msg.Ticket, block: int, step: int) -> SecretStream:
    """What key service and helper have in common for one step: each finds it by itself."""
    return SecretStream(keys.key_with(peer, "comparisons", *request_facts(ticket), block, step))


def mask_facts(ticket: msg.Ticket, block: int, step: int, size: int, owners: int, data: bytes) -> tuple[object, ...]:
    """What the key service's tag of masks is over: they are for one step of one request, and packs of these sizes."""
    return *request_facts(ticket), block, step, size, owners, data


def share_key(peer: bytes, group: Group) -> bytes:
    """What the helper's share of one modulus, and nothing else, is sealed with; from what the two have in common."""
    return derive(TAG, peer, "strong share", group.fingerprint)


class KeyService(EpochMember):
    """The key service's side. Parameters as for `EpochMember`, and

    Parameters
    ----------
    make : callable
        Makes a modulus; `MasterKey.generate` unless a test has its own.

    """

    def __init__(self, name: str, *, make: Callable[..., MasterKey] = MasterKey.generate, **member: Any) -> None:
        super().__init__(name, **member)
        self._make = make
        self._dealt: set[tuple[bytes, int]] = set()
        self._group: Group | None = None  # of the present epoch, with its tables
        self._made: dict[int, tuple[object, ...]] = {}  # what was asked for in each epoch of this job

    @takes(msg.MakeGroup)
    def _on_MakeGroup(self, message: msg.MakeGroup) -> msg.GroupMade:
        opening, peers, transcript = self._agreed(message.epoch)
        if opening.key_service != self.name:
            raise RemoteProtocolError(f"the key service of this epoch is {opening.key_service!r}")
        if message.setting != self._setting:
            raise PolicyError(
                f"keys of the {message.setting} setting are asked for, and this key service makes {self._setting} ones"
            )
        try:
            check_bits(message.bits, message.setting)
        except ConfigError as error:
            raise PolicyError(str(error)) from None
        # primes of two lengths from one stream would have most of their bits in common, which gives both away
        asked = (message.epoch, message.bits, message.setting, transcript)
        if self._made.get(message.epoch, asked) != asked:
            raise RemoteProtocolError(
                f"the modulus of epoch {message.epoch} has been made, of another length or for others; begin another"
            )
        secret = secret_bytes(self._entropy, f"{PURPOSE} {message.epoch}")
        stream = SecretStream.derived(secret, TAG, "modulus", *asked)
        master = self._make(message.bits, stream=stream, epoch=message.epoch, setting=message.setting)
        coordinator, helper = master.split(stream)
        public = public_group(master.group)
        tags = {name: tag_of(derive(TAG, peer, "group"), public) for name, peer in peers.items()}
        sealed = seal(share_key(peers[opening.helper], master.group), number_bytes(helper.exponent))
        self._stage(self._new_keys(public, derive(TAG, secret, "dealing", master.group.fingerprint)))
        self._made[message.epoch] = asked
        return msg.GroupMade(
            group=public,
            share=number_bytes(coordinator.exponent),
            sealed=sealed,
            tags=tags,
            proof=self._prove(opening, message.setting, public),
        )

    def _prove(self, opening: msg.OpenEpoch, setting: Setting, public: msg.PublicGroup) -> msg.GroupProof | None:
        if self._signer is None:
            return None
        data = proof_bytes(self._job, setting, opening.members, opening.helper, self.name, public)
        signature = self._signer.sign(GROUP_PURPOSE, data)
        return msg.GroupProof(job=self._job, members=opening.members, signature=signature)

    @takes(msg.RevokeAtService)
    def _on_RevokeAtService(self, message: msg.RevokeAtService) -> msg.RevokedAtService:
        keys = self._present(message.epoch)
        if message.party not in keys.peers or message.party == keys.helper:
            raise RemoteProtocolError(f"{message.party!r} is no party of epoch {keys.epoch}")
        if message.party not in keys.revoked:
            self._replace(msgspec.structs.replace(keys, revoked=(*keys.revoked, message.party)))
        return msg.RevokedAtService()

    @takes(msg.DealComparisons)
    def _on_DealComparisons(self, message: msg.DealComparisons) -> msg.ComparisonsDealt:
        ticket, keys = message.ticket, self._present(message.ticket.epoch)
        if ticket.requester in keys.revoked:
            raise PolicyError(f"the key of {ticket.requester!r} has been revoked")
        if (ticket.request, message.block) in self._dealt:
            raise RemoteProtocolError("the randomness of this request has been dealt; it is good for one use")
        if not message.sizes or min(message.sizes) < 0 or sum(message.sizes) > MAX_COMPARISONS:
            raise RemoteProtocolError(f"at most {MAX_COMPARISONS} comparisons are dealt at a time")
        if not 0 < message.owners < len(keys.peers):  # these are the parties and the helper
            raise RemoteProtocolError(f"{message.owners} owners of splits are told, of {len(keys.peers) - 1} parties")
        if self._group is None:
            self._group = keys.read_group()
        group, parts, masks, proofs = self._group, [], [], []
        for step, size in enumerate(message.sizes):
            sizes = packed.pack_sizes(group, size, message.owners)
            own = SecretStream.derived(
                keys.secret, "deal", *request_facts(ticket), message.block, step, size, message.owners
            )
            drawn = packed.draw_masks(own, sum(sizes))
            parts.append(dealer.deal(drawn, comparison_stream(keys, keys.helper, ticket, message.block, step)))
            masks.append(group.write(packed.conceal_masks(group, drawn, own, sizes)))
            facts = mask_facts(ticket, message.block, step, size, message.owners, masks[-1].tobytes())
            proofs.append(tag_of(keys.key_with(keys.helper, "masks"), *facts))
        self._dealt.add((ticket.request, message.block))
        return msg.ComparisonsDealt(
            words=np.concatenate([part.words for part in parts]),
            tops=np.packbits(np.concatenate([part.tops for part in parts]), bitorder="little").tobytes(),
            masks=np.concatenate(masks),
            proofs=np.frombuffer(b"".join(proofs), np.uint8).reshape(len(proofs), TAG_BYTES),
        )

    def _forget(self) -> None:
        self._group = None
