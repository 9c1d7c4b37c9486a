"""DT-PKC by the book: one `pow` after the other, formulas corrected, nothing prepared. The twin of ``woodlot.crypto``.

Ciphertexts are pairs, keys are numbers. The shares of the strong key are those of the paper's section 6: 1 modulo N^2,
not only modulo N, so half as long again.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

Pair = tuple[int, int]


@dataclass(frozen=True)
class Textbook:
    """One key centre, with everything that it knows."""

    p: int
    q: int
    root: int

    @property
    def n(self) -> int:
        return self.p * self.q

    @property
    def n2(self) -> int:
        return self.n**2

    @property
    def order(self) -> int:
        """lambda."""
        return (self.p - 1) * (self.q - 1) // 2

    @property
    def g(self) -> int:
        return pow(self.root, 2 * self.n, self.n2)

    @property
    def sigma(self) -> int:
        return self.order * pow(self.order, -1, self.n) % (self.order * self.n)

    def split_long(self) -> Pair:
        """Shares of a strong key that is 1 modulo N^2."""
        span = self.order * self.n2
        sigma = self.order * pow(self.order, -1, self.n2) % span
        first = secrets.randbelow(span)
        return first, (sigma - first) % span


@dataclass(frozen=True)
class Book:
    """The operations, for those who know the public part."""

    n: int
    g: int

    @property
    def n2(self) -> int:
        return self.n**2

    def draw(self) -> int:
        return 1 + secrets.randbelow(self.n // 4)

    def ell(self, x: int) -> int:
        return (x - 1) // self.n

    def signed(self, m: int) -> int:
        return m - self.n if m > self.n // 2 else m

    def encrypt(self, h: int, m: int, r: int | None = None) -> Pair:
        r = self.draw() if r is None else r
        return pow(h, r, self.n2) * (1 + m % self.n * self.n) % self.n2, pow(self.g, r, self.n2)

    def add(self, a: Pair, b: Pair) -> Pair:
        return a[0] * b[0] % self.n2, a[1] * b[1] % self.n2

    def scale(self, c: Pair, k: int) -> Pair:
        return pow(c[0], k, self.n2), pow(c[1], k, self.n2)

    def reencrypt(self, sk: int, c: Pair) -> Pair:
        return c[0] * pow(c[1], sk, self.n2) % self.n2, c[1]

    refresh = reencrypt  # the same formula, with a random number for the key

    def partial(self, sk: int, c: Pair) -> Pair:
        return c[0] * pow(pow(c[1], sk, self.n2), -1, self.n2) % self.n2, c[1]

    def decrypt(self, sk: int, c: Pair) -> int:
        return self.ell(self.partial(sk, c)[0])

    def open(self, first: int, second: int, c: Pair) -> int:
        return self.ell(pow(c[0], first, self.n2) * pow(c[0], second, self.n2) % self.n2)

    def cross_add(self, shares: Pair, h1: int, c1: Pair, h2: int, c2: Pair) -> Pair:
        a1, a2 = secrets.randbelow(self.n), secrets.randbelow(self.n)
        x, y = self.add(c1, self.encrypt(h1, a1)), self.add(c2, self.encrypt(h2, a2))
        total = (self.open(*shares, x) + self.open(*shares, y)) % self.n
        both = h1 * h2 % self.n2
        return self.add(self.encrypt(both, total), self.scale(self.encrypt(both, (a1 + a2) % self.n), self.n - 1))

    def less_or_equal(
        self, shares: Pair, hx: int, cx: Pair, hs: int, cs: Pair, coordinator: Pair, provider: Pair
    ) -> bool:
        """HoLT as the paper writes it, on [2 s + 1] and [2 x]: x < s + 1/2. Keys are pairs of secret and public."""
        left, right = self.scale(cx, 2), self.add(self.scale(cs, 2), self.encrypt(hs, 1))
        coin = secrets.randbits(1)
        if coin:
            beta = self.cross_add(shares, hx, left, hs, self.scale(right, self.n - 1))
        else:
            beta = self.cross_add(shares, hs, right, hx, self.scale(left, self.n - 1))
        beta = self.scale(beta, 1 + secrets.randbits(self.n.bit_length() // 4 - 2))
        told = int(self.open(*shares, beta) > self.n // 2)
        both = coordinator[1] * provider[1] % self.n2
        answer = self.encrypt(both, told)
        if not coin:
            answer = self.add(self.encrypt(both, 1), self.scale(answer, self.n - 1))
        return bool(self.decrypt(coordinator[0], self.partial(provider[0], answer)))
