"""The dealer of a hidden training: random numbers that depend on lengths only.

It gives the two servers what they need to shuffle rows in an order that neither knows, and it draws the rows of each
tree, since a server that knew the draws would have a fresh set of equations with every tree. It sees lengths. It must
not work together with either server.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import Entropy, Signer, secret_bytes
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.hidden.hidden_keys import HiddenKeys
from woodlot.protocols.hidden.shared_rows import RecordLayout, Segments, Words, stream, to_wire
from woodlot.trees.sampling import Bootstrap

MOST_BYTES = 1 << 29
"""What is dealt at once, at most, to each half of a shuffle: two of them fit a message."""


class DealerState(StrEnum):
    """Where the dealer stands."""

    idle = "idle"
    opened = "opened"
    dealing = "dealing"


class ShuffleDealer(MessageHandler):
    """The dealer, for one job.

    Parameters
    ----------
    name : str
        Its name in the job.
    entropy : Entropy
        Its secrets: the same for the same job, so that a job that is repeated is dealt the same numbers.
    draw_seed : int
        Seed of the rows that trees draw.
    job, signer, shared_secret
        As for `HiddenKeys`.
    """

    def __init__(
        self,
        name: str,
        *,
        entropy: Entropy,
        draw_seed: int,
        job: str,
        signer: Signer | None = None,
        shared_secret: bytes | None = None,
    ) -> None:
        self.name = name
        self.state: DealerState = DealerState.idle
        self._keys = HiddenKeys(name, job=job, entropy=entropy, signer=signer, shared_secret=shared_secret)
        self._with_leader = secret_bytes(entropy, "with the leader")
        self._with_server = b""
        self._draw_seed = draw_seed
        self._start: msg.StartDealer | None = None
        self._masks: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._next_tree = 0
        self._step = 0

    @takes(msg.OpenHidden, when=DealerState.idle, then=DealerState.opened)
    def _open(self, message: msg.OpenHidden) -> msg.DealerKey:
        return msg.DealerKey(introduction=self._keys.open(message))

    @takes(msg.StartDealer, when=DealerState.opened, then=DealerState.dealing)
    def _begin(self, message: msg.StartDealer) -> msg.DealerReady:
        if message.n_rows < 1 or not message.n_columns >= 1 or not 1 <= message.bits + message.width <= 64:
            raise RemoteProtocolError("StartDealer carries lengths out of range")
        if not 0 <= message.n_classes <= message.n_rows or (message.n_draws is not None and message.n_draws < 1):
            raise RemoteProtocolError("StartDealer carries a number of classes or draws out of range")
        self._with_server = self._keys.with_server(message.introductions)
        self._start = message
        masks = stream(self._with_leader, "labels", n=message.n_rows)
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
        sampling = Bootstrap(self._draw_seed, start.n_draws, None)
        words = np.empty((message.n_trees, start.n_rows, layout.dealt_fields), np.uint64)
        for k in range(message.n_trees):
            tree = message.first_tree + k
            words[k] = self._drawn(layout, sampling.counts(tree, start.n_rows).astype(np.uint64))
            words[k] -= draw_shares(self._with_server, layout, tree, start.n_rows)
        self._next_tree += message.n_trees
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

    @takes(msg.DealShuffle, when=DealerState.dealing)
    def _deal_shuffle(self, message: msg.DealShuffle) -> msg.DealtShuffle:
        layout = layout_of(self._started())
        xor, used = layout.of_records(whole_rows=message.whole_rows)
        segments = Segments(self._step, message.sizes.astype(np.int64), xor)
        if segments.n * int(used.sum()) > MOST_BYTES:
            raise RemoteProtocolError(f"DealShuffle asks for {segments.n:,} records at once; ask for fewer")
        first, second = segments.deal(self._with_leader, self._with_server)
        self._step += 1
        return msg.DealtShuffle(first=to_wire(first, used), second=to_wire(second, used))


def layout_of(start: msg.StartDealer | msg.StartServer) -> RecordLayout:
    """The layout of the records that a start tells."""
    return RecordLayout(start.n_classes, start.width, start.bits, start.n_columns)


def draw_shares(with_server: bytes, layout: RecordLayout, tree: int, n_rows: int) -> Words:
    """The second server's share of one tree's draws: it and the dealer derive it."""
    return stream(with_server, "draws", tree, n=n_rows * layout.dealt_fields).reshape(n_rows, layout.dealt_fields)
