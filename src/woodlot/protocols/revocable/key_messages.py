"""Messages of the revocable forest's keys and of its encrypted predictions.

CS of the paper is the coordinator, UD are the parties, CC is the helper and KGC the key service. All of them are
reached through the coordinator, so what is not for its eyes is sealed or tagged with keys that it does not have.
Elements of the group travel as lines of bytes.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import msgspec

from woodlot.crypto.dtpkc import Setting
from woodlot.protocols.core.message import I32, U8, U16, U32, Disclosure, Message, Name, Role, U8x2

_TO_MEMBER = (Role.coordinator, Role.party)
_FROM_MEMBER = (Role.party, Role.coordinator)
_TO_HELPER = (Role.coordinator, Role.helper)
_FROM_HELPER = (Role.helper, Role.coordinator)
_TO_KEYS = (Role.coordinator, Role.key_service)
_FROM_KEYS = (Role.key_service, Role.coordinator)

REQUEST_BYTES = 16
"""Bytes of a request's name."""

# --- keys of an epoch ---


class KeyIntroduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a member tells all others of itself, signed.

    Parameters
    ----------
    configured : bool
        Whether it has a shared secret from its configuration.
    share : bytes
        A fresh X25519 public key.
    certificate : bytes
        Its identity; empty if it has none.
    signature : bytes
        By this identity, over everything above, its name, the job, the epoch, and who takes part.

    """

    configured: bool = False
    share: bytes = b""
    certificate: bytes = b""
    signature: bytes = b""


class OpenEpoch(Message):
    """Asks every member, helper and key service among them, to introduce itself for a new epoch of keys."""

    discloses: ClassVar = Disclosure(*_TO_MEMBER, "who takes part, and who is helper and key service", "clear")
    epoch: int
    members: tuple[str, ...]
    helper: str
    key_service: str

    def check(self) -> None:
        """Every member has one place."""
        if any(first >= second for first, second in itertools.pairwise(self.members)):
            raise ValueError("members are named in ascending order, each once")
        if self.helper == self.key_service or not {self.helper, self.key_service} < set(self.members):
            raise ValueError("helper and key service are two of the members, and there are others")
        if self.epoch < 1:
            raise ValueError("epochs are numbered from 1")


class MemberIntroduced(Message):
    """A member's introduction."""

    discloses: ClassVar = Disclosure(
        *_FROM_MEMBER,
        "the member's certificate and a fresh public key; whether a shared secret is configured",
        "clear",
    )
    introduction: KeyIntroduction


class MeetMembers(Message):
    """Brings a member the introductions of all."""

    discloses: ClassVar = Disclosure(
        *_TO_MEMBER,
        "the introduction of every member: its certificate, a fresh public key, whether it has a configured secret",
        "clear",
    )
    introductions: dict[str, KeyIntroduction]


class MembersMet(Message):
    """The member has verified all introductions and has a secret in common with each other member."""

    discloses: ClassVar = Disclosure(
        *_FROM_MEMBER, "a hash of what the member was told, to find out whether all were told the same", "clear"
    )
    transcript: bytes


class MakeGroup(Message):
    """Asks the key service for a new modulus."""

    discloses: ClassVar = Disclosure(*_TO_KEYS, "how long the modulus is to be", "clear")
    epoch: int
    bits: int
    setting: Setting


class PublicGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Modulus and generator of an epoch, little-endian."""

    epoch: int
    modulus: bytes
    generator: bytes


class GroupProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Proof of a group for whoever was not there when it was made, as a requester.

    Parameters
    ----------
    job : str
        The job in which it was made.
    members : tuple of str
        Who took part then, helper and key service among them.
    signature : bytes
        Of the key service's identity, over job, setting, members, helper, key service and group.

    """

    job: str
    members: tuple[str, ...]
    signature: bytes


class GroupMade(Message):
    """A new modulus, the coordinator's share of its strong key, and the helper's share, sealed."""

    discloses: ClassVar = Disclosure(
        *_FROM_KEYS,
        "the modulus and the coordinator's share of the strong key, which opens nothing alone; the helper's share is "
        "sealed to the helper; the key service's signature under the modulus, for requesters",
        "clear",
    )
    group: PublicGroup
    share: bytes
    sealed: bytes
    tags: dict[str, bytes]
    """For every other member: proof that the group is the key service's."""
    proof: GroupProof | None = None
    """The same for everybody else; None where the key service has no identity."""


class TakeGroup(Message):
    """Brings a party the modulus: it draws its own key, to be used once the epoch is complete."""

    discloses: ClassVar = Disclosure(*_TO_MEMBER, "the modulus and generator", "clear")
    group: PublicGroup
    tag: bytes


class KeyDrawn(Message):
    """A party's public key, with a proof for the helper that it is the party's."""

    discloses: ClassVar = Disclosure(*_FROM_MEMBER, "the party's public key", "clear")
    public: bytes
    tag: bytes


class TakeShare(Message):
    """Brings the helper its share of the strong key, to be used once the epoch is complete."""

    discloses: ClassVar = Disclosure(*_TO_HELPER, "the modulus, generator, and the helper's share", "encrypted")
    group: PublicGroup
    tag: bytes
    sealed: bytes


class ShareTaken(Message):
    """The helper has its share."""

    discloses: ClassVar = Disclosure(*_FROM_HELPER, "nothing but that", "clear")


class KnowKeys(Message):
    """Brings the helper the parties' public keys."""

    discloses: ClassVar = Disclosure(*_TO_HELPER, "every party's public key", "clear")
    epoch: int
    keys: dict[str, bytes]
    tags: dict[str, bytes]


class KeysKnown(Message):
    """The helper will answer for these parties."""

    discloses: ClassVar = Disclosure(*_FROM_HELPER, "nothing but that", "clear")


class CommitEpoch(Message):
    """Tells every member that the new epoch is complete: it uses the new keys, and erases those before."""

    discloses: ClassVar = Disclosure(*_TO_MEMBER, "that all members are ready", "clear")
    epoch: int


class EpochCommitted(Message):
    """The member has no keys of an earlier epoch any more, and refuses it."""

    discloses: ClassVar = Disclosure(*_FROM_MEMBER, "nothing but that", "clear")


class RevokeKey(Message, abstract=True):
    """Ends a party's key within the epoch."""

    epoch: int
    party: str


class RevokeAtService(RevokeKey):
    """Tells the key service whose key is no longer good: it makes no comparisons for its requests any more."""

    discloses: ClassVar = Disclosure(*_TO_KEYS, "who has left", "clear")


class RevokeAtHelper(RevokeKey):
    """Tells the helper whose key is no longer good: it answers for that party's splits no more."""

    discloses: ClassVar = Disclosure(*_TO_HELPER, "who has left", "clear")


class RevokedAtService(Message):
    """The key service has struck the party from its list."""

    discloses: ClassVar = Disclosure(*_FROM_KEYS, "nothing but that", "clear")


class RevokedAtHelper(Message):
    """The helper has erased the party's key."""

    discloses: ClassVar = Disclosure(*_FROM_HELPER, "nothing but that", "clear")


class UseForest(Message):
    """Tells a provider which forest a job is about."""

    discloses: ClassVar = Disclosure(*_TO_MEMBER, "the forest's fingerprint", "clear")
    forest: str


class ForestInUse(Message):
    """The provider has its part at hand; where there is a request, which of its columns has each of its features."""

    discloses: ClassVar = Disclosure(
        *_FROM_MEMBER, "for each coded feature of the party, the place of its column in the request", "clear"
    )
    place: I32
    """-1 where the request has no such column."""


class AskKeys(Message):
    """A user asks for the modulus of a model."""

    discloses: ClassVar = Disclosure(Role.user, Role.coordinator, "which model a user is interested in", "clear")
    model: Name


class KeysOfModel(Message):
    """The modulus of a model, to encrypt requests with."""

    discloses: ClassVar = Disclosure(
        Role.coordinator, Role.user, "the modulus, who has signed it, and who holds keys of the model", "clear"
    )
    group: PublicGroup
    setting: Setting
    parties: tuple[str, ...]
    helper: str
    key_service: str
    keys: str
    """The name under which the members keep them."""
    splits: bytes
    """The hash of the splits that the helper has registered: a requester signs it."""
    proof: GroupProof | None = None
    """That the modulus is the key service's; None of keys that were made before there were such proofs."""


class EncryptSplits(Message):
    """Asks a party for its splits, encrypted under its key, and for its word on how many there are."""

    discloses: ClassVar = Disclosure(
        *_TO_MEMBER, "which of the party's nodes are in use, and hashes of splits that it has encrypted before", "clear"
    )
    epoch: int
    forest: str
    """Fingerprint of the forest."""
    total: int
    """How many splits the forest has, of all parties."""
    node: I32
    """Where splits are to be encrypted, ascending."""
    kept: U8x2
    """Of splits that were encrypted before and stay: the hashes of their ciphertexts, ascending."""
    kept_feature: I32
    """The number of each one's column among the party's own."""


class SplitsEncrypted(Message):
    """A party's splits."""

    discloses: ClassVar = Disclosure(
        *_FROM_MEMBER,
        "nothing without the party: splits under its key, and which of its columns each is of; a proof, for the "
        "helper, that it knows them",
        "encrypted",
    )
    splits: U8x2
    feature: I32
    """The number of each split's column among the party's own."""
    tags: U8x2
    """By these the party knows its own splits again."""
    proof: bytes
    """That it knows what it has encrypted; see `woodlot.crypto.knowledge`. Empty where it has encrypted nothing."""
    statement: bytes
    """The party's tag for the helper, over all of its splits, the forest, and how many splits that has."""


class RegisterSplits(Message):
    """Tells the helper the splits of a forest: it compares requests with these and no others.

    The list of splits that were registered before comes first; see `woodlot.protocols.revocable.split_list`.
    """

    discloses: ClassVar = Disclosure(
        *_TO_HELPER,
        "how many splits each party has, and of which of its columns, in an order without meaning; the splits are "
        "encrypted",
        "encrypted",
    )
    epoch: int
    forest: str
    owners: tuple[str, ...]
    owner: U16
    feature: I32
    hashes: U8x2
    stays: U8
    """For each of those before: 1 if it stays, else 0."""
    splits: U8x2
    """C1 of those that are new, in the order of their hashes."""
    names: tuple[str, ...]
    """Who has new ones."""
    fresh_owner: U16
    """For each new one, whose it is."""
    fresh_feature: I32
    proofs: dict[str, bytes]
    """Of each owner of new ones: that it knows them."""
    statements: dict[str, bytes]
    """Of each owner of any."""


class SplitsRegistered(Message):
    """The helper compares requests with these splits."""

    discloses: ClassVar = Disclosure(*_FROM_HELPER, "nothing but that", "clear")


# --- predictions ---


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who asks for a prediction, of what size; signed by the requester.

    Parameters
    ----------
    requester : str
        Who asks.
    request : bytes
        The name of the request: 16 bytes drawn by the requester.
    epoch : int
        Of the keys.
    rows, features : int
        The size of the request.
    digest : bytes
        SHA-256 of its ciphertexts.
    splits : bytes
        The hash of the splits that it may be compared with, as the helper has registered them.
    certificate, signature : bytes
        The requester's identity, and its signature over everything else; empty where it has none.

    """

    requester: str
    request: bytes
    epoch: int
    rows: int
    features: int
    digest: bytes
    splits: bytes
    certificate: bytes = b""
    signature: bytes = b""

    def __post_init__(self) -> None:
        if len(self.request) != REQUEST_BYTES:
            raise ValueError(f"a request's name has {REQUEST_BYTES} bytes")
        if self.rows < 1 or self.features < 1:
            raise ValueError("a request has rows and features")


class DealComparisons(Message):
    """Asks the key service for the randomness of comparisons: `sizes` of them at each step of the prediction.

    ``owners``: how many parties' splits they are with at most. A pack has splits of one of them.
    """

    discloses: ClassVar = Disclosure(
        *_TO_KEYS, "who asks for a prediction, how large the forest is and how many parties have splits", "clear"
    )
    ticket: Ticket
    block: int
    sizes: tuple[int, ...]
    owners: int


class ComparisonsDealt(Message):
    """The coordinator's part of the randomness, all steps one after the other; the helper makes its own."""

    discloses: ClassVar = Disclosure(
        *_FROM_KEYS, "random bits that are independent of every value; masks that only the strong key opens", "encoded"
    )
    words: U8x2
    tops: bytes
    masks: U8x2
    """The masks of each pack of comparisons, encrypted, for the helper."""
    proofs: U8x2
    """For each step: proof for the helper that the masks are the key service's."""


class TakeRequest(Message):
    """Brings the helper a request: it compares these values and no others, with these splits and no others.

    ``proof``: that the requester knows the values; see `woodlot.crypto.knowledge`. The list of splits is the one that
    was registered.
    """

    discloses: ClassVar = Disclosure(
        *_TO_HELPER,
        "who asks for a prediction of how many rows; the values are encrypted. The list of splits, which it knows",
        "encrypted",
    )
    ticket: Ticket
    values: U8x2
    proof: bytes
    owners: tuple[str, ...]
    owner: U16
    feature: I32
    hashes: U8x2


class RequestTaken(Message):
    """The helper has the request."""

    discloses: ClassVar = Disclosure(*_FROM_HELPER, "nothing but that", "clear")


class OpenDifferences(Message):
    """Asks the helper to compare rows of the request with splits: it makes the differences itself."""

    discloses: ClassVar = Disclosure(
        *_TO_HELPER,
        "which rows come by the same splits, in an order without meaning; whose splits these are, and of which of the "
        "owner's columns; the splits are encrypted",
        "encrypted",
    )
    ticket: Ticket
    block: int
    step: int
    splits: U8x2
    """Those of which the helper has not heard in this request: their C1."""
    column: U32
    """The column of the request that each is compared with: one of its owner's."""
    row: U32
    """For each comparison, the row of the request."""
    split: U32
    """For each comparison, the number of the split among all that were told so far."""
    size: int
    """How many comparisons the masks were dealt for, and how many owners."""
    owners: int
    masks: U8x2
    proof: bytes


class DifferencesBlinded(Message):
    """The differences of packs of comparisons, under the key service's masks and raised to factors of the helper's."""

    discloses: ClassVar = Disclosure(*_FROM_HELPER, "nothing: what only the strong key opens", "encrypted")
    blinded: U8x2


class FinishComparisons(Message):
    """Brings the helper the coordinator's half of the decryption."""

    discloses: ClassVar = Disclosure(*_TO_HELPER, "half of a decryption; what is opened is masked", "encoded")
    ticket: Ticket
    block: int
    step: int
    halves: U8x2


class ComparisonsFinished(Message):
    """The helper's part of the comparisons, and its shares of the results, sealed to each provider."""

    discloses: ClassVar = Disclosure(
        *_FROM_HELPER, "one bit per comparison under a coin; nothing without the providers", "encoded"
    )
    words: U8x2
    answers: dict[str, bytes]


class OpenAnswers(Message):
    """Asks a provider to open the helper's shares of comparisons with its splits; it may refuse the requester."""

    discloses: ClassVar = Disclosure(
        *_TO_MEMBER,
        "who asks, how many rows, how many comparisons with the party's splits there are, and of which of its columns; "
        "the bits to be opened are random",
        "encrypted",
    )
    ticket: Ticket
    block: int
    step: int
    answer: bytes


class AnswersOpened(Message):
    """The shares: with the coordinator's own they tell which way each row goes at the party's nodes."""

    discloses: ClassVar = Disclosure(
        *_FROM_MEMBER,
        "one bit per comparison: whether the requester's value is at most the party's split. Many requests whose "
        "values the coordinator knows would tell it the split, so parties limit and log them",
        "clear",
    )
    bits: bytes


class TestRows(Message):
    """Asks a provider which way some of its own rows go at its own splits (FRF-Test)."""

    discloses: ClassVar = Disclosure(
        *_TO_MEMBER, "which rows come by which of the party's nodes; the splits are under its own key", "encrypted"
    )
    epoch: int
    rows: I32
    """The row of each question."""
    nodes: I32
    """The node of each question."""
    fresh: I32
    """Those of the nodes whose splits the party has not been shown in this job, each once, ascending."""
    splits: U8x2
    """Their splits, as the coordinator has kept them."""
    tags: U8x2
    """By these the party knows its own splits again."""


class RowsTested(Message):
    """Which way each row goes: one bit per question, 1 for right."""

    discloses: ClassVar = Disclosure(
        *_FROM_MEMBER, "one bit per row and node on its way: whether the party's value is at most its split", "clear"
    )
    bits: U8
