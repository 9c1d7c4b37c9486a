"""The dealer of a hidden training: random numbers that depend on lengths only.

It gives the two servers what they need to shuffle rows in an order that neither knows, and it draws the rows of each
tree, since a server that knew the draws would have a fresh set of equations with every tree. It sees lengths. It must
not work together with either server.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import Entropy, Signer, secret_bytes
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.hidden.hidden_keys import HiddenKeys
from woodlot.protocols.hidden.shared_rows import RecordLayout, Segments, Words, stream, to_wire
from woodlot.protocols.hidden.told_so_far import ToldSoFar, bond
from woodlot.trees.sampling import Bootstrap

MOST_BYTES = 1 << 29
"""What is dealt at once, at most, to each half of a shuffle: two of them fit a message."""


Draws = Callable[[int, int, int], NDArray[Any]]
"""From a tree and the numbers of rows and draws to how often each row is drawn."""


def open_draws(seed: int) -> Draws:
    """The draws of an open training with this seed: for one process, where forests are to be compared."""
    return lambda tree, n_rows, n_draws: Bootstrap(seed, n_draws, None).counts(tree, n_rows)


def secret_draws(secret: bytes) -> Draws:
    """Draws that only who has the secret can tell, also from the draws of other trees."""

    def draw(tree: int, n_rows: int, n_draws: int) -> NDArray[Any]:
        words = stream(secret, "drawn rows", tree, n_rows, n_draws, n=n_draws)
        return np.bincount((words % np.uint64(n_rows)).astype(np.int64), minlength=n_rows)

    return draw


class DealerState(StrEnum):
    """Where the dealer stands."""

    idle = "idle"
    opened = "opened"
    dealing = "dealing"
    halfway = "halfway"


class ShuffleDealer(MessageHandler):
    """The dealer, for one job.

    Parameters
    ----------
    name : str
        Its name in the job.
    entropy : Entropy
        Its secrets: the same for the same job, so that a job that is repeated is dealt the same numbers.
    draws : Draws
        Which rows trees draw.
    job, signer, shared_secret
        As for `HiddenKeys`.
    """

    def __init__(
        self,
        name: str,
        *,
        entropy: Entropy,
        draws: Draws,
        job: str,
        signer: Signer | None = None,
        shared_secret: bytes | None = None,
    ) -> None:
        self.name = name
        self.state: DealerState = DealerState.idle
        self._keys = HiddenKeys(name, job=job, entropy=entropy, signer=signer, shared_secret=shared_secret)
        self._with_leader = secret_bytes(entropy, "with the leader")
        self._with_server = b""
        self._draws = draws
        self._start: msg.StartDealer | None = None
        self._masks: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._next_tree = 0
        self._step = 0
        self._asked = ToldSoFar()
        self._segments: Segments | None = None
        self._used: NDArray[np.int64] = np.empty(0, np.int64)

    @takes(msg.OpenHidden, when=DealerState.idle, then=DealerState.opened)
    def _open(self, message: msg.OpenHidden) -> msg.DealerKey:
        introduction = self._keys.open(message)
        self._asked = self._asked.after(message)
        return msg.DealerKey(introduction=introduction)

    @takes(msg.StartDealer, when=DealerState.opened, then=DealerState.dealing)
    def _begin(self, message: msg.StartDealer) -> msg.DealerReady:
        if message.n_rows < 1 or not message.n_columns >= 1 or not 1 <= message.bits + message.width <= 64:
            raise RemoteProtocolError("StartDealer carries lengths out of range")
        if not 0 <= message.n_classes <= message.n_rows or (message.n_draws is not None and message.n_draws < 1):
            raise RemoteProtocolError("StartDealer carries a number of classes or draws out of range")
        self._with_server = self._keys.with_server(message.introductions)
        self._start = message
        self._asked = self._asked.after(message)
        masks = label_masks(self._with_leader, message.salt, message.n_rows)
        self._masks = masks % np.uint64(message.n_classes) if message.n_classes else masks
        return msg.DealerReady(secret=self._with_leader)

    def _started(self) -> msg.StartDealer:
        if self._start is None:
            raise RemoteProtocolError("nothing is dealt before the training has started")
        return self._start

    @takes(msg.DealDraws, when=DealerState.dealing)
    def _deal_draws(self, message: msg.DealDraws) -> msg.DealtDraws:
        start = self._started()
        if start.n_draws is None or message.first_tree != self._next_tree or message.n_trees < 1:
            raise RemoteProtocolError("DealDraws must name the next trees, of a training that draws rows")
        layout = layout_of(start)
        if 8 * layout.dealt_fields * start.n_rows * message.n_trees > MOST_BYTES:
            raise RemoteProtocolError(f"DealDraws asks for {message.n_trees:,} trees at once; ask for fewer")
        asked = self._asked.after(message)
        bound = bond(message.bound, asked.digest)
        words = np.empty((message.n_trees, start.n_rows, layout.dealt_fields), np.uint64)
        for k in range(message.n_trees):
            tree = message.first_tree + k
            words[k] = self._drawn(layout, self._draws(tree, start.n_rows, start.n_draws).astype(np.uint64))
            words[k] -= draw_shares(self._with_server, layout, tree, start.n_rows, bound)
        self._next_tree += message.n_trees
        self._asked = asked
        return msg.DealtDraws(words=words.ravel())

    def _drawn(self, layout: RecordLayout, counts: NDArray[np.uint64]) -> Words:
        """What is shared of one tree's draws; see ``kernels.shares.spread_draws``."""
        out = np.zeros((len(counts), layout.dealt_fields), np.uint64)
        out[:, 0] = counts > 0
        if layout.n_classes:
            out[np.arange(len(counts)), 1 + self._masks.astype(np.int64)] = counts
        else:
            out[:, 1] = counts
            out[:, 2] = counts * self._masks
            out[:, 3] = out[:, 2] * self._masks
        return out

    @takes(msg.DealShuffle, when=DealerState.dealing, then=DealerState.halfway)
    def _deal_shuffle(self, message: msg.DealShuffle) -> msg.DealtShuffle:
        layout = layout_of(self._started())
        xor, used = layout.of_records(whole_rows=message.whole_rows)
        asked = self._asked.after(message)
        segments = Segments(self._step, message.sizes.astype(np.int64), xor, bond(message.bound, asked.digest))
        if segments.n * int(used.sum()) > MOST_BYTES:
            raise RemoteProtocolError(f"DealShuffle asks for {segments.n:,} records at once; ask for fewer")
        first = to_wire(segments.deal_first(self._with_leader, self._with_server), used)
        self._segments, self._used, self._asked = segments, used, asked
        return msg.DealtShuffle(first=first)

    @takes(msg.DealSecond, when=DealerState.halfway, then=DealerState.dealing)
    def _deal_second(self, message: msg.DealSecond) -> msg.DealtSecond:
        if self._segments is None:
            raise RemoteProtocolError("the first half of the shuffle has not been dealt")
        asked = self._asked.after(message)
        second = self._segments.second_half(bond(message.bound, asked.digest))
        words = self._segments.deal_second(self._with_leader, self._with_server, second)
        self._asked, self._segments = asked, None
        self._step += 1
        return msg.DealtSecond(second=to_wire(words, self._used))


def layout_of(start: msg.StartDealer | msg.StartServer) -> RecordLayout:
    """The layout of the records that a start tells."""
    return RecordLayout(start.n_classes, start.width, start.bits, start.n_columns)


def draw_shares(with_server: bytes, layout: RecordLayout, tree: int, n_rows: int, bound: bytes) -> Words:
    """The second server's share of one tree's draws: it and the dealer derive it."""
    words = stream(with_server, "draws", tree, n_rows, layout.dealt_fields, bound, n=n_rows * layout.dealt_fields)
    return words.reshape(n_rows, layout.dealt_fields)


def label_masks(with_leader: bytes, salt: bytes, n_rows: int) -> Words:
    """The masks of labels, which the label holder and the dealer derive."""
    return stream(with_leader, "labels", salt, n=n_rows)
