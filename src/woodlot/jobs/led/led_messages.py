"""Messages of jobs that a party leads: the coordinator relays frames that leader and party have sealed.

A frame holds a message of another section, which goes from the leader to a party, or back. What that section says of
the coordinator then holds for the leader, and the coordinator learns what is said here. Where the coordinator is the
dealer of the job, a frame to or from the dealer is not sealed: it holds what the section of the protocol says of the
dealer, and no party sees it. Where a helper is the dealer, its frames are sealed as those of parties, and the
coordinator cannot read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.core.message import FROM_PARTY, FROM_USER, TO_PARTY, TO_USER, U8, Disclosure, Message, Name

_SIZES = "who sends a frame to whom, its length and time; what is in it only the two ends can read"

MAX_PART_BYTES = 256 << 20
"""Bytes of frames that travel in one message, unless a single one has more: so that many parties, each with large
messages, stay within the limit of a message."""

Phase = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z -]{0,30}\Z")]
"""What the leader calls the part of the protocol that it is in: users and logs are told."""


class LedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A party's key for one job that is led: a fresh X25519 key, signed by its identity together with the order."""

    share: bytes
    certificate: bytes
    signature: bytes = b""


class LedJobOpened(Message):
    """The party takes part in a job that another party, or itself, leads; see `JobOpened`."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "that the party's policy allows the job; the number of rows aligned before, where they are used; a keyed "
        "fingerprint of the table, another one in every job; a fresh public key",
        "clear",
    )
    n_aligned: int | None
    fingerprint: str
    key: LedKey


class MeetLeader(Message):
    """Tells a party everybody's keys: from now on it answers what its leader has sealed, and nothing else."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "the public keys of all parties of the job, signed by them", "clear")
    keys: dict[str, LedKey]


class LeaderMet(Message):
    """The party has the keys that it shares with the leader."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that the keys are taken", "clear")


class LeadJob(Message):
    """Has the leader begin: everybody's keys, and the common rows that the coordinator has had the parties find."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the public keys of all parties of the job; how many rows are common, and how many each party has",
        "clear",
    )
    keys: dict[str, LedKey]
    n_rows: int
    rows: dict[str, int]
    common: dict[str, int]


class LeadOn(Message):
    """Brings the leader the answers to its round."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "what the other parties answer the leader", "encrypted")
    frames: dict[str, U8]


class TakeFrames(Message):
    """Brings the leader some of the answers to its round, where they are too large for one message."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "what the other parties answer the leader", "encrypted")
    frames: dict[str, U8]


class FramesTaken(Message):
    """The leader has these answers."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that they are taken", "clear")


class AskFrames(Message):
    """Asks the leader for more frames of its round, where they are too large for one message."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "nothing but that its frames have arrived so far", "clear")


class LedStep(Message):
    """The leader's next round: a frame for each party that it asks; or the end of the job.

    `more` says that there are more frames, which do not fit into this message: see `AskFrames`.
    """

    discloses: ClassVar = Disclosure(
        *FROM_PARTY, f"the name of the phase, and how far it has come in numbers; {_SIZES}", "encrypted"
    )
    phase: Phase
    done: int
    total: int
    ended: bool
    frames: dict[str, U8]
    more: bool = False


def in_parts(frames: Mapping[str, NDArray[np.uint8]]) -> list[dict[str, NDArray[np.uint8]]]:
    """Frames in parts of up to `MAX_PART_BYTES`, or of one frame; at least one part, if an empty one."""
    parts: list[dict[str, NDArray[np.uint8]]] = [{}]
    room = MAX_PART_BYTES
    for party, frame in frames.items():
        if parts[-1] and len(frame) > room:
            parts.append({})
            room = MAX_PART_BYTES
        parts[-1][party] = frame
        room -= len(frame)
    return parts


class SealedRequest(Message):
    """Brings a party a frame of its leader."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "what the leader asks this party", "encrypted")
    frame: U8


class SealedReply(Message):
    """A party's answer to its leader."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, _SIZES, "encrypted")
    frame: U8


# --- online scoring ---


class LeadScores(Message):
    """Has the leader of a scoring ask the parties for some requests, which are answered together."""

    repeatable: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(
        *TO_PARTY, "how many rows are to be predicted; sealed by the user to each party alone: their ids", "encrypted"
    )
    batch: int
    numbers: tuple[int, ...]
    n_rows: tuple[int, ...]
    sealed: dict[str, tuple[bytes, ...]]

    def check(self) -> None:
        """One number and size per request, and for each party as many seals."""
        if self.batch < 1 or not len(self.numbers) == len(self.n_rows) > 0:
            raise ValueError("a batch has a number, and a number and a size for each of its requests")
        if any(len(seals) != len(self.numbers) for seals in self.sealed.values()):
            raise ValueError("a batch has a seal for each of its requests and parties")


class ScoreFrame(Message):
    """Brings a party the leader's frame of a batch."""

    repeatable: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "what the leader asks this party", "encrypted")
    batch: int
    frame: U8


class ScoreOn(Message):
    """Brings the leader of a scoring the answers to its frames of a batch."""

    repeatable: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "what the other parties answer the leader", "encrypted")
    batch: int
    frames: dict[str, U8]


class LedScores(Message):
    """The leader's answers to the requests of a batch, each sealed to the user."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, _SIZES, "encrypted")
    answers: tuple[U8, ...]


class SealedScore(Message):
    """Brings a user the leader's answer to one request."""

    discloses: ClassVar = Disclosure(
        *TO_USER, "the forest's answer for each row, and which rows some party does not have", "encrypted"
    )
    answer: U8


# --- between users and leaders ---


class AskLeader(Message):
    """A user's question to the leader of a job: the coordinator passes it on."""

    discloses: ClassVar = Disclosure(*FROM_USER, f"which leader the user asks; {_SIZES}", "encrypted")
    leader: Name
    question: bytes


class LeaderQuestion(Message):
    """Brings a leader a user's question, which the user has signed and sealed to it."""

    repeatable: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(
        *TO_PARTY, "which of the user's own jobs, or which model, the user looks at", "encrypted"
    )
    question: bytes


class LeaderAnswer(Message):
    """The leader's answer to a user, sealed to it."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, _SIZES, "encrypted")
    answer: U8


class LeaderAnswered(Message):
    """Brings a user the leader's answer."""

    discloses: ClassVar = Disclosure(
        *TO_USER, "what the leader keeps for the user: facts, answers, the leader's part of a model", "encrypted"
    )
    answer: U8
