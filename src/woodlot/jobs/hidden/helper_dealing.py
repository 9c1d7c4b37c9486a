"""A helper as the dealer of hidden trainings: what it answers in a job, and what it keeps of those before.

The label holder asks it by frames that the coordinator relays and cannot read, as it asks the parties. So the
coordinator learns lengths and no draws. The helper has no rows: it learns how many there are, the shape of the trees
and the sizes of their nodes.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from woodlot.data.decoding import from_json
from woodlot.data.sources import read_private
from woodlot.data.whole_files import private_folder, write_whole
from woodlot.exceptions import DataError, JournalError, PolicyError, RemoteProtocolError
from woodlot.jobs.hidden.hidden_jobs import HiddenDealing
from woodlot.jobs.hidden.ordered_hidden import training_without
from woodlot.jobs.home import JobSigner
from woodlot.jobs.job_messages import OpenJob
from woodlot.jobs.lasting_secret import CHECK_FILE, LastingSecret
from woodlot.jobs.led.dealing import DealerSeat
from woodlot.jobs.led.frame_seal import TAG, LeaderFrames, LedKeys
from woodlot.jobs.led.led_messages import LeaderMet, LedJobOpened, MeetLeader, SealedReply, SealedRequest
from woodlot.jobs.orders import Part, RevokeOrder, TrainOrder
from woodlot.jobs.restored import Restored
from woodlot.protocols.core.agreement import Entropy
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Message

DEALT_FOLDER = "dealt"
"""Where a helper keeps by which plans it has dealt, in its state folder."""

_REMEDY = (
    f"move away this file and {CHECK_FILE}: a new secret is made, jobs that this helper was dealing for must be "
    "cancelled, and parties can no longer leave the forests that it has dealt for"
)
_MAKING = threading.Lock()
"""Jobs of one helper go on side by side, and the first that deals makes the secret."""


class DealtFor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a helper keeps of a training: the job whose draws its trees have, who has ordered it, and the plan."""

    training: str
    user: str
    plan: ForestPlan


class DealerBook:
    """What a helper that deals keeps.

    ::

        state/
          secret, secret.check   made at the first dealing: what the helper deals follows from it
          dealt/JOB.json         `DealtFor`, by which it deals again where a party leaves

    Parameters
    ----------
    folder : Path
        The helper's state folder.

    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._restored = Restored(folder)

    def entropy(self, job: str) -> Entropy:
        """The helper's secrets in a job: the same for the same purpose, also after a restart.

        A job that a restored backup does not know gets others, as at a party.
        """
        try:
            with _MAKING:
                secret = LastingSecret(self._folder, "helper", _REMEDY)
        except OSError as error:
            raise JournalError(
                f"the secret in the state folder {self._folder} cannot be read or made: {error.strerror}; let this "
                "user write there"
            ) from None
        scope = self._restored.scope(job)
        return lambda purpose: secret.of(scope, f"dealer {purpose}")

    def keep(self, job: str, dealt: DealtFor) -> None:
        """Keep by which plan this helper deals in a job."""
        try:
            private_folder(self._folder / DEALT_FOLDER)
            write_whole(self._path(job), lambda file: file.write(msgspec.json.encode(dealt)))
        except OSError as error:
            raise JournalError(f"the plan of a job cannot be written: {error.strerror}") from error

    def find(self, model: str) -> DealtFor:
        """What is kept of the job that has grown a model."""
        path = self._path(model)
        if not path.exists():
            raise DataError("it has not dealt for this model; order the leaving with the dealer of the training")
        try:
            return from_json(read_private(path, "the plan of a job"), DealtFor)
        except (msgspec.MsgspecError, ValueError):
            raise DataError("its record of this model cannot be read; restore it from a copy, or train again") from None

    def _path(self, job: str) -> Path:
        return self._folder / DEALT_FOLDER / f"{job}.json"


class HelperDealing:
    """A helper in one job for which it deals.

    Parameters
    ----------
    signer : JobSigner
        The helper in agreements on keys.
    book : DealerBook
        What it keeps.
    order : TrainOrder or RevokeOrder
        What was ordered; it names this helper as the dealer.
    user : str
        Who has signed it.
    opening : OpenJob
        As everybody was sent it.
    part : Part
        What was sealed to this helper.

    """

    def __init__(
        self,
        signer: JobSigner,
        book: DealerBook,
        order: TrainOrder | RevokeOrder,
        user: str,
        opening: OpenJob,
        part: Part,
    ) -> None:
        if isinstance(order, TrainOrder):
            training, dealt = order, DealtFor(order.job, user, order.plan)
        else:
            dealt = book.find(order.model)
            if dealt.user != user:
                raise PolicyError("only the user who has ordered the training orders that a party leaves its forest")
            training = training_without(order, dealt.plan)
        if order.leader is None:
            raise RemoteProtocolError("a helper deals where the label holder leads, and the order names no leader")
        entropy = book.entropy(order.job)
        relay = b"" if isinstance(part.relay, msgspec.UnsetType) else part.relay
        keys = LedKeys(signer.identity.name, entropy(TAG), signer, order, opening, relay)
        self._key = keys.own
        self._frames = LeaderFrames(keys, order.leader)
        seat = DealerSeat(signer.identity, signer.trust, entropy, signer.replays(), None)
        self._dealing = HiddenDealing(training, seat, book.entropy(dealt.training)("draws"))
        book.keep(order.job, dealt)

    @property
    def opened(self) -> LedJobOpened:
        """What the helper answers when the job is opened: it has no rows, and no table."""
        return LedJobOpened(n_aligned=None, fingerprint="", key=self._key)

    def meet(self, message: MeetLeader) -> LeaderMet:
        """Take the keys of the others."""
        return self._frames.meet(message)

    def answer(self, message: SealedRequest) -> SealedReply:
        """Answer a frame of the leader."""
        return self._frames.answer(message, self._dealing.handle, _as_long_as_it_is)


def _as_long_as_it_is(reply: Message) -> int:
    """What a dealer answers has lengths that follow from what it was asked: they need no floor."""
    return 0
