"""A party of a vertical forest whose labels are encrypted (``labels="encrypted"``).

The label holder encrypts its labels and judges the others' splits; it searches its own columns in clear. Any
other party sums ciphertexts, and grows trees of which it is told the winners. See docs/protocol/encrypted-labels.md.

States are those of `VerticalParty`. In *opened*, EncryptLabels (label holder) or TakeLabels (others) come before
StartBlind. In *growing*, a level has two steps more: ScoreSums at the label holder and ResolveTies at the others,
before ApplySplits. Everything random follows from the job's secret and the digest of all messages so far
(``_history``). A refused message is taken out of the digest again, so that it leaves nothing behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto import paillier
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.asked_keys import check_key_bits, need_library
from woodlot.protocols.core.bits import smallest_unsigned, unpack
from woodlot.protocols.core.digests import digest_of
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical import blind_messages as msg
from woodlot.protocols.vertical.blind_labels import LabelDesk, Slots
from woodlot.protocols.vertical.blind_proof import LabelVoucher
from woodlot.protocols.vertical.blind_sums import BlindSide, EncryptedRows
from woodlot.protocols.vertical.forest_messages import (
    OpenTraining,
    PlantTrees,
    Ready,
    ShareLabels,
    StartForest,
    TableSummary,
)
from woodlot.protocols.vertical.party import LEVEL, TrainingState, VerticalParty
from woodlot.protocols.vertical.start import check_growth, rules_of, sampling_of
from woodlot.trees.blind import BlindGrower
from woodlot.trees.grow import Grower
from woodlot.trees.rules import entropy_scale
from woodlot.trees.sampling import Bootstrap


class BlindParty(VerticalParty, refuses=(ShareLabels, StartForest)):
    """One party and its table, for one job whose labels stay encrypted. Parameters as for `VerticalParty`, and

    Parameters
    ----------
    voucher : LabelVoucher
        How it knows the label holder's key, or is known as the label holder.
    others : collection of str, optional
        The other parties as they were ordered: sums are scored of no others. By default of any.

    """

    _desk: LabelDesk | None = None
    _side: BlindSide | None = None
    _trees: range = range(0)
    _history: bytes = b""

    def __init__(self, *args: Any, voucher: LabelVoucher, others: Collection[str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._voucher = voucher
        self._others = others

    def handle(self, message: Message) -> Message:
        """Answer one message; one that the state does not allow is refused and changes nothing."""
        before = self._history
        # what is secret and random follows from all that was asked: it is never used for two different things
        self._history = hashlib.sha256(before + digest_of(message)).digest()
        try:
            return super().handle(message)
        except BaseException:
            self._history = before
            raise

    # --- before the first tree ---

    def _on_OpenTraining(self, message: OpenTraining) -> TableSummary:
        if message.max_bins is None:
            raise RemoteProtocolError("a training with encrypted labels needs bins")
        reply = super()._on_OpenTraining(message)
        self._desk, self._side = None, None
        return reply

    @takes(msg.EncryptLabels, when=TrainingState.opened)
    def _on_EncryptLabels(self, message: msg.EncryptLabels) -> msg.EncryptedLabels:
        target = self._labels_asked(message.task)
        check_key_bits(message.key_bits)
        need_library()
        weights, factor = target.integer_weights(False, ())
        draws = self._draws(message, weights, factor)
        tree_weight = Bootstrap(0 if message.bootstrap else None, draws, weights).tree_weight(self.table.n_rows)
        coded, unit = self._coded(target, weights, message.seed)
        self._shared_weights, self._shared_draws = weights, draws
        stream = SecretStream.derived(self._job_secret, "labels", self._history, tree_weight, coded.tobytes())
        key = paillier.PrivateKey.generate(message.key_bits, stream) if message.others else None
        if target.classes:
            slots = Slots.of_classes(len(target.classes), tree_weight, message.key_bits - 1)
        else:
            slots = Slots.of_targets(coded, tree_weight)
        self._desk = LabelDesk(coded, slots, key, self.n_jobs)
        encrypted = self._desk.encrypt(stream)
        return msg.EncryptedLabels(
            **encrypted,
            **self._voucher.vouch(encrypted),
            weights=None if weights is None else smallest_unsigned(weights),
            weight_factor=factor,
            classes=target.classes,
            unit=unit if message.reveal_unit else 1.0,
        )

    @takes(msg.TakeLabels, when=TrainingState.opened)
    def _on_TakeLabels(self, message: msg.TakeLabels) -> Ready:
        if self.target is not None:
            raise RemoteProtocolError("the label holder has its labels; TakeLabels is for the others")
        if self._codes is not None and self._codes.categorical.any():
            raise DataError(
                "it has columns of categories, whose order would come from the labels; labels='encrypted' takes them "
                "at the label holder only: give them as numbers, leave them out, or use labels='shared'"
            )
        need_library()
        self._voucher.check(message)
        self._side = BlindSide(self.name, EncryptedRows(message, self.table.n_rows), self._job_secret)
        return Ready()

    @takes(msg.StartBlind, when=TrainingState.opened, then=TrainingState.started)
    def _on_StartBlind(self, message: msg.StartBlind) -> Ready:
        check_growth(message, self.table.n_rows)
        self._check_own_weights(message)
        weight = sampling_of(message).tree_weight(self.table.n_rows)
        if message.balance:
            raise RemoteProtocolError("StartBlind asks for weights that only labels can tell")
        if self._desk is not None:
            slots = self._desk.slots
            if message.n_classes != slots.n_classes or weight.bit_length() > slots.slot_bits:
                raise RemoteProtocolError("StartBlind does not fit the labels that this party has encrypted")
            self._labels = self._desk.labels
        elif self._side is not None:
            self._side.rows.check_weight(weight)
        else:
            raise RemoteProtocolError("Unexpected StartBlind; expected after EncryptLabels or TakeLabels")
        self._start = message
        return Ready()

    # --- the label holder ---

    def _on_PlantTrees(self, message: PlantTrees) -> Message:
        desk = self._holder_desk()
        reply = super()._on_PlantTrees(message)
        desk.plant(range(message.first_tree, message.first_tree + message.n_trees))
        return reply

    @takes(msg.ScoreSums, when=TrainingState.growing)
    def _on_ScoreSums(self, message: msg.ScoreSums) -> msg.SumScores:
        desk, grower = self._holder_desk(), self._growing()
        if self._start is None:
            raise RemoteProtocolError("Unexpected ScoreSums; expected after StartBlind")
        # each name has a score told at every node: who could invent names could ask as often
        if self._others is not None and not set(message.envelopes) <= set(self._others):
            raise RemoteProtocolError("ScoreSums carries sums of a name that is not another party of this training")
        return desk.score(message, grower, entropy_scale(sampling_of(self._start), self.table.n_rows))

    def _holder_desk(self) -> LabelDesk:
        if self._desk is None:
            raise RemoteProtocolError("this is for the label holder; this party has encrypted no labels")
        return self._desk

    # --- the others ---

    @takes(msg.PlantBlind, when=(TrainingState.started, TrainingState.trained), then=TrainingState.growing)
    def _on_PlantBlind(self, message: msg.PlantBlind) -> msg.BlindSums:
        n = message.n_trees
        if message.first_tree < 0 or n < 1 or len(message.candidates) != n:
            raise RemoteProtocolError("PlantBlind must carry one number of candidates per tree")
        if self._side is None or self._codes is None or self._start is None:
            raise RemoteProtocolError("PlantBlind is for parties with encrypted labels")
        is_open = unpack(message.is_open, n, "open roots").astype(bool)
        trees = range(message.first_tree, message.first_tree + n)
        grower = BlindGrower(
            self._codes,
            self.feature_keys,
            rules_of(self._start),
            sampling_of(self._start),
            self._start.order_seed,
            trees,
            self.n_jobs,
            is_open,
        )
        if (grower.end - grower.start < max(grower.rules.min_samples_split, 2 * grower.rules.min_samples_leaf)).any():
            raise RemoteProtocolError(_TOO_SMALL.format("PlantBlind"))
        self._take_root(grower)
        self._trees = trees
        return self._sums(self._side, grower, message.candidates)

    def _sums(self, side: BlindSide, grower: BlindGrower, candidates: NDArray[Any]) -> msg.BlindSums:
        counts = self._own_candidates(candidates, grower.is_open)
        return side.sums(grower, self._trees, counts, self._history)

    @takes(msg.GrowBlind, when=LEVEL, then=TrainingState.growing)
    def _on_GrowBlind(self, message: msg.GrowBlind) -> msg.BlindSums:
        side, grower = self._blind()
        is_split, flags, sides = self._level(grower, message)
        n_new = 2 * int(is_split.sum())
        is_open = unpack(message.is_open, n_new, "open nodes").astype(bool)
        if len(message.candidates) != n_new:
            raise RemoteProtocolError("GrowBlind must carry one number of candidates per new node")
        if (is_open & ~grower.rules.may_split(sides, grower.skeleton.depth + 1)).any():
            raise RemoteProtocolError(_TOO_SMALL.format("GrowBlind"))
        grower.expect(is_open)
        grower.split(is_split, flags)
        return self._sums(side, grower, message.candidates)

    @takes(msg.ResolveTies, when=TrainingState.growing)
    def _on_ResolveTies(self, message: msg.ResolveTies) -> msg.ResolvedTies:
        _, grower = self._blind()
        n_ties, ties, n_cuts = message.n_ties.astype(np.int64), message.ties.astype(np.int64), grower.n_cuts()
        if len(n_ties) != len(n_cuts) or int(n_ties.sum()) != len(ties) or (ties >= np.repeat(n_cuts, n_ties)).any():
            raise RemoteProtocolError("ResolveTies names splits that this party has not told of")
        return msg.ResolvedTies(feature=smallest_unsigned(grower.choose(n_ties, ties) + 1))

    def _blind(self) -> tuple[BlindSide, BlindGrower]:
        if self._side is None or not isinstance(self._grower, BlindGrower):
            raise RemoteProtocolError("this is for parties with encrypted labels, whose trees are growing")
        return self._side, self._grower

    def _plant(self, trees: Sequence[int]) -> Grower:
        if self._desk is None:
            raise RemoteProtocolError("trees without labels are planted by PlantBlind")
        return super()._plant(trees)


_TOO_SMALL = "{} opens a node that this training's rules make a leaf: it is too small or too deep to be split"
