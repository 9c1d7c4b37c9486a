"""The helper (CC): holds the other share of the strong key, and learns nothing by using it.

What it opens is masked, what it answers is under the providers' keys. It must not be run by whoever runs the
coordinator: together their shares open everything.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

import msgspec
import numpy as np

from woodlot.crypto import dealer, packed
from woodlot.crypto.dtpkc import Group, StrongShare
from woodlot.crypto.packed import Halves
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.protocols.agreement import derive
from woodlot.protocols.messages import revocable_keys as msg
from woodlot.protocols.messages.base import Message
from woodlot.protocols.revocable.epoch_keys import TAG, EpochKeys, bytes_number, check_tag, tag_of, unseal
from woodlot.protocols.revocable.key_service import MAX_COMPARISONS, comparison_stream, share_key
from woodlot.protocols.revocable.keys import Member, read_key

_Place = tuple[bytes, int, int]  # request, block, step


def answer_room(group: Group) -> int:
    """How many bits one ciphertext of an answer takes."""
    return int(group.N.bit_length()) - 2


def answer_facts(ticket: msg.Ticket, block: int, step: int, count: int, data: bytes) -> tuple[object, ...]:
    """What the helper's tag is over: a provider opens results of comparisons, and nothing else."""
    return ticket.epoch, ticket.request, ticket.requester, ticket.rows, block, step, count, data


class Helper(Member):
    """The helper's side. Parameters as for `Member`, and

    Parameters
    ----------
    threads : int
        For the decryptions.

    """

    takes: ClassVar[frozenset[type[Message]]] = Member.takes | {
        msg.TakeShare,
        msg.KnowKeys,
        msg.RevokeAtHelper,
        msg.OpenDifferences,
        msg.FinishComparisons,
    }

    def __init__(self, name: str, *, threads: int = 1, **member: Any) -> None:
        super().__init__(name, **member)
        self._threads = threads
        self._share: StrongShare | None = None
        self._opened: dict[_Place, Halves] = {}
        self._used: set[_Place] = set()

    # --- keys ---

    def _on_TakeShare(self, message: msg.TakeShare) -> msg.ShareTaken:
        opening, peers, _ = self._agreed(message.group.epoch)
        if opening.helper != self.name:
            raise RemoteProtocolError(f"the helper of this epoch is {opening.helper!r}")
        group = self._checked_group(message.group, message.tag)
        share = unseal(share_key(peers[opening.key_service], group), message.sealed)
        self._stage(self._new_keys(message.group, share))
        return msg.ShareTaken()

    def _check_complete(self, keys: EpochKeys) -> None:
        if not keys.public:
            raise RemoteProtocolError("the helper does not know the parties' keys yet")

    def _forget(self) -> None:
        self._share = None
        self._opened.clear()

    def _on_KnowKeys(self, message: msg.KnowKeys) -> msg.KeysKnown:
        keys = self._staged_keys(message.epoch)
        parties = set(keys.peers) - {keys.key_service}
        if keys.public or set(message.keys) != parties or set(message.tags) != parties:
            raise RemoteProtocolError("these are not the keys of the parties of this epoch, or they are known")
        group = keys.read_group()
        for name, public in message.keys.items():
            check_tag(
                keys.key_with(name, "public key"),
                message.tags[name],
                f"the public key under the name of {name!r} is not its own; somebody may have changed it",
                name,
                public,
            )
            read_key(group, public)
        self._stage(msgspec.structs.replace(keys, public=dict(message.keys)))
        return msg.KeysKnown()

    def _on_RevokeAtHelper(self, message: msg.RevokeAtHelper) -> msg.RevokedAtHelper:
        keys, party = self._present(message.epoch), message.party
        if party not in keys.public and party not in keys.revoked:
            raise RemoteProtocolError(f"{party!r} is no party of epoch {keys.epoch}")
        if party in keys.public:
            self._replace(
                msgspec.structs.replace(
                    keys,
                    public={name: key for name, key in keys.public.items() if name != party},
                    peers={name: key for name, key in keys.peers.items() if name != party},
                    revoked=(*keys.revoked, party),
                )
            )
        return msg.RevokedAtHelper()

    # --- predictions ---

    def _strong(self, keys: EpochKeys) -> StrongShare:
        if self._share is None:
            self._share = StrongShare(keys.read_group(), bytes_number(keys.secret))
        return self._share

    def _on_OpenDifferences(self, message: msg.OpenDifferences) -> msg.TablesMade:
        ticket, keys = message.ticket, self._present(message.ticket.epoch)
        if ticket.requester in keys.revoked:
            raise PolicyError(f"the key of {ticket.requester!r} has been revoked")
        place = (ticket.request, message.block, message.step)
        if place in self._used:
            raise RemoteProtocolError("this step has been answered; its randomness is good for one use")
        if not 0 < message.count <= MAX_COMPARISONS:
            raise RemoteProtocolError(f"a step has 1 to {MAX_COMPARISONS} comparisons")
        share = self._strong(keys)
        c1, halves = share.group.read(message.differences), share.group.read(message.halves)
        opened = packed.open_slots(share, c1, halves, message.count, threads=self._threads)
        stream = comparison_stream(keys, keys.key_service, ticket, message.block, message.step)
        tables = dealer.tabulate(stream, opened.low, message.choices)
        self._opened[place] = opened
        self._used.add(place)
        return msg.TablesMade(tables=tables)

    def _on_FinishComparisons(self, message: msg.FinishComparisons) -> msg.ComparisonsFinished:
        ticket, keys = message.ticket, self._present(message.ticket.epoch)
        place = (ticket.request, message.block, message.step)
        opened = self._opened.get(place)
        if opened is None:
            raise RemoteProtocolError("no comparisons of this step are open here")
        if not len(message.masked) == len(message.provider) == len(opened.low):
            raise RemoteProtocolError(f"{len(opened.low)} comparisons are open, and this is not about so many")
        if len(message.provider) and int(message.provider.max()) >= len(message.providers):
            raise RemoteProtocolError("a comparison is of no provider that is named")
        gone = [name for name in message.providers if name not in keys.public]
        if gone:
            raise PolicyError(f"{gone[0]!r} has no key in epoch {keys.epoch}: its splits cannot be used")
        stream = comparison_stream(keys, keys.key_service, ticket, message.block, message.step)
        bits = packed.result_shares(opened, dealer.helper_share(stream, message.masked))
        answers = {}
        for number, name in enumerate(message.providers):
            mine = bits[message.provider == number]
            data = self._encrypt(keys, name, mine, place, message.masked.tobytes())
            facts = answer_facts(ticket, message.block, message.step, len(mine), data)
            tag = tag_of(keys.key_with(name, "answers"), *facts)
            answers[name] = msg.Answer(count=len(mine), data=data, tag=tag)
        del self._opened[place]
        return msg.ComparisonsFinished(answers=answers)

    def _encrypt(self, keys: EpochKeys, name: str, bits: Any, place: _Place, about: bytes) -> bytes:
        """Bits under a provider's key. The exponent follows from everything that is encrypted: it never repeats."""
        group = self._strong(keys).group
        key = read_key(group, keys.public[name])
        secret = derive(TAG, keys.secret, "answers")
        digest = hashlib.sha256(about + bits.tobytes()).digest()
        stream = SecretStream.derived(secret, name, *place, len(bits), digest)
        room = answer_room(group)
        whole = np.packbits(bits, bitorder="little").tobytes()
        number = int.from_bytes(whole, "little")
        parts = range(0, len(bits), room)
        return group.write_pairs([key.encrypt(number >> at & (1 << room) - 1, stream) for at in parts]).tobytes()
