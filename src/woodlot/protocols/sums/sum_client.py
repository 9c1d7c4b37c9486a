"""A client of secure sums: a part of the party of every protocol that needs sums.

The party hands it the messages of the set-up, and for every later request that has a `SumOrder` the numbers that the
request asks for; what it returns is the reply.

States::

    idle      OpenSums        -> opened     who takes part, and the mode; this client introduces itself
    opened    StartSums       -> started    the others' introductions are checked, secrets agreed on
    started   answer, mask, note: calls of the party, no messages
    started   PrepareSums     shares of the secrets of the next rounds are dealt; here and below: where clients can be
                              spared
    started   TakeShares      the shares that neighbours have dealt
    started   NameSurvivors   who has survived the latest round: one list, for good
    started   Unmask          shares are told, of one secret of each client

In *started* a round is used once: the same order and numbers give the same bytes again, anything else under the round
is refused. Clients that are left out of a round stay out. ``_asked`` is a digest of all that was answered or noted; it
enters every later mask, so that only clients that were asked the same things have masks that cancel. ``_before`` has
the digest before each round, so that a repeated round is masked as it was the first time. Where clients can be spared a
question is answered in one round only (``_rounds``): with a client and without it, the answers would tell its part.
Where the same can be asked in other words the protocol answers with ``whole``: such a round spares nobody. A refused
message or order changes nothing.
"""

from __future__ import annotations

import math
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import ConfigError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import (
    Agreement,
    Entropy,
    Signer,
    check_configured,
    check_trust,
    derive,
    secret_bytes,
    transcript_of,
)
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.sums import sum_messages as msg
from woodlot.protocols.sums.keystreams import Vector
from woodlot.protocols.sums.masks import TAG, Masker, PlainMasker
from woodlot.protocols.sums.neighbours import beside, draw_picks, drawn_by, n_picks, neighbours_of
from woodlot.protocols.sums.recovery import Circle, RecoverableMasker
from woodlot.protocols.sums.vectors import pack

PURPOSE = "secure-sum"
"""What a client's identity signs introductions for."""


class SumClientState(StrEnum):
    """Where a client stands."""

    idle = "idle"
    opened = "opened"
    started = "started"


DEFAULT_QUORUM = 2 / 3
"""More than this share of the clients must be left where some can be spared."""


def wanted_quorum(spare_after: float | None, quorum: int | float | None) -> int | float | None:
    """How many clients the sums of a plan need, as for `quorum_of`; all, where none is spared."""
    if spare_after is None:
        return None
    return DEFAULT_QUORUM if quorum is None else quorum


def minimum_clients(mode: msg.Mode, allow_two: bool) -> int:
    """How many clients a sum has at least: of two, each would learn the other's numbers from the sum."""
    if mode == "plain":
        return 1
    return 2 if allow_two else 3


def quorum_of(quorum: int | float | None, n_clients: int, minimum: int) -> int | None:
    """How many of so many clients a sum needs; None if it needs all.

    Parameters
    ----------
    quorum : int, float or None
        A number of clients; more than a share of them; or all.
    n_clients : int
        All clients.
    minimum : int
        What a sum needs in any case, see `minimum_clients`.

    Raises
    ------
    ConfigError
        If it is not more than half of the clients, or more than there are. With half of them a coordinator could have
        two lists of survivors confirmed, and so learn a client's numbers from two sums.

    """
    if quorum is None:
        return None
    needed = quorum if isinstance(quorum, int) else math.floor(quorum * n_clients + 1e-9) + 1
    needed = max(needed, minimum)
    if needed > n_clients or 2 * needed <= n_clients:
        raise ConfigError(
            f"a quorum of {needed} of {n_clients} clients is not possible; set quorum to more than half of the "
            "clients, and not more than there are"
        )
    return None if needed == n_clients else needed


class SumClient(MessageHandler):
    """One client, for the sums of one job.

    Parameters
    ----------
    name : str
        The client.
    job : str
        The job's name, which all clients must have been told alike: it is signed.
    entropy : callable
        From a purpose to secret bytes, always the same for this client and job. A client that is restarted so repeats
        its messages byte for byte.
    signer : Signer, optional
        The client's identity. Needed for secure sums unless there is a shared secret.
    shared_secret : bytes, optional
        From the configuration, the same at every client; at least 16 random bytes. It enters every mask.
    mode : {"secure", "plain"}
        What this client takes part in. Plain sums show the coordinator the numbers of each client.
    allow_two : bool
        Whether it takes part in sums over two clients.
    quorum : int, float or None
        How many clients a sum needs, as for `quorum_of`. By default it needs all, and this client takes part in no sum
        without one of them.
    data_digest : bytes
        Of the data that the numbers come from. It enters this client's key, so that no mask is used for two tables.
    in_one_process : bool
        Whether all clients of the job are in this process, so that nobody sees one's vectors who does not have its
        numbers. Then each shares masks with two others; all clients must be told the same. With a quorum it changes
        nothing.

    Raises
    ------
    ConfigError
        If there is neither a shared secret nor an identity, or the secret is too short.

    """

    state: SumClientState

    def __init__(
        self,
        name: str,
        *,
        job: str,
        entropy: Entropy,
        signer: Signer | None = None,
        shared_secret: bytes | None = None,
        mode: msg.Mode = "secure",
        allow_two: bool = False,
        quorum: int | float | None = None,
        data_digest: bytes = b"",
        in_one_process: bool = False,
    ) -> None:
        self.name = name
        self._in_one_process = in_one_process
        self.state = SumClientState.idle
        self._job = job
        self._mode = mode
        self._minimum = minimum_clients(mode, allow_two)
        self._quorum = quorum
        self._shared_secret = shared_secret
        self._agreement: Agreement | None = None
        self._own = b""
        if mode == "secure":
            check_trust(name, shared_secret, signer, "read its numbers")
            secret = secret_bytes(entropy, f"{PURPOSE} share")
            private = derive(TAG, secret, "share", data_digest)
            self._own = derive(TAG, secret, "own", data_digest)
            self._agreement = Agreement(name, tag=TAG, purpose=PURPOSE, job=job, private=private, signer=signer)
        self._opening: msg.OpenSums | None = None
        self._introduction = msg.SumIntroduction()
        self._masker: PlainMasker | None = None
        self._asked = b""  # digest of all that has been answered
        self._before: dict[int, bytes] = {}  # what it was before each round
        self._rounds: dict[bytes, int] = {}  # in which round each question was answered

    @takes(msg.OpenSums, when=SumClientState.idle, then=SumClientState.opened)
    def _on_OpenSums(self, message: msg.OpenSums) -> msg.SumsIntroduced:
        if self.name not in message.clients:
            raise RemoteProtocolError(f"this client, {self.name!r}, is not among those of the sums")
        if message.mode != self._mode:
            raise PolicyError(f"sums are to be {message.mode}, and this client takes part in {self._mode} ones only")
        if len(message.clients) < self._minimum:
            raise PolicyError(
                f"sums over {len(message.clients)} clients would tell too much of each; this one takes part in sums "
                f"over {self._minimum} or more"
            )
        if message.quorum != self._quorum_of(message.clients):
            raise PolicyError("sums are to need another number of clients than was ordered")
        if self._agreement is not None:
            n_clients, place = len(message.clients), message.clients.index(self.name)
            drawing = derive(TAG, self._own, "picks", message.clients)
            unsigned = msg.SumIntroduction(
                configured=self._shared_secret is not None,
                share=self._agreement.share,
                picks=draw_picks(drawing, place, n_clients) if n_picks(n_clients) else (),
                certificate=self._agreement.certificate,
            )
            self._introduction = self._agreement.sign(message, unsigned)
        self._opening = message
        return msg.SumsIntroduced(introduction=self._introduction)

    @takes(msg.StartSums, when=SumClientState.opened, then=SumClientState.started)
    def _on_StartSums(self, message: msg.StartSums) -> msg.SumsStarted:
        opening, introductions = self._opening, message.introductions
        if opening is None:
            raise RemoteProtocolError("no sums are open here")
        clients, quorum = opening.clients, opening.quorum
        if self._agreement is None:
            if tuple(introductions) != clients:
                raise RemoteProtocolError("the introductions are not those of the clients named at the opening")
            transcript = transcript_of(TAG, self._job, opening, introductions)
            self._masker = PlainMasker(self.name, clients, minimum=quorum or 1, recover=quorum is not None)
        else:
            self._agreement.check_named(clients, self._introduction, introductions)
            check_configured({name: introduction.configured for name, introduction in introductions.items()})
            agreed = self._agreement.accept(opening, introductions)
            drawn = drawn_by({name: introduction.picks for name, introduction in introductions.items()})
            transcript, extra = agreed.transcript, self._shared_secret or b""
            secrets = {name: exchanged + extra for name, exchanged in agreed.exchanged.items()}
            if quorum is None:
                known = neighbours_of(drawn)[self.name]
                neighbours = beside(self.name, clients) if self._in_one_process else known
                secrets = {name: secrets[name] for name in clients if name in neighbours}
                self._masker = Masker(self.name, transcript, clients, secrets)
            else:
                circle = Circle(clients, drawn, quorum)
                self._masker = RecoverableMasker(self.name, transcript, circle, secrets, self._own)
        return msg.SumsStarted(transcript=transcript)

    def _quorum_of(self, clients: tuple[str, ...]) -> int | None:
        try:
            return quorum_of(self._quorum, len(clients), self._minimum)
        except ConfigError as error:
            raise PolicyError(str(error)) from None

    @takes(msg.PrepareSums, when=SumClientState.started)
    def _on_PrepareSums(self, message: msg.PrepareSums) -> msg.SumsPrepared:
        envelopes, shares = self._recoverable().prepare(message.first, message.clients)
        return msg.SumsPrepared(first=message.first, envelopes=envelopes, shares=shares)

    @takes(msg.TakeShares, when=SumClientState.started)
    def _on_TakeShares(self, message: msg.TakeShares) -> msg.SharesTaken:
        self._recoverable().take(message.first, message.clients, message.shares)
        return msg.SharesTaken(first=message.first)

    @takes(msg.NameSurvivors, when=SumClientState.started)
    def _on_NameSurvivors(self, message: msg.NameSurvivors) -> msg.SurvivorsEchoed:
        echoes = self._recoverable().confirm(message.round, message.survivors)
        return msg.SurvivorsEchoed(round=message.round, echoes=echoes)

    @takes(msg.Unmask, when=SumClientState.started)
    def _on_Unmask(self, message: msg.Unmask) -> msg.SharesTold:
        masker = self._recoverable()
        shares = masker.tell(message.round, message.survivors, message.echoes)
        return msg.SharesTold(round=message.round, asked=masker.asked, shares=shares)

    def _recoverable(self) -> RecoverableMasker:
        if not isinstance(self._masker, RecoverableMasker):
            raise RemoteProtocolError("no client can be spared in these sums, so there are no shares")
        return self._masker

    def check(self, order: msg.SumOrder, *, fresh: bool = False, whole: bool = False) -> None:
        """Refuse an order that could not be answered, before anything is counted, drawn or paid for.

        Parameters
        ----------
        order : SumOrder
            From the request.
        fresh : bool
            Whether the numbers would be others a second time, so that an order cannot be repeated.
        whole : bool
            As for `answer`.

        Raises
        ------
        RemoteProtocolError, PolicyError
            As for `answer`.

        """
        self._check_whole(order, whole)
        self._due("sum").check(order.round, order.clients, fresh=fresh)

    def _check_whole(self, order: msg.SumOrder, whole: bool) -> None:
        if whole and self._opening is not None and order.clients != self._opening.clients:
            raise PolicyError(
                "this is answered in sums over all clients alone: asked once with a client and once without it, in "
                "other words, it would tell that client's part. Bring the client back, or order the job without it"
            )

    def _due(self, what: str) -> PlainMasker:
        if self._masker is None:
            raise RemoteProtocolError(f"unexpected {what}: sums are {self.state} here")
        return self._masker

    def answer(
        self, order: msg.SumOrder, values: NDArray[Any], about: bytes = b"", *, whole: bool = False
    ) -> msg.MaskedVector | msg.PlainVector:
        """Return the reply to a request: the numbers, masked for this order; the same order and numbers repeat it.

        Parameters
        ----------
        order : SumOrder
            From the request.
        values : array of integers
            As many as were ordered. One beyond the bound is not refused, which would tell of it: see `pack`.
        about : bytes
            Digest of what is asked. It is in the masks, with the order and all that was asked before: were clients
            asked different things, the coordinator would get no sum, and so not the numbers of one to whom the others
            add zeros.
        whole : bool
            Whether the round spares nobody, also where others do: all clients of the session must be in its order, and
            its masks come off if all have survived it.

        Raises
        ------
        RemoteProtocolError, PolicyError
            If this order cannot be answered; see `Masker.mask`.

        """
        self._check_whole(order, whole)
        terms = _digest(order.length, order.bound, about)
        if isinstance(self._masker, RecoverableMasker) and self._rounds.get(about, order.round) != order.round:
            raise RemoteProtocolError("this was answered in another round; a question is answered in one round only")
        vector = self._mask(order.round, pack(order, values), order.clients, terms)
        self._rounds[about] = order.round
        if isinstance(self._masker, RecoverableMasker):
            self._masker.whole = whole
        if self._mode == "plain":
            return msg.PlainVector(round=order.round, values=vector)
        return msg.MaskedVector(round=order.round, values=vector)

    def mask(self, round_id: int, numbers: NDArray[np.uint64], clients: tuple[str, ...], about: bytes = b"") -> Vector:
        """Mask numbers that may be any of 64 bits, for protocols that can check their sums themselves.

        The rules of rounds are those of `Masker.mask`, and `about` is as for `answer`; a session takes rounds of one
        kind only.

        Raises
        ------
        RemoteProtocolError, PolicyError
            As for `answer`.

        """
        return self._mask(round_id, numbers, clients, about, "masked answer")

    def _mask(
        self, round_id: int, numbers: Vector, clients: tuple[str, ...], about: bytes, what: str = "sum"
    ) -> Vector:
        masker, before = self._due(what), self._before.get(round_id, self._asked)
        asked = _digest(before, round_id, clients, about)
        vector = masker.mask(round_id, numbers, clients, asked)
        if round_id not in self._before:
            self._before[round_id], self._asked = before, asked
        return vector

    def note(self, about: bytes) -> None:
        """Take into all later masks what a message without a sum has told, where it tells all clients the same.

        What changes the numbers of a later sum and does not travel with the request of a sum must be noted, once it is
        done: were it told differently to one client, its numbers could be had as if it were asked differently.

        Parameters
        ----------
        about : bytes
            Digest of what was told.

        """
        self._asked = _digest(self._asked, about)


def _digest(*terms: object) -> bytes:
    return sha256(msgspec.msgpack.encode(terms)).digest()
