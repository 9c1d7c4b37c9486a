"""HoAdd: sums of numbers under different keys. Comparisons do without it; it is for whoever must add."""

from __future__ import annotations

from typing import Any

from woodlot.crypto.dtpkc import Ciphertext, PublicKey, StrongShare
from woodlot.crypto.streams import SecretStream


class CrossAddition:
    """HoAdd: the sum of numbers under different keys, by the coordinator with the helper.

    Parameters
    ----------
    share : StrongShare
        The coordinator's.
    stream : SecretStream
        For the masks, which are used once.

    """

    def __init__(self, share: StrongShare, stream: SecretStream) -> None:
        self.group = share.group
        self._share = share
        self._stream = stream
        self._mask = 0

    def ask(self, first: Ciphertext, second: Ciphertext) -> tuple[Any, Any]:
        """What goes to the helper: the masked sum's C1, and the coordinator's half of its decryption.

        Strong decryption erases every key, so the C1 of ciphertexts under different keys multiply. The random power
        of g keeps the helper from recognising them.
        """
        group = self.group
        group.check(first, second)
        self._mask = self._stream.below(int(group.N))
        blind = group.tables.power(group.g, group.draw(self._stream))
        masked = first.c1 * second.c1 % group.N2 * (1 + self._mask * group.N) % group.N2 * blind % group.N2
        return masked, self._share.power([masked])[0]

    @staticmethod
    def help(share: StrongShare, asked: tuple[Any, Any], key: PublicKey, source: SecretStream) -> Ciphertext:
        """The helper: opens the masked sum and encrypts it under the product of both keys."""
        return key.encrypt(share.open([asked[0]], [asked[1]])[0], source)

    def finish(self, answer: Ciphertext) -> Ciphertext:
        """Take the mask off."""
        group = self.group
        group.check(answer)
        return Ciphertext(group, answer.c1 * (1 - self._mask * group.N) % group.N2, answer.c2)
