"""Keys and seals between the leader of a job and its other parties; whoever carries the frames has none of them.

Every party signs a fresh X25519 key together with the order (`Agreement`). Leader and party derive one key for each
direction; all signed keys enter it, and a secret that the user has drawn and sealed to each party, by P-256 together
with ML-KEM-768. So a coordinator that keeps the frames cannot open them with a quantum computer later.

The nonce of a frame is a MAC of its number and content, so that a job which is replayed makes the same bytes, and two
different frames have different nonces, also where a state folder was restored from a copy and the job went another way
since.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.home import JobSigner
from woodlot.jobs.job_messages import OpenJob
from woodlot.jobs.led.led_messages import LeaderMet, LedKey, MeetLeader, SealedReply, SealedRequest
from woodlot.jobs.orders import Order
from woodlot.jobs.padding import pad, unpad
from woodlot.protocols.core.agreement import MIN_SECRET, Agreement, derive
from woodlot.protocols.core.message import Message
from woodlot.runtime.codec import decode, encode

TAG = "woodlot led job 1"
PURPOSE = "key of a led job"
"""What parties' identities sign their keys for."""

_NONCE_BYTES = 12

HEADER_BYTES = 256
"""More than an answer to a prediction has besides its arrays, or between them."""


class Seal:
    """Seals or opens the frames of one direction between two parties.

    Parameters
    ----------
    secret : bytes
        What the two have in common.
    transcript : bytes
        Hash of everybody's keys.
    about : tuple of str
        Job, sender and receiver.

    """

    def __init__(self, secret: bytes, transcript: bytes, about: tuple[str, str, str]) -> None:
        self._about = about
        self._cipher = ChaCha20Poly1305(derive(TAG, secret, "frames", *about, salt=transcript))
        self._nonces = derive(TAG, secret, "nonces", *about, salt=transcript)

    def seal(self, number: int, data: bytes, floor: int = 0) -> bytes:
        """A frame: the same for the same number and content, and as long as for `floor` bytes at least."""
        about = self._named(number)
        data = pad(data, floor)
        mac = hmac.new(self._nonces, about, hashlib.sha256)
        mac.update(data)
        nonce = mac.digest()[:_NONCE_BYTES]
        return nonce + self._cipher.encrypt(nonce, data, about)

    def open(self, number: int, frame: bytes | memoryview) -> bytes:
        """The content of a frame; one of another number, job, sender or receiver is refused."""
        view = memoryview(frame)  # frames may be large: none is copied
        try:
            padded = self._cipher.decrypt(bytes(view[:_NONCE_BYTES]), view[_NONCE_BYTES:], self._named(number))
        except (InvalidTag, ValueError):
            _, sender, _ = self._about
            raise RemoteProtocolError(f"frame {number} is not one that {sender!r} has sealed for this job") from None
        return unpad(padded)

    def _named(self, number: int) -> bytes:
        return msgspec.msgpack.encode((TAG, *self._about, number))


class Ways:
    """Both directions between this party and another one."""

    def __init__(self, secret: bytes, transcript: bytes, job: str, own: str, other: str) -> None:
        self.out = Seal(secret, transcript, (job, own, other))
        self.back = Seal(secret, transcript, (job, other, own))


class LedKeys:
    """A party's key in one job that is led.

    Parameters
    ----------
    name : str
        The party, or the helper that deals.
    private : bytes
        Its secret for this job, from which its key follows.
    signer : JobSigner
        Signs its key, and checks those of the others.
    order : Order
        The job.
    opening : OpenJob
        As everybody was sent it: keys are signed together with it.
    relay : bytes
        The user's secret for the parties of the job.

    """

    def __init__(
        self, name: str, private: bytes, signer: JobSigner, order: Order, opening: OpenJob, relay: bytes
    ) -> None:
        if len(relay) < MIN_SECRET:
            raise RemoteProtocolError(f"the order has a secret of {len(relay)} bytes for its parties, not {MIN_SECRET}")
        self._relay = relay
        self._order = order
        self._opening = opening
        self._name = name
        self._agreement = Agreement(name, tag=TAG, purpose=PURPOSE, job=order.job, private=private, signer=signer)
        unsigned = LedKey(share=self._agreement.share, certificate=self._agreement.certificate)
        self.own = self._agreement.sign(opening, unsigned)

    def ways(self, keys: Mapping[str, LedKey]) -> dict[str, Ways]:
        """The seals between this party and each other one; keys that their parties have not signed are refused."""
        self._agreement.check_named(self._order.parties, self.own, keys)
        agreed = self._agreement.accept(self._opening, keys)
        return {
            party: Ways(secret + self._relay, agreed.transcript, self._order.job, self._name, party)
            for party, secret in agreed.exchanged.items()
        }


class LeaderFrames:
    """The side of who does not lead: it opens the frames of the leader in their order, and seals the answers.

    Parameters
    ----------
    keys : LedKeys
        Its key in the job.
    leader : str
        The party that leads.

    """

    def __init__(self, keys: LedKeys, leader: str) -> None:
        self._keys = keys
        self._leader = leader
        self._answered = 0
        self.ways: Ways | None = None

    def meet(self, message: MeetLeader) -> LeaderMet:
        """Take the keys of the others."""
        self.ways = self._keys.ways(message.keys)[self._leader]
        return LeaderMet()

    def answer(
        self, message: SealedRequest, handle: Callable[[Message], Message], most_bytes: Callable[[Message], int]
    ) -> SealedReply:
        """Answer a frame of the leader; its number is that of the frames before it, plus one."""
        number = self._answered + 1
        sealed = self.answer_as(number, message.frame, handle, most_bytes)
        self._answered = number
        return sealed

    def answer_as(
        self,
        number: int,
        frame: NDArray[np.uint8],
        handle: Callable[[Message], Message],
        most_bytes: Callable[[Message], int],
    ) -> SealedReply:
        """Answer the frame of a number; the reply is as long as it could be for so many rows, where that is known."""
        if self.ways is None:
            raise RemoteProtocolError("Unexpected frame: nobody but this party leads here, or the keys have not come")
        reply = handle(decode(self.ways.back.open(number, frame.data)))
        most = most_bytes(reply)
        sealed = self.ways.out.seal(number, encode(reply), most + HEADER_BYTES if most else 0)
        return SealedReply(frame=np.frombuffer(sealed, np.uint8))
