"""Masks of sums that can spare clients, after Bonawitz et al., Practical secure aggregation, 2017.

In every round a client u has two secrets beside the keys that it has in common with its neighbours::

    seed of u       its own mask is made of it; u adds it to its vector
    envelope key    opens the envelope of u, in which are the keys of this round that u has in common with neighbours

Both are split (Shamir) before the round among u and those neighbours whom u itself has drawn: others cannot make
themselves holders of its shares. When the coordinator has the vectors, it names who has sent one, the survivors. Then
each client tells, of itself and those who have drawn it, one share of each: of the seed if the client is a survivor, of
the envelope key if it is not. So the own masks of survivors come off the sum, and the masks that survivors have in
common with the others. Never both of one client: its vector stays hidden also from a coordinator that has it and claims
that the client was away. What is never told in one round is not told in another either, for all secrets are those of
one round.

::

    prepare   deal the shares of the next `ROUNDS` rounds; once, before these rounds
    take      the shares that those have dealt who have drawn this client
    mask      a round's vector: closes the rounds before it
    confirm   who has survived the latest round: one list, for good
    tell      the shares of this list, if enough others have confirmed it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.constant_time import bytes_eq

from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import KEY_BYTES, derive
from woodlot.protocols.sums.keystreams import Vector
from woodlot.protocols.sums.masks import TAG, MaskTerms, PlainMasker
from woodlot.protocols.sums.neighbours import DENSE, Neighbours, neighbours_of
from woodlot.protocols.sums.shamir import SHARE_BYTES, split

ROUNDS = 16
"""For so many rounds shares are dealt at once."""
ECHO_BYTES = 16
_NONCE = bytes(12)  # for keys that are used once
_SEED, _ENVELOPE = 0, 1  # the two secrets of a round
_DEALT_BYTES = 2 * SHARE_BYTES * ROUNDS


@dataclass(frozen=True, eq=False)
class Circle:
    """The clients of a session and who shares masks with whom, as every role knows it.

    Attributes
    ----------
    clients : tuple of str
        In ascending order.
    drawn : mapping of str to frozenset of str
        Whom each has drawn, as from `drawn_by`.
    quorum : int
        How many clients a sum has at least.

    """

    clients: tuple[str, ...]
    drawn: Neighbours
    quorum: int

    @cached_property
    def neighbours(self) -> Neighbours:
        """With whom each shares masks."""
        return neighbours_of(self.drawn)

    @property
    def is_dense(self) -> bool:
        """Whether everybody is a neighbour of everybody."""
        return len(self.clients) <= DENSE

    def holders(self, name: str, present: tuple[str, ...]) -> tuple[str, ...]:
        """Who has shares of the secrets of `name`: itself and those whom it has drawn, of those present."""
        return tuple(other for other in present if other == name or other in self.drawn[name])

    def held_by(self, name: str, present: tuple[str, ...]) -> tuple[str, ...]:
        """Of whose secrets `name` has shares: of its own and of those who have drawn it, of those present."""
        return tuple(other for other in present if other == name or name in self.drawn[other])

    def peers(self, name: str, present: tuple[str, ...]) -> tuple[str, ...]:
        """With whom `name` shares masks, of those present."""
        return tuple(other for other in present if other in self.neighbours[name])

    def threshold(self, name: str) -> int:
        """How many shares give a secret: as many as a sum needs, or more than half of its holders."""
        return self.quorum if self.is_dense else (len(self.drawn[name]) + 1) // 2 + 1

    def place(self, name: str) -> int:
        """The place of a client's shares."""
        return self.clients.index(name) + 1

    def is_echoed(self, survivors: tuple[str, ...], clients: tuple[str, ...]) -> bool:
        """Whether the survivors of a round must be confirmed by others before shares are told.

        Not if all have survived and everybody has shares of everybody: a quorum of shares is more than half of all, so
        no other list can have as many.
        """
        return not self.is_dense or survivors != clients


def open_envelope(key: bytes, sealed: bytes, peers: tuple[str, ...]) -> dict[str, bytes]:
    """Return the keys of a round that a client has in common with its neighbours.

    Raises
    ------
    RemoteProtocolError
        If this is not the key of this envelope.

    """
    try:
        keys = ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise RemoteProtocolError("an envelope of keys cannot be opened: the shares of its key are wrong") from None
    if len(keys) != KEY_BYTES * len(peers):
        raise RemoteProtocolError("an envelope does not have a key for each neighbour")
    return {peer: keys[KEY_BYTES * i : KEY_BYTES * (i + 1)] for i, peer in enumerate(peers)}


@dataclass(eq=False)
class _Prepared:
    """What a client has dealt and been dealt for some rounds."""

    first: int
    clients: tuple[str, ...]
    seeds: list[bytes]
    pair_keys: list[dict[str, bytes]]
    envelopes: tuple[bytes, ...]
    sealed: dict[str, bytes]
    held: dict[str, bytes]  # by whom they were dealt: by this client itself, too
    taken: bool = False

    def share(self, name: str, round_id: int, which: int) -> bytes:
        first = (2 * (round_id - self.first) + which) * SHARE_BYTES
        return self.held[name][first : first + SHARE_BYTES]


class RecoverableMasker(PlainMasker):
    """Masks one client's vectors, so that the sum of those who stay can be told when others drop out.

    Parameters
    ----------
    name : str
        This client.
    transcript : bytes
        Hash of what all clients were told at the start of the session.
    circle : Circle
        The clients and who shares masks with whom.
    secrets : mapping of str to bytes
        What this client has in common with each other.
    own : bytes
        A secret of this client's, always the same for this session.

    """

    def __init__(self, name: str, transcript: bytes, circle: Circle, secrets: Mapping[str, bytes], own: bytes) -> None:
        super().__init__(name, circle.clients, minimum=circle.quorum)
        self._transcript = transcript
        self._circle = circle
        self._secrets = dict(secrets)
        self._own = own
        self._prepared: _Prepared | None = None
        self._latest: MaskTerms | None = None
        self._survivors: tuple[str, ...] | None = None
        self.whole = False
        """Whether the masks of the latest round come off only if all its clients have survived it."""

    # --- before some rounds ---

    def prepare(self, first: int, clients: tuple[str, ...]) -> tuple[tuple[bytes, ...], dict[str, bytes]]:
        """Deal the shares of rounds; returns the envelope of each round, and what is sealed for each neighbour.

        Raises
        ------
        RemoteProtocolError, PolicyError
            If these rounds were used, or the clients are not some of those before, or too few.

        """
        before = self._prepared
        if before is not None and (before.first, before.clients) == (first, clients):
            return before.envelopes, before.sealed
        if first < self._next_round or (before is not None and first < before.first):
            raise RemoteProtocolError("shares are dealt once, before the rounds that they are for")
        self._check_clients(clients)
        peers = self._circle.peers(self.name, clients)
        holders = tuple(p for p in self._circle.holders(self.name, clients) if p != self.name)
        rounds = range(first, first + ROUNDS)
        terms = (first, clients)
        seeds = [self._derive(self._own, "seed", *terms, r) for r in rounds]
        keys = [self._derive(self._own, "envelope", *terms, r) for r in rounds]
        pairs = [{p: self._derive(self._secrets[p], "pair", *terms, r, *sorted((self.name, p))) for p in peers}
                 for r in rounds]  # fmt: skip
        places = [self._circle.place(holder) for holder in (self.name, *holders)]
        threshold = self._circle.threshold(self.name)
        dealt = [b""] * len(places)
        for r, both in zip(rounds, zip(seeds, keys, strict=True), strict=True):
            for which, secret in enumerate(both):
                randomness = self._derive(self._own, "polynomial", *terms, r, which)
                for at, share in enumerate(split(secret, threshold, places, randomness)):
                    dealt[at] += share
        sealed = {
            peer: ChaCha20Poly1305(self._sealing_key(first, clients, self.name, peer)).encrypt(_NONCE, shares, None)
            for peer, shares in zip(holders, dealt[1:], strict=True)
        }
        envelopes = tuple(
            ChaCha20Poly1305(key).encrypt(_NONCE, b"".join(pair.values()), None)
            for key, pair in zip(keys, pairs, strict=True)
        )
        self.restrict(clients)
        self._prepared = _Prepared(first, clients, seeds, pairs, envelopes, sealed, {self.name: dealt[0]})
        return envelopes, sealed

    def take(self, first: int, clients: tuple[str, ...], sealed: Mapping[str, bytes]) -> None:
        """Take the shares that those have dealt who have drawn this client and are still there.

        Raises
        ------
        RemoteProtocolError, PolicyError
            If they are not those, or too few are there.

        """
        prepared = self._prepared
        if prepared is None or prepared.first != first:
            raise RemoteProtocolError("shares are taken after this client has dealt its own for the same rounds")
        if set(sealed) != set(self._circle.held_by(self.name, clients)) - {self.name}:
            raise RemoteProtocolError("the shares are not those of the clients that have drawn this one")
        held = {self.name: prepared.held[self.name]}
        for peer, data in sealed.items():
            key = self._sealing_key(first, prepared.clients, peer, self.name)
            try:
                held[peer] = ChaCha20Poly1305(key).decrypt(_NONCE, data, None)
            except InvalidTag:
                raise RemoteProtocolError(
                    f"the shares of client {peer!r} are not sealed for this one and these rounds; somebody between "
                    "the clients may have changed them"
                ) from None
            if len(held[peer]) != _DEALT_BYTES:
                raise RemoteProtocolError(f"client {peer!r} has not dealt two shares for each round")
        self.restrict(clients)
        prepared.held, prepared.taken = held, True

    # --- a round ---

    @property
    def _next_round(self) -> int:
        return 0 if self._latest is None else int(self._latest.round) + 1

    def _check_clients(self, clients: tuple[str, ...]) -> None:
        super()._check_clients(clients)
        own = self._circle.holders(self.name, clients)
        if len(own) < self._circle.threshold(self.name):
            raise PolicyError(f"of the clients that hold shares of {self.name!r} only {len(own) - 1} are left")

    def check(self, round_id: bytes | int, survivors: Iterable[str], *, fresh: bool) -> None:
        """As for `PlainMasker`; a new round also must be prepared, and come after those before it."""
        super().check(round_id, survivors, fresh=fresh)
        self._prepared_for(round_id)

    def _prepared_for(self, round_id: bytes | int) -> _Prepared:
        prepared = self._prepared
        if (
            prepared is None
            or not prepared.taken
            or not isinstance(round_id, int)
            or not max(prepared.first, self._next_round - 1) <= round_id < prepared.first + ROUNDS
        ):
            raise RemoteProtocolError(f"no shares were dealt for round {round_id!r}, or it is over")
        return prepared

    def _apply(self, vector: Vector, round_id: bytes | int, clients: tuple[str, ...], about: bytes) -> Vector:
        prepared = self._prepared_for(round_id)
        terms = MaskTerms(self._transcript, round_id, clients, about)
        at = int(round_id) - prepared.first
        result, scratch = vector.copy(), np.empty_like(vector)
        for peer in (self.name, *self._circle.peers(self.name, clients)):
            secret = prepared.seeds[at] if peer == self.name else prepared.pair_keys[at][peer]
            terms.add(result, scratch, secret, self.name, peer)
        if self._latest is None or self._latest.round != round_id:
            self._latest, self._survivors = terms, None
        return result

    # --- after a round ---

    @property
    def asked(self) -> bytes:
        """What the latest round is about, of which its masks are made."""
        return b"" if self._latest is None else self._latest.about

    def confirm(self, round_id: int, survivors: tuple[str, ...]) -> dict[str, bytes]:
        """Confirm who has survived the latest round, and return what proves it to each of them.

        Raises
        ------
        RemoteProtocolError
            If another list was confirmed, or the round is not the latest.
        PolicyError
            If too few have survived.

        """
        terms = self._check_survivors(round_id, survivors)
        self.restrict(survivors)
        self._survivors = survivors
        return {peer: self._echo(terms, survivors, self.name, peer) for peer in survivors if peer != self.name}

    def tell(self, round_id: int, survivors: tuple[str, ...], echoes: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the shares that this client has of the secrets to be told.

        Parameters
        ----------
        round_id : int
            The latest round.
        survivors : tuple of str
            Who has survived it.
        echoes : mapping of str to bytes
            By which others have confirmed this list to this client.

        Raises
        ------
        RemoteProtocolError, PolicyError
            As for `confirm`, or if too few others have confirmed the list.

        """
        terms = self._check_survivors(round_id, survivors)
        if self._circle.is_echoed(survivors, terms.clients):
            for peer, echo in echoes.items():
                if peer == self.name or peer not in survivors:
                    raise RemoteProtocolError(f"{peer!r} does not confirm who has survived: it is no other survivor")
                if not bytes_eq(echo, self._echo(terms, survivors, peer, self.name)):
                    raise RemoteProtocolError(
                        f"client {peer!r} has not confirmed to this one who has survived the round: the clients were "
                        "told different things"
                    )
            if len(echoes) + 1 < self._circle.quorum:
                raise PolicyError(
                    f"{len(echoes) + 1} clients have confirmed who has survived the round, and this one tells its "
                    f"shares if {self._circle.quorum} have"
                )
        self.restrict(survivors)
        self._survivors = survivors
        prepared = self._prepared_for(round_id)
        return {
            name: prepared.share(name, round_id, _SEED if name in survivors else _ENVELOPE)
            for name in self._circle.held_by(self.name, terms.clients)
        }

    def _check_survivors(self, round_id: int, survivors: tuple[str, ...]) -> MaskTerms:
        terms = self._latest
        if terms is None or terms.round != round_id:
            raise RemoteProtocolError("the masks of the latest round alone can be taken off")
        if self.whole and survivors != terms.clients:
            raise PolicyError("this round spares nobody: its masks come off only if all its clients have survived it")
        if self._survivors is None:
            self._check_clients(survivors)
        elif self._survivors != survivors:
            raise RemoteProtocolError(
                "other survivors of this round were confirmed before: both secrets of a client are never told"
            )
        return terms

    # --- keys ---

    def _derive(self, secret: bytes, *terms: object, length: int = KEY_BYTES) -> bytes:
        return derive(TAG, secret, *terms, salt=self._transcript, length=length)

    def _sealing_key(self, first: int, clients: tuple[str, ...], dealer: str, holder: str) -> bytes:
        secret = self._secrets[holder if dealer == self.name else dealer]
        return self._derive(secret, "shares", first, clients, dealer, holder)

    def _echo(self, terms: MaskTerms, survivors: tuple[str, ...], sender: str, receiver: str) -> bytes:
        secret = self._secrets[receiver if sender == self.name else sender]
        said = (terms.round, terms.clients, terms.about, survivors, sender, receiver)
        return self._derive(secret, "survivors", *said, length=ECHO_BYTES)
