"""DT-PKC against its textbook twin, in one run and on one thread: how much faster keys are used than by plain `pow`.

    python lab/benchmarks/dtpkc.py [--bits 2048 3072] [--textbook 2] [--out docs/results/dtpkc.md]

The twin (tests/crypto/textbook.py) has the same formulas, one exponentiation of GMP after the other. Times are CPU
seconds of all roles together. Comparisons are made ten at a time, as one row in ten trees makes them; `--textbook` of
them are timed and counted for a hundred. Answers of both are checked. The script exits 1 where a ratio is below what
is required.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "crypto"))

from textbook import Book  # noqa: E402

from woodlot.crypto import dealer, packed  # noqa: E402
from woodlot.crypto._libraries import gmp  # noqa: E402
from woodlot.crypto.dtpkc import WeakKey  # noqa: E402
from woodlot.crypto.encoding import encode  # noqa: E402
from woodlot.crypto.master import MasterKey  # noqa: E402
from woodlot.crypto.streams import SecretStream  # noqa: E402
from woodlot_lab.comparison import Comparer, decide  # noqa: E402
from woodlot_lab.pools import Pool  # noqa: E402

COMPARISONS, STEP, FEATURES = 100, 10, 14
PROVIDERS = (1, 8)
# powers by keys take half as long again as the textbook's, for their time does not depend on the key
REQUIRED = {"tables": 4.0, "pool": 1000.0, "strong": 8.0, "packed": 30.0}


def stream(label: object) -> SecretStream:
    """The same in every run: the time that primes take varies a lot."""
    return SecretStream.derived(b"benchmark of dtpkc", label)


def seconds(work: Callable[[], Any], least: float = 0.3) -> float:
    """CPU seconds of one call, over calls enough to be told apart from nothing."""
    calls, spent = 0, 0.0
    while spent < least:
        start = time.process_time()
        work()
        spent += time.process_time() - start
        calls += 1
    return spent / calls


class Bench:
    """Keys of one length, and what is measured with them."""

    def __init__(self, bits: int, textbook: int) -> None:
        self.bits, self.textbook = bits, textbook
        start = time.process_time()
        self.master = MasterKey.generate(bits, stream=stream(("modulus", bits)))
        self.generation = time.process_time() - start
        group = self.group = self.master.group
        self.cs, self.cc = self.master.split(stream(("split", bits)))
        self.requester = WeakKey.draw(group, stream("requester"))
        self.coordinator = WeakKey.draw(group, stream("coordinator"))
        self.providers = [WeakKey.draw(group, stream(("provider", i))) for i in range(max(PROVIDERS))]
        rng = np.random.default_rng(0)
        self.x = encode(rng.normal(size=FEATURES)).tolist()
        self.s = encode(rng.normal(size=COMPARISONS)).tolist()
        self.feature = rng.integers(0, FEATURES, COMPARISONS).tolist()
        self.s[0] = self.x[self.feature[0]]  # a tie
        self.truth = [self.x[f] <= s for f, s in zip(self.feature, self.s, strict=True)]
        self.values = [self.requester.public.encrypt(x, stream(("x", i))) for i, x in enumerate(self.x)]

    def book(self) -> tuple[Book, tuple[Any, Any]]:
        """The twin, on GMP's numbers, and the longer shares of the paper."""
        mpz = gmp().mpz
        n, order = self.group.N, self.master._range // self.group.N
        span = order * n * n
        first = mpz(stream("long share").below(int(span)))
        sigma = order * gmp().invert(order, n * n) % span
        return Book(mpz(n), mpz(self.group.g)), (first, (sigma - first) % span)

    def encryption(self) -> dict[str, float]:
        book, _ = self.book()
        key, source = self.requester.public, stream("encryption")
        key.encrypt(1, source)  # the tables are made once
        pool = Pool(key)
        pool.fill(2000)
        start = time.process_time()
        for _ in range(2000):
            key.encrypt(12345, pool)
        online = (time.process_time() - start) / 2000
        return {
            "textbook": seconds(lambda: book.encrypt(key.h, 12345)),
            "tables": seconds(lambda: key.encrypt(12345, source)),
            "pool": online,
        }

    def splits(self, providers: int) -> list[Any]:
        return [self.providers[i % providers].public.encrypt(s, stream(("s", i))) for i, s in enumerate(self.s)]

    def textbook_holt(self) -> float:
        """Seconds of a hundred comparisons."""
        book, shares = self.book()
        keys = [(k._secret, k.public.h) for k in (self.requester, self.providers[0], self.coordinator)]
        requester, provider, coordinator = keys
        splits = self.splits(1)
        start = time.process_time()
        for i in range(self.textbook):
            x, s = self.values[self.feature[i]], splits[i]
            answer = book.less_or_equal(
                shares, requester[1], (x.c1, x.c2), provider[1], (s.c1, s.c2), coordinator, provider
            )
            assert answer == self.truth[i]
        return (time.process_time() - start) * COMPARISONS / self.textbook

    def opened(self, bits: Sequence[int], owner: Sequence[int], step: int) -> list[int]:
        """The way of the helper's bits through their providers: one ciphertext for each of them."""
        found = [0] * len(bits)
        for number in sorted(set(owner)):
            mine = [i for i, who in enumerate(owner) if who == number]
            provider = self.providers[number]
            key = provider.public.joined(self.coordinator.public)
            message = key.encrypt(sum(bits[i] << place for place, i in enumerate(mine)), stream(("bits", step, number)))
            number_opened = self.coordinator.decrypt(provider.partial([message]))[0]
            for place, i in enumerate(mine):
                found[i] = number_opened >> place & 1
        return found

    def strong(self, providers: int) -> float:
        comparer = Comparer(self.cs, stream("strong"))
        splits = comparer.prepare_splits(self.splits(providers))  # once for all requests
        self.opened([1] * providers, list(range(providers)), -1)  # tables
        pool = Pool(comparer.key)
        pool.fill(COMPARISONS)
        start = time.process_time()
        values = comparer.prepare_values(self.values)
        answers = []
        for first in range(0, COMPARISONS, STEP):
            here = range(first, first + STEP)
            asked = [comparer.ask(values[self.feature[i]], splits[i], pool=pool) for i in here]
            told = decide(self.cc, [a.c1 for a in asked], [a.half for a in asked])
            bits = self.opened(told, [i % providers for i in here], first)
            answers += [Comparer.answer(a, bit) for a, bit in zip(asked, bits, strict=True)]
        spent = time.process_time() - start
        assert answers == self.truth
        return spent

    def packed(self) -> float:
        modulus, invert = self.group.N2, gmp().invert
        inverted = [invert(split.c1, modulus) for split in self.splits(1)]  # once for all requests
        packed.conceal_masks(self.group, [0], stream("tables"), [1])
        sizes = packed.pack_sizes(self.group, STEP)
        packs, _ = packed.arrange(self.group, [0] * STEP, sizes)
        start = time.process_time()
        answers: list[bool] = []
        for first in range(0, COMPARISONS, STEP):
            here = range(first, first + STEP)
            masks = packed.draw_masks(stream(("masks", first)), STEP)
            dealt = dealer.deal(masks, stream(("common", first)))
            concealed = packed.conceal_masks(self.group, masks, stream(("conceal", first)), sizes)
            values = [self.values[self.feature[i]].c1 for i in here]
            factors = stream(("factors", first))
            blinded = packed.blind(self.group, values, inverted[first : first + STEP], concealed, packs, factors)
            opened = packed.open_blinded(self.cc, blinded, self.cs.power(blinded.c1))
            words, theirs = dealer.answer(opened, stream(("common", first)))
            answers += [not bit for bit in (dealer.decide(dealt, words) ^ theirs).tolist()]
        spent = time.process_time() - start
        assert answers == self.truth
        return spent


def measure(bits: int, textbook: int) -> tuple[list[str], list[str]]:
    """The lines of one key length, and which of them are below what is required."""
    bench = Bench(bits, textbook)
    lines, failures = [], []

    def line(what: str, book: float, own: float, required: float | None) -> None:
        ratio = book / own
        needed = "" if required is None else f"{required:g}x"
        lines.append(f"| {bits} | {what} | {1000 * book:.2f} | {1000 * own:.3f} | {ratio:.1f}x | {needed} |")
        print(lines[-1], flush=True)
        if required is not None and ratio < required:
            failures.append(f"{what} at {bits} bits: {ratio:.1f}x, and {required:g}x is required")

    encryption = bench.encryption()
    line("encryption, from tables", encryption["textbook"], encryption["tables"], REQUIRED["tables"])
    line("encryption, from a pool (what is left)", encryption["textbook"], encryption["pool"], REQUIRED["pool"])
    book = bench.textbook_holt()
    for providers in PROVIDERS:
        first, of = providers == PROVIDERS[0], f"splits of {providers} part{'y' if providers == 1 else 'ies'}"
        line(f"100 HoLT, {of}", book, bench.strong(providers), REQUIRED["strong"] if first else None)
    line("100 HoLT packed, splits of any number of parties", book, bench.packed(), REQUIRED["packed"])
    lines.append(f"| {bits} | a modulus of safe primes (this one; it varies) | | {1000 * bench.generation:.0f} | | |")
    print(lines[-1], flush=True)
    return lines, failures


def main() -> int:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bits", type=int, nargs="+", default=[2048, 3072])
    parser.add_argument("--textbook", type=int, default=2, help="comparisons of the twin that are timed")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "dtpkc.md")
    options = parser.parse_args()
    head = ["| bits | operation | textbook, ms | Woodlot, ms | ratio | required |", "|---|---|---|---|---|---|"]
    print("\n".join(head), flush=True)
    lines, failures = [], []
    for bits in options.bits:
        found, low = measure(bits, options.textbook)
        lines += found
        failures += low
    text = (
        "# DT-PKC against its textbook twin\n\n"
        "Made by `python lab/benchmarks/dtpkc.py`: CPU time of all roles together, one thread, both in one run on "
        f"{os.cpu_count()} shared cores. The twin computes the same formulas with one exponentiation of GMP after the "
        "other, full exponents everywhere; comparisons go ten at a time, as one row in ten trees makes them. What is "
        "made once for all requests (tables, powers of the splits for HoLT, their inverses) or beforehand (pools of "
        "the second line and of HoLT) is not counted.\n\n" + "\n".join([*head, *lines]) + "\n"
    )
    options.out.write_text(text, encoding="utf-8")
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
