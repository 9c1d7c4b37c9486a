"""The dealer of a hidden linear model: products of random numbers, which depend on lengths only.

A party's columns X are masked once, by U, which the dealer and this party derive from a key that they have agreed on;
the label holder has X - U. The residuals r of a step are masked by v, which the dealer and the label holder derive; the
party gets r - v. What is left of X'r is U'v, which only the dealer can compute. It gives it to the label holder under a
mask w that the party knows::

    label holder   (X - U)'r + (U'v - w)                to the party, with r - v
    party          that + U'(r - v) + w = X'r           its slopes

The dealer sees lengths, and how many steps there are. It must work together neither with the label holder, to whom it
could tell U, nor with a party, to whom it could tell v.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import Entropy, Signer, secret_bytes
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.linear import dealt_messages as msg
from woodlot.protocols.linear.dealt_keys import DealtKeys
from woodlot.protocols.linear.dealt_numbers import NUMBER_BYTES, Wide, masks_of, minus, products_of

MOST_BYTES = 1 << 29
"""The residuals of a step, at most."""


class ProductState(StrEnum):
    """Where the dealer stands."""

    idle = "idle"
    opened = "opened"
    dealing = "dealing"


class ProductDealer(MessageHandler):
    """The dealer, for one job.

    Parameters
    ----------
    name : str
        Its name in the job.
    entropy : Entropy
        Its secrets: the same for the same job, so that a job that is repeated is dealt the same numbers.
    job, signer, shared_secret
        As for `DealtKeys`.
    """

    def __init__(
        self,
        name: str,
        *,
        entropy: Entropy,
        job: str,
        signer: Signer | None = None,
        shared_secret: bytes | None = None,
    ) -> None:
        self.name = name
        self.state: ProductState = ProductState.idle
        self._keys = DealtKeys(name, job=job, entropy=entropy, signer=signer, shared_secret=shared_secret)
        self._with_leader = secret_bytes(entropy, "with the leader of a linear model")
        self._with: dict[str, bytes] = {}
        self._start: msg.StartProducts | None = None
        self._step = 0

    @takes(msg.OpenDealt, when=ProductState.idle, then=ProductState.opened)
    def _open(self, message: msg.OpenDealt) -> msg.DealtKey:
        return msg.DealtKey(introduction=self._keys.open(message))

    @takes(msg.StartProducts, when=ProductState.opened, then=ProductState.dealing)
    def _begin(self, message: msg.StartProducts) -> msg.ProductsReady:
        lengths = (message.n_rows, message.n_scores, *message.columns.values())
        if min(lengths) < 1 or message.n_rows * message.n_scores * NUMBER_BYTES > MOST_BYTES:
            raise RemoteProtocolError("StartProducts carries lengths out of range")
        keys = self._keys.agree(message.introductions)
        if set(keys) != set(message.columns):
            raise RemoteProtocolError("StartProducts must tell how many columns each other party has")
        self._with, self._start = keys, message
        return msg.ProductsReady(secret=self._with_leader)

    @takes(msg.DealProducts, when=ProductState.dealing)
    def _deal(self, message: msg.DealProducts) -> msg.DealtProducts:
        start = self._start
        if start is None or message.step != self._step or set(message.of_columns) != set(self._with):
            raise RemoteProtocolError("DealProducts must name the next step, and the columns of every other party")
        v = residual_masks(self._with_leader, message.step, message.nonce, start.n_rows, start.n_scores)
        dealt = {}
        for party, key in self._with.items():
            products = mask_products(key, message.of_columns[party], start.columns[party], v)
            dealt[party] = minus(products, slope_masks(key, message.step, message.nonce, products.shape[:2])).ravel()
        self._step += 1
        return msg.DealtProducts(products=dealt)


def residual_masks(secret: bytes, step: int, nonce: bytes, n_rows: int, n_scores: int) -> Wide:
    """The masks of a step's residuals: of the dealer and the label holder."""
    return masks_of(secret, "residuals", step, nonce, shape=(n_scores, n_rows))


def column_masks(key: bytes, nonce: bytes, column: int, n_rows: int) -> Wide:
    """The masks of one column: of the dealer and its party."""
    return masks_of(key, "column", nonce, column, shape=(1, n_rows))


def slope_masks(key: bytes, step: int, nonce: bytes, shape: tuple[int, ...]) -> Wide:
    """The masks of a step's dealt products: of the dealer and the party."""
    return masks_of(key, "slopes", step, nonce, shape=shape)


def mask_products(key: bytes, nonce: bytes, n_columns: int, right: Wide) -> Wide:
    """The masks of all columns times some vectors, column by column: the masks are never all in memory."""
    return np.stack([products_of(column_masks(key, nonce, j, right.shape[1]), right)[0] for j in range(n_columns)])
