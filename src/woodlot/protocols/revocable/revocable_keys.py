"""Keys of the revocable forest: how an epoch begins, who holds what, and the coordinator's side of it.

Every member (the parties, the helper, the key service) agrees on a secret with every other one, through a coordinator
who must not have them (`protocols.agreement`). Then the key service makes a modulus and splits its strong key; the
parties draw weak keys of their own, which do not leave them. Everything of one epoch is in one `EpochKeys`, which a
member keeps for later jobs and replaces when the next epoch begins.

States of a member, by its attributes. An epoch is prepared while the one before goes on::

    _opening None              no epoch is being opened
    OpenEpoch       sets _opening, drops _staged     an earlier preparation that was not committed is given up
    MeetMembers     sets _opening.met, once          the members know each other's shares
    role's message  sets _staged, clears _opening    MakeGroup, TakeShare or TakeGroup: the new keys, not yet in use
    CommitEpoch     _staged becomes keys             from here on the keys before are gone; a second one changes nothing

Messages that use keys (``_present``) name their epoch and are refused in any other. A refused message changes nothing.
Keys are stored by ``keep`` before the answer leaves, so that a member that is killed in between has the keys that the
others count on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from woodlot.crypto.dtpkc import DEFAULT_BITS, Group, PublicKey, Setting, StrongShare, check_bits
from woodlot.exceptions import CiphertextError, EpochError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import (
    Agreement,
    Entropy,
    Signer,
    check_configured,
    check_trust,
    derive,
    named,
    secret_bytes,
)
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import (
    TAG,
    EpochKeys,
    bytes_number,
    check_tag,
    read_group,
)

PURPOSE = "revocable keys"
"""What a member's identity signs introductions for."""

PHASE = "keys"


class Met(NamedTuple):
    """What the members of an epoch have agreed on."""

    opening: msg.OpenEpoch
    peers: dict[str, bytes]
    transcript: bytes


@dataclass(eq=False)
class _Opening:
    message: msg.OpenEpoch
    agreement: Agreement
    introduction: msg.KeyIntroduction
    met: Met | None = None


class EpochMember(MessageHandler):
    """What parties, helper and key service have in common: introductions, and the keys of the present epoch.

    Parameters
    ----------
    name : str
        The member.
    job : str
        The job's name, which all members must have been told alike: it is signed.
    entropy : callable
        From a purpose to secret bytes, always the same for this member and job.
    keys : EpochKeys, optional
        Of the present epoch, if it began in an earlier job.
    ended : int
        The last epoch that is over; a new one has a larger number.
    signer : Signer, optional
        The member's identity. Needed unless there is a shared secret.
    shared_secret : bytes, optional
        From the configuration, the same at every member except the coordinator; at least 16 random bytes.
    setting : {"standard", "paper", "test"}
        The shortest modulus that is taken.
    keep : callable, optional
        Called with the keys whenever they change, before the answer leaves; it stores them and erases those before.

    Raises
    ------
    ConfigError
        If there is neither a shared secret nor an identity, or the secret is too short.

    """

    def __init__(
        self,
        name: str,
        *,
        job: str,
        entropy: Entropy,
        keys: EpochKeys | None = None,
        ended: int = 0,
        signer: Signer | None = None,
        shared_secret: bytes | None = None,
        setting: Setting = "standard",
        keep: Callable[[EpochKeys], None] | None = None,
        check_present: Callable[[EpochKeys], None] | None = None,
    ) -> None:
        check_trust(name, shared_secret, signer, "read its keys")
        self.name = name
        self.keys = keys
        self._ended = ended
        self._job = job
        self._entropy = entropy
        self._signer = signer
        self._shared_secret = shared_secret
        self._setting: Setting = setting
        self._keep = keep
        self._check_present = check_present
        self._opening: _Opening | None = None
        self._staged: EpochKeys | None = None  # of the epoch that is being prepared; the present one goes on meanwhile

    @property
    def epoch(self) -> int:
        """The present epoch, or the last one that is over; 0 before the first."""
        return self._ended if self.keys is None else self.keys.epoch

    @takes(msg.OpenEpoch)
    def _on_OpenEpoch(self, message: msg.OpenEpoch) -> msg.MemberIntroduced:
        if self.name not in message.members:
            raise RemoteProtocolError(f"this member, {self.name!r}, is not among those of the epoch")
        if message.epoch <= self.epoch:
            raise EpochError(f"epoch {message.epoch} cannot begin: this member is in epoch {self.epoch}")
        agreement = Agreement(
            self.name,
            tag=TAG,
            purpose=PURPOSE,
            job=self._job,
            private=derive(TAG, secret_bytes(self._entropy, f"{PURPOSE} {message.epoch}"), "share"),
            signer=self._signer,
        )
        unsigned = msg.KeyIntroduction(
            configured=self._shared_secret is not None, share=agreement.share, certificate=agreement.certificate
        )
        introduction = agreement.sign(message, unsigned)
        self._opening, self._staged = _Opening(message, agreement, introduction), None
        return msg.MemberIntroduced(introduction=introduction)

    @takes(msg.MeetMembers)
    def _on_MeetMembers(self, message: msg.MeetMembers) -> msg.MembersMet:
        opening = self._opening
        if opening is None or opening.met is not None:
            raise RemoteProtocolError("unexpected introductions: this member does not expect them now")
        opening.agreement.check_named(opening.message.members, opening.introduction, message.introductions)
        check_configured({name: i.configured for name, i in message.introductions.items()})
        agreed = opening.agreement.accept(opening.message, message.introductions)
        extra = self._shared_secret or b""
        peers = {
            name: derive(TAG, exchanged + extra, "peers", *sorted((name, self.name)), salt=agreed.transcript)
            for name, exchanged in agreed.exchanged.items()
        }
        opening.met = Met(opening.message, peers, agreed.transcript)
        return msg.MembersMet(transcript=agreed.transcript)

    def _agreed(self, epoch: int) -> Met:
        """The opening of an epoch, and what this member has in common with each other."""
        opening = self._opening
        if opening is None or opening.met is None or opening.message.epoch != epoch:
            raise RemoteProtocolError(f"epoch {epoch} has not been agreed on here")
        return opening.met

    def _new_keys(self, public: msg.PublicGroup, secret: bytes) -> EpochKeys:
        return self._agreed_keys(public.epoch, public, secret)

    def _agreed_keys(
        self, epoch: int, public: msg.PublicGroup | None, secret: bytes, transcript: bytes = b""
    ) -> EpochKeys:
        """The keys of an epoch that the members have agreed on."""
        opening, peers, _ = self._agreed(epoch)
        # What the members agreed on also opens the helper's share, on its way there. What is kept does not.
        kept = {name: derive(TAG, peer, "kept") for name, peer in peers.items()}
        return EpochKeys(
            epoch=epoch,
            group=public,
            setting=self._setting,
            helper=opening.helper,
            key_service=opening.key_service,
            peers=kept,
            secret=secret,
            transcript=transcript,
        )

    def _checked_group(self, public: msg.PublicGroup, tag: bytes) -> Group:
        """The group, if the key service has told it to this member."""
        opening, peers, _ = self._agreed(public.epoch)
        key = derive(TAG, peers[opening.key_service], "group")
        check_tag(key, tag, "the modulus is not the one that the key service has made", public)
        return read_group(public, self._setting)

    def _stage(self, keys: EpochKeys) -> None:
        self._staged = keys
        self._opening = None

    def _staged_keys(self, epoch: int) -> EpochKeys:
        """The keys of the epoch that is being prepared."""
        if self._staged is None or self._staged.epoch != epoch:
            raise EpochError(f"epoch {epoch} is not being prepared here")
        return self._staged

    @takes(msg.CommitEpoch)
    def _on_CommitEpoch(self, message: msg.CommitEpoch) -> msg.EpochCommitted:
        if self._staged is not None or self.epoch != message.epoch:  # once more changes nothing
            self._check_complete(self._staged_keys(message.epoch))
            self._replace(self._staged_keys(message.epoch))
            self._staged = None
            self._forget()
        return msg.EpochCommitted()

    def _check_complete(self, keys: EpochKeys) -> None:
        """Refuse to begin an epoch that lacks something; for roles."""

    def _forget(self) -> None:
        """Forget what was made of earlier keys; for roles."""

    def _replace(self, keys: EpochKeys) -> None:
        if self._keep is not None:
            self._keep(keys)
        self.keys = keys

    def _present(self, epoch: int) -> EpochKeys:
        """The keys, if this is their epoch."""
        keys = present_keys(self.keys, epoch)
        if self._check_present is not None:  # other jobs of this member may have begun an epoch, or struck out a key
            self._check_present(keys)
        return keys


def present_keys(keys: EpochKeys | None, epoch: int) -> EpochKeys:
    """A member's keys, if this is their epoch."""
    if keys is None:
        raise EpochError("this member has no keys yet")
    if epoch != keys.epoch:
        when = "has ended" if epoch < keys.epoch else "has not begun"
        raise EpochError(f"epoch {epoch} {when} here; the keys are of epoch {keys.epoch}")
    return keys


# --- the coordinator ---


@dataclass(frozen=True, eq=False)
class CoordinatorKeys:
    """What the coordinator has of an epoch.

    Attributes
    ----------
    group : Group
        Where ciphertexts live.
    share : StrongShare
        Its share of the strong key.
    parties : tuple of str
        Who provides splits; those who have left are struck out.
    public : mapping of str to PublicKey
        Their keys.
    helper, key_service : str
        Who they are.
    proof : GroupProof or None
        The key service's signature under the group, for requesters; None where it has no identity.

    """

    group: Group
    share: StrongShare
    parties: tuple[str, ...]
    public: Mapping[str, PublicKey]
    helper: str
    key_service: str
    proof: msg.GroupProof | None = None

    @property
    def epoch(self) -> int:
        return self.group.epoch


def begin_epoch(
    parties: Sequence[str],
    *,
    helper: str,
    key_service: str,
    epoch: int = 1,
    bits: int = DEFAULT_BITS,
    setting: Setting = "standard",
) -> Generator[Round, dict[str, Message], CoordinatorKeys]:
    """At the coordinator: prepare an epoch, and commit it at once. Parameters as for `prepare_epoch`."""
    keys = yield from prepare_epoch(
        parties, helper=helper, key_service=key_service, epoch=epoch, bits=bits, setting=setting
    )
    yield from commit_epoch(keys)
    return keys


def commit_epoch(keys: CoordinatorKeys) -> Generator[Round, dict[str, Message], None]:
    """At the coordinator: have every member use the keys of a prepared epoch, and erase those before.

    It may be repeated: who has done so already does nothing.
    """
    members = (*keys.parties, keys.key_service, keys.helper)
    replies = yield Round(PHASE, dict.fromkeys(members, msg.CommitEpoch(epoch=keys.epoch)))
    for name in members:
        reply_of(replies[name], msg.EpochCommitted, name)


def prepare_epoch(
    parties: Sequence[str],
    *,
    helper: str,
    key_service: str,
    epoch: int = 1,
    bits: int = DEFAULT_BITS,
    setting: Setting = "standard",
) -> Generator[Round, dict[str, Message], CoordinatorKeys]:
    """At the coordinator: have a modulus made, its strong key split, and a weak key drawn by every party.

    An earlier epoch goes on until the new one is committed, so that a failure before leaves everything in use.

    Parameters
    ----------
    parties : sequence of str
        Who provides splits.
    helper, key_service : str
        Who they are: neither is a party, nor the other.
    epoch : int
        Its number, larger than all before.
    bits : int
        Length of the modulus.
    setting : {"standard", "paper", "test"}
        The shortest modulus that may be asked for.

    Raises
    ------
    ConfigError
        If moduli of this length are not made.
    RemoteProtocolError
        If members were told different things, or answer with something that is not a key.

    """
    check_bits(bits, setting)
    members = yield from meet_members(parties, helper=helper, key_service=key_service, epoch=epoch, steps=5)

    ask = msg.MakeGroup(epoch=epoch, bits=bits, setting=setting)
    replies = yield Round(PHASE, {key_service: ask}, Progress(2, 5, f"a modulus of {bits} bits"))
    made = reply_of(replies[key_service], msg.GroupMade, key_service)
    group = read_group(made.group, setting)
    if group.epoch != epoch or set(made.tags) != set(members) - {key_service}:
        raise RemoteProtocolError(f"{key_service} made no modulus of epoch {epoch} for {named(members)}")

    take: dict[str, Message] = {
        name: msg.TakeGroup(group=made.group, tag=made.tags[name]) for name in members if name in parties
    }
    take[helper] = msg.TakeShare(group=made.group, tag=made.tags[helper], sealed=made.sealed)
    replies = yield Round(PHASE, take, Progress(3, 5, "keys of the parties"))
    reply_of(replies[helper], msg.ShareTaken, helper)
    drawn = {name: reply_of(replies[name], msg.KeyDrawn, name) for name in parties}
    public = {name: read_key(group, reply.public) for name, reply in drawn.items()}

    know = msg.KnowKeys(
        epoch=epoch,
        keys={name: reply.public for name, reply in drawn.items()},
        tags={name: reply.tag for name, reply in drawn.items()},
    )
    replies = yield Round(PHASE, {helper: know}, Progress(4, 5, "keys at the helper"))
    reply_of(replies[helper], msg.KeysKnown, helper)
    return CoordinatorKeys(
        group, StrongShare(group, bytes_number(made.share)), tuple(parties), public, helper, key_service, made.proof
    )


def meet_members(
    parties: Sequence[str], *, helper: str, key_service: str, epoch: int, steps: int
) -> Generator[Round, dict[str, Message], tuple[str, ...]]:
    """At the coordinator: have all members agree on secrets, each with each; returns who they are.

    Raises
    ------
    PolicyError
        If helper, key service and parties are not different members.
    RemoteProtocolError
        If members were told different things.

    """
    members = tuple(sorted({*parties, helper, key_service}))
    if len(members) != len(parties) + 2:
        raise PolicyError("helper, key service and parties must be different members: together they could open splits")
    opening = msg.OpenEpoch(epoch=epoch, members=members, helper=helper, key_service=key_service)
    replies = yield Round(PHASE, dict.fromkeys(members, opening), Progress(0, steps, "introductions"))
    introductions = {name: reply_of(replies[name], msg.MemberIntroduced, name).introduction for name in members}
    check_configured({name: introduction.configured for name, introduction in introductions.items()})
    meeting = msg.MeetMembers(introductions=introductions)
    replies = yield Round(PHASE, dict.fromkeys(members, meeting), Progress(1, steps, "agreement on keys"))
    if len({reply_of(replies[name], msg.MembersMet, name).transcript for name in members}) != 1:
        raise RemoteProtocolError("the members were not told the same: is it the same job for all of them?")
    return members


def revoke_key(keys: CoordinatorKeys, party: str) -> Generator[Round, dict[str, Message], CoordinatorKeys]:
    """At the coordinator: have a party's key struck out by key service and helper, within the epoch.

    From then on the helper answers for none of its splits, so that no forest with a node of that party can be used.
    Whoever has kept copies of everything could still use it together with the helper's share; the next epoch ends that.
    """
    if party not in keys.parties:
        raise PolicyError(f"{party!r} has no key that could be revoked; the parties are {named(keys.parties)}")
    requests: dict[str, Message] = {
        keys.key_service: msg.RevokeAtService(epoch=keys.epoch, party=party),
        keys.helper: msg.RevokeAtHelper(epoch=keys.epoch, party=party),
    }
    replies = yield Round(PHASE, requests)
    reply_of(replies[keys.key_service], msg.RevokedAtService, keys.key_service)
    reply_of(replies[keys.helper], msg.RevokedAtHelper, keys.helper)
    staying = tuple(name for name in keys.parties if name != party)
    return replace(keys, parties=staying, public={name: keys.public[name] for name in staying})


def key_fingerprint(key: PublicKey) -> str:
    """SHA-256 of a public key, as receipts have it."""
    return hashlib.sha256(str(int(key.h)).encode()).hexdigest()


def read_key(group: Group, data: bytes) -> PublicKey:
    """A public key that was received.

    Raises
    ------
    CiphertextError
        If it is no element of the group, or opens everything.

    """
    h = bytes_number(data)
    if h >= group.N2:
        raise CiphertextError("a public key is no element of the group")
    if group.read(group.write([h]))[0] == 1:
        raise CiphertextError("a public key of 1 hides nothing")
    return PublicKey(group, h)
