"""A party of a linear model whose residuals and columns stay hidden (``protection="hidden"``).

No two of the label holder, the dealer and another party work together: that is what it rests on. The label holder masks
its residuals at every step; any other party masks its columns once, and gets slopes by its own weights, which nobody
else sees (`product_dealer` has the arithmetic). Partial scores are masked so that the label holder can read their sum.

States are those of `LinearParty`. At the label holder StartHidden takes the place of StartLinear, then TakeMasked,
MaskSlopes and DescendOwn follow. At the others OpenDealt and OpenDescent come first, then AskColumns until all columns
were sent, then DescendHidden at every step. Residuals in clear are taken in no state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, LocalProtocolError, RemoteProtocolError
from woodlot.privacy.derivation import derive_key
from woodlot.protocols.core.agreement import KEY_BYTES, Entropy, Signer, derive, secret_bytes
from woodlot.protocols.core.digests import digest_of
from woodlot.protocols.core.handling import takes
from woodlot.protocols.linear import dealt_messages as msg
from woodlot.protocols.linear.dealt_keys import TAG, DealtKeys
from woodlot.protocols.linear.dealt_numbers import (
    WholeColumns,
    Wide,
    from_whole,
    masks_of,
    minus,
    plus,
    product_numbers,
    products_of,
    read_wide,
    residual_numbers,
    score_numbers,
)
from woodlot.protocols.linear.linear_messages import Advance, AskScores, Descend, PartialScores, StartLinear
from woodlot.protocols.linear.linear_party import TRAINING, LinearParty, LinearState, check_shape
from woodlot.protocols.linear.product_dealer import column_masks, mask_products, residual_masks, slope_masks

MAX_SCORES = 1 << 16
"""Scores of a row at most: beyond it a message of a malicious peer could fill the memory."""
MOST_AT_ONCE = 1 << 28
"""Bytes of columns that a party sends at once, at most, unless one column is longer."""


class HiddenLinearParty(LinearParty, refuses=(StartLinear, Descend, AskScores)):
    """One party and its table, for one job whose residuals stay hidden.

    A fitted model is used in another job: here AskScores would tell this party's own scores of the training rows.

    Parameters
    ----------
    name, table, target
        As for `LinearParty`.
    entropy : Entropy
        Its secrets: the same for the same job and data.
    job, signer, shared_secret
        As for `DealtKeys`.

    """

    def __init__(
        self,
        *args: Any,
        entropy: Entropy,
        job: str,
        signer: Signer | None = None,
        shared_secret: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._keys = DealtKeys(self.name, job=job, entropy=entropy, signer=signer, shared_secret=shared_secret)
        self._own_secret = derive(TAG, secret_bytes(entropy, "own secret"), self.name, length=KEY_BYTES)
        self._n_steps = 0
        self._desk: _SlopeDesk | None = None
        self._opening: msg.OpenDealt | None = None
        self._side: _ColumnSide | None = None
        self._told = b""
        """Digest of all that every party without labels was told so far: scores follow from it, and from columns."""
        self._tol = 0.0

    # --- the label holder ---

    @takes(msg.StartHidden, when=LinearState.opened)
    def _on_StartHidden(self, message: msg.StartHidden) -> msg.HiddenStart:
        if self._descent is not None:
            raise RemoteProtocolError("StartHidden may be sent only once")
        n_rows, columns = self.table.n_rows, message.columns
        for party, n in columns.items():
            if n < 1 or party == self.name:
                raise RemoteProtocolError("StartHidden must tell how many columns each other party has")
            if n >= n_rows:
                raise DataError(
                    f"{party} has {n} columns of {n_rows} rows: so many slopes tell every residual, hidden or not; "
                    "give more rows or fewer columns, or use protection='open'"
                )
        target, loss, descent, unit = self._begin(message)
        self._weigh(target.weights)
        self._prepare(loss.n_scores, descent.penalty, loss.curvature)
        self._penalty = descent.penalty
        self._descent, self._unit = descent, unit
        self._desk = _SlopeDesk(dict(columns), n_rows, loss.n_scores)
        return msg.HiddenStart(
            classes=target.classes,
            n_scores=loss.n_scores,
            penalty=descent.penalty,
            curvature=loss.curvature,
            nonce=self._nonce(),
            weights=target.weights,
        )

    def _nonce(self) -> bytes:
        """Like no other of other residuals, and the same where the same step is repeated."""
        if self._descent is None:
            raise RemoteProtocolError("no descent has started here")
        whole = residual_numbers(self._descent.residuals())
        return derive_key(self._own_secret, "nonce", str(self._n_steps).encode(), whole.tobytes())

    def _holder(self) -> _SlopeDesk:
        if self._desk is None:
            raise RemoteProtocolError("this is for the label holder, after its descent has started")
        return self._desk

    @takes(msg.TakeMasked, when=LinearState.opened)
    def _on_TakeMasked(self, message: msg.TakeMasked) -> msg.MaskedTaken:
        self._holder().take(message)
        return msg.MaskedTaken()

    @takes(msg.MaskSlopes, when=TRAINING)
    def _on_MaskSlopes(self, message: msg.MaskSlopes) -> msg.SlopeShares:
        desk, nonce = self._holder(), self._nonce()
        if self._descent is None:
            raise RemoteProtocolError("no descent has started here")
        return desk.mask(residual_numbers(self._descent.residuals()), self._n_steps, nonce, message.products)

    @takes(msg.DescendOwn, when=TRAINING, then=LinearState.descending)
    def _on_DescendOwn(self, message: msg.DescendOwn) -> PartialScores:
        self._holder()
        self._check_step(message.step)
        if self._descent is None:
            raise RemoteProtocolError("no descent has started here")
        return self._descend(message.step, self._matrix.T @ self._descent.residuals())

    def _on_Advance(self, message: Advance) -> msg.HiddenResiduals:
        _, step, stuck = self._advance(message)
        self._n_steps += 1
        return msg.HiddenResiduals(step=step, nonce=self._nonce(), stuck=stuck)

    # --- the others ---

    @takes(msg.OpenDealt, when=LinearState.opened)
    def _on_OpenDealt(self, message: msg.OpenDealt) -> msg.DealtKey:
        self._opened()
        if self.target is not None or self._opening is not None:
            raise RemoteProtocolError("OpenDealt is for parties without labels, and once")
        reply = msg.DealtKey(introduction=self._keys.open(message))
        self._opening = message
        return reply

    @takes(msg.OpenDescent, when=LinearState.opened)
    def _on_OpenDescent(self, message: msg.OpenDescent) -> msg.DescentReady:
        if self._opening is None or self._side is not None:
            raise RemoteProtocolError("OpenDescent may be sent only once, after OpenDealt")
        check_shape(message.penalty, message.curvature)
        if not 1 <= message.n_scores <= MAX_SCORES or not 0 <= message.tol < np.inf:
            raise RemoteProtocolError(f"OpenDescent carries {message.n_scores} scores or a tolerance that cannot be")
        keys = self._keys.agree(message.introductions)
        self._weigh(message.weights)
        columns = WholeColumns.of(self._matrix)
        nonce = derive_key(self._own_secret, "columns", columns.numbers.tobytes(), columns.exponents.tobytes())
        self._side = _ColumnSide(self.name, columns, keys, self._opening.dealer, nonce)
        self._told = digest_of(message)
        self._matrix = columns.matrix
        self._prepare(message.n_scores, message.penalty, message.curvature)
        self._penalty, self._tol = message.penalty, message.tol
        return msg.DescentReady(nonce=nonce)

    @takes(msg.AskColumns, when=LinearState.opened)
    def _on_AskColumns(self, message: msg.AskColumns) -> msg.MaskedColumns:
        return msg.MaskedColumns(columns=self._columns_side().masked(message.first, message.n_columns))

    def _columns_side(self) -> _ColumnSide:
        if self._side is None:
            raise RemoteProtocolError("this is for parties without labels, after OpenDescent")
        return self._side

    @takes(msg.DescendHidden, when=TRAINING, then=LinearState.descending)
    def _on_DescendHidden(self, message: msg.DescendHidden) -> msg.MaskedScores:
        side = self._columns_side()
        self._check_step(message.step)
        if set(message.asked) != side.others | {self.name} or message.asked[self.name] != asked_digest(message):
            raise RemoteProtocolError("DescendHidden does not say what it asks of each party")
        slopes = side.slopes(message, self._n_steps, self._weights.shape[1])
        before = self._weights, list(self._directions)
        told = self._descend(message.step, slopes)
        try:
            numbers = {"scores": score_numbers(told.scores), "products": product_numbers(told.products)}
        except LocalProtocolError:
            self._weights, self._directions = before
            raise
        asked = b"".join(message.asked[party] for party in sorted(message.asked))
        self._told = hashlib.sha256(self._told + asked).digest()
        hidden = side.hide(self._n_steps, self._told, numbers)
        self._n_steps += 1
        return msg.MaskedScores(**hidden, settled=told.steepest <= self._tol)


def asked_digest(message: msg.DescendHidden) -> bytes:
    """What a DescendHidden asks of its party."""
    return digest_of(message, leaving_out=dict)


class _SlopeDesk:
    """The label holder's: it masks residuals, and makes its share of the others' slopes from their masked columns."""

    def __init__(self, n_columns: dict[str, int], n_rows: int, n_scores: int) -> None:
        self._n_columns, self._shape = n_columns, (n_rows, n_scores)
        self._secret = b""
        self._columns: dict[str, Wide] = {}

    def take(self, message: msg.TakeMasked) -> None:
        """Keep the masked columns, once."""
        if self._columns or set(message.columns) != set(self._n_columns) or len(message.secret) < KEY_BYTES:
            raise RemoteProtocolError("TakeMasked may be sent only once, with the masked columns of all others")
        self._columns = {
            party: read_wide(words, (self._n_columns[party], self._shape[0]), f"the columns of {party}")
            for party, words in message.columns.items()
        }
        self._secret = message.secret

    def mask(
        self, residuals: Wide, step: int, nonce: bytes, products: Mapping[str, NDArray[np.uint64]]
    ) -> msg.SlopeShares:
        """What the others get: the masked residuals, and what only masked columns and the dealer can tell."""
        if set(products) != set(self._columns) or not self._columns:
            raise RemoteProtocolError("MaskSlopes must follow TakeMasked, with the dealt numbers of all others")
        n_rows, n_scores = self._shape
        shares = {}
        for party, columns in self._columns.items():
            dealt = read_wide(products[party], (len(columns), n_scores), f"what was dealt for {party}")
            shares[party] = plus(products_of(columns, residuals), dealt).ravel()
        masked = minus(residuals, residual_masks(self._secret, step, nonce, n_rows, n_scores))
        return msg.SlopeShares(residuals=masked.ravel(), shares=shares)


class _ColumnSide:
    """Any other party's: its columns under masks, slopes by its own weights, and scores under masks that cancel out."""

    def __init__(self, name: str, columns: WholeColumns, keys: Mapping[str, bytes], dealer: str, nonce: bytes) -> None:
        self._name, self._columns, self._nonce = name, columns, nonce
        self._with_dealer = keys[dealer]
        self._peers = {other: key for other, key in keys.items() if other != dealer}
        self._sent = 0

    @property
    def others(self) -> set[str]:
        """The other parties without labels."""
        return set(self._peers)

    def masked(self, first: int, n: int) -> NDArray[np.uint64]:
        """The next columns under masks that the dealer can derive."""
        numbers = self._columns.numbers
        if first != self._sent or not 1 <= n <= len(numbers) - first:
            raise RemoteProtocolError("AskColumns must name the next columns, each once")
        found = [
            minus(from_whole(numbers[j])[None], column_masks(self._with_dealer, self._nonce, j, numbers.shape[1]))
            for j in range(first, first + n)
        ]
        self._sent += n
        return np.concatenate(found).ravel()

    def slopes(self, message: msg.DescendHidden, step: int, n_scores: int) -> NDArray[np.float64]:
        """Slopes by column and score."""
        n_columns, n_rows = self._columns.numbers.shape
        if self._sent < n_columns:
            raise RemoteProtocolError("Unexpected DescendHidden; expected after all columns were asked for")
        residuals = read_wide(message.residuals, (n_scores, n_rows), "residuals")
        share = read_wide(message.share, (n_columns, n_scores), "a share of the slopes")
        own = mask_products(self._with_dealer, self._nonce, n_columns, residuals)
        masks = slope_masks(self._with_dealer, step, message.nonce, (n_columns, n_scores))
        return self._columns.slopes(plus(plus(share, own), masks))

    def hide(self, step: int, bound: bytes, numbers: Mapping[str, Wide]) -> dict[str, NDArray[np.uint64]]:
        """Numbers of which the label holder can read the sum over all parties."""
        hidden = {}
        for what, own in numbers.items():
            total = own
            for other, key in self._peers.items():
                masks = masks_of(key, what, step, bound, shape=own.shape[:-1])
                total = plus(total, masks) if self._name < other else minus(total, masks)
            hidden[what] = total.ravel()
        return hidden
