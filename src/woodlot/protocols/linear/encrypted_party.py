"""A party of a linear model whose residuals stay encrypted (``residuals="encrypted"``).

The label holder encrypts them at every step and opens masked slopes; any other party adds up ciphertexts to the
slopes by its own weights, and sees these and nothing else. See docs/protocol/linear.md.

States are those of `LinearParty`. StartEncrypted and OpenDescent take the place of StartLinear; AskSlopes, OpenSlopes
and DescendMasked that of Descend. Residuals in clear are taken in no state.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from woodlot.crypto import paillier
from woodlot.crypto.streams import KEY_BYTES, SecretStream
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.asked_keys import check_key_bits, need_library
from woodlot.protocols.core.handling import takes
from woodlot.protocols.linear import residual_messages as msg
from woodlot.protocols.linear.linear_messages import Advance, Descend, PartialScores, StartLinear
from woodlot.protocols.linear.linear_party import TRAINING, LinearParty, LinearState, check_shape
from woodlot.protocols.linear.residuals import ResidualDesk, ResidualSlots, SlopeSide

MAX_SCORES = 1 << 16
"""Scores of a row at most: beyond it a message of a malicious peer could fill the memory."""


class EncryptedLinearParty(LinearParty, refuses=(StartLinear, Descend)):
    """One party and its table, for one job whose residuals stay encrypted.

    Parameters
    ----------
    name, table, target
        As for `LinearParty`.
    job_secret : bytes, optional
        Source of everything random in this job: the same secret and the same messages give the same answers.

    """

    def __init__(self, *args: Any, job_secret: bytes | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._job_secret = secrets.token_bytes(KEY_BYTES) if job_secret is None else job_secret
        self._desk: ResidualDesk | None = None
        self._side: SlopeSide | None = None

    # --- the label holder ---

    @takes(msg.StartEncrypted, when=LinearState.opened)
    def _on_StartEncrypted(self, message: msg.StartEncrypted) -> msg.EncryptedStart:
        if self._descent is not None:  # else slopes could be opened again and again before the first step
            raise RemoteProtocolError("StartEncrypted is due once")
        check_key_bits(message.key_bits)
        n_rows, columns = self.table.n_rows, message.columns
        for party, n in columns.items():
            if n < 1 or party == self.name:
                raise RemoteProtocolError("StartEncrypted must tell how many columns each other party has")
            if n >= n_rows:
                raise DataError(
                    f"{party} has {n} columns of {n_rows} rows: so many slopes tell every residual, encrypted or not; "
                    "give more rows or fewer columns, or use residuals='clear'"
                )
        target, loss, descent, unit = self._begin(message)
        key_fields = {"modulus": np.empty(0, np.uint8), "noise": np.empty(0, np.uint8)}
        desk, ciphertexts = None, np.empty(0, np.uint8)
        if columns:
            need_library()
            stream = SecretStream.derived(self._job_secret, "key of residuals", message.key_bits)
            key = paillier.PrivateKey.generate(message.key_bits, stream)
            slots = ResidualSlots(n_rows, loss.n_scores, key.public.plaintext_bits)
            desk = ResidualDesk(key, slots, dict(columns), self._job_secret)
            ciphertexts = desk.encrypt(descent.residuals())
            key_fields = {
                "modulus": np.frombuffer(paillier.to_bytes(key.public.n), np.uint8),
                "noise": np.frombuffer(paillier.to_bytes(key.public.base), np.uint8),
            }
        self._weigh(target.weights)
        self._prepare(loss.n_scores, descent.penalty, loss.curvature)
        self._penalty = descent.penalty
        self._desk, self._descent, self._unit = desk, descent, unit
        return msg.EncryptedStart(
            classes=target.classes,
            n_scores=loss.n_scores,
            penalty=descent.penalty,
            curvature=loss.curvature,
            ciphertexts=ciphertexts,
            weights=target.weights,
            **key_fields,
        )

    @takes(msg.OpenSlopes, when=TRAINING)
    def _on_OpenSlopes(self, message: msg.OpenSlopes) -> msg.OpenedSlopes:
        if self._desk is None:
            raise RemoteProtocolError("OpenSlopes is for the label holder, after it has sent residuals")
        return msg.OpenedSlopes(slopes=self._desk.open(message.slopes))

    def _on_Advance(self, message: Advance) -> msg.EncryptedResiduals:
        descent, step, stuck = self._advance(message)
        ciphertexts = np.empty(0, np.uint8) if self._desk is None else self._desk.encrypt(descent.residuals())
        return msg.EncryptedResiduals(step=step, ciphertexts=ciphertexts, stuck=stuck)

    # --- the others ---

    @takes(msg.OpenDescent, when=LinearState.opened)
    def _on_OpenDescent(self, message: msg.OpenDescent) -> msg.DescentReady:
        self._opened()
        if self.target is not None or self._side is not None:
            raise RemoteProtocolError("OpenDescent is for parties without labels, and once")
        check_shape(message.penalty, message.curvature)
        if not 1 <= message.n_scores <= MAX_SCORES:
            raise RemoteProtocolError(f"OpenDescent speaks of {message.n_scores} scores")
        need_library()
        key = paillier.PaillierPublicKey(paillier.from_bytes(message.modulus), paillier.from_bytes(message.noise))
        slots = ResidualSlots(self.table.n_rows, message.n_scores, key.plaintext_bits)
        self._weigh(message.weights)
        self._side = SlopeSide(key, slots, self._matrix, self._job_secret)
        self._matrix = self._side.matrix
        self._prepare(message.n_scores, message.penalty, message.curvature)
        self._penalty = message.penalty
        return msg.DescentReady()

    @takes(msg.AskSlopes, when=TRAINING)
    def _on_AskSlopes(self, message: msg.AskSlopes) -> msg.MaskedSlopes:
        return msg.MaskedSlopes(ciphertexts=self._slopes().slopes(message.ciphertexts))

    @takes(msg.DescendMasked, when=TRAINING, then=LinearState.descending)
    def _on_DescendMasked(self, message: msg.DescendMasked) -> PartialScores:
        self._check_step(message.step)
        if self._descent is None:
            return self._descend(message.step, self._slopes().unmask(message.slopes))
        if len(message.slopes):
            raise RemoteProtocolError("the label holder has its residuals; DescendMasked brings it no slopes")
        return self._descend(message.step, self._matrix.T @ self._descent.residuals())

    def _slopes(self) -> SlopeSide:
        if self._side is None:
            raise RemoteProtocolError("no descent is open here")
        return self._side
