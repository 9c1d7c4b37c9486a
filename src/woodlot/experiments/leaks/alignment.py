"""What the messages of an alignment tell: ids."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from woodlot.experiments.leaks.case import Finding, Tape
from woodlot.federation import fresh_entropy
from woodlot.protocols.align import AlignParty, align
from woodlot.protocols.part_files import COORDINATOR
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import encode
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

TRIED_IDS = 200_000
"""Ids that the attack on hashes tries."""
MAX_ALIGNED = 500
"""Ids that are aligned for it."""


def id_attack(ids: NDArray[Any]) -> list[Finding]:
    """Ids from what is sent in their place, by trying all that there could be."""
    if ids.dtype.kind in "iu":
        lowest = int(ids.min())
        tried: list[Any] = list(range(lowest, min(int(ids.max()) + 1, lowest + TRIED_IDS)))
    else:  # the attacker has a list of likely ones, such as customers of its own
        tried = [str(i) for i in ids]
    own: list[Any] = [i.item() if hasattr(i, "item") else str(i) for i in ids]
    start = time.perf_counter()
    by_hash = {hashlib.sha256(str(i).encode()).digest() for i in tried}
    seconds = max(time.perf_counter() - start, 1e-9)
    bare = np.mean([hashlib.sha256(str(i).encode()).digest() in by_hash for i in own])
    found = [
        Finding(
            "ids from their hashes",
            "bare hash (never used here)",
            COORDINATOR,
            "ids found",
            float(bare),
            0.0,
            bool(bare > 0),
            f"{len(tried) / seconds / 1e6:.1f} million ids tried per second: all numbers of nine digits in "
            f"{1e9 * seconds / len(tried) / 60:.0f} minutes of one core. What other systems call anonymous",
        )
    ]
    methods: tuple[Literal["keyed-hash", "psi"], ...] = ("keyed-hash", "psi")
    for method in methods:
        tape = _alignment_tape(own, method)
        # the coordinator tries every id against all bytes that it gets, hashed in the way that it knows
        sent = b"".join(encode(message) for message in tape.got_by(COORDINATOR))
        value = np.mean([hashlib.sha256(str(i).encode()).digest()[:8] in sent for i in own[:MAX_ALIGNED]])
        found.append(
            Finding(
                "ids from their hashes",
                method,
                "coordinator",
                "ids found",
                float(value),
                0.0,
                bool(value > 0),
                "ids travel under a key that the coordinator does not have: there is nothing to try them against"
                if method == "keyed-hash"
                else "parties compare ids by private set intersection: nothing derived from an id can be tried",
            )
        )
    return found


def _alignment_tape(ids: list[Any], method: Literal["keyed-hash", "psi"]) -> Tape:
    tape, secret = Tape(), secrets.token_bytes(32)
    ledger = Ledger(tape.record)
    parties = {
        name: AlignParty(
            name,
            pa.array(ids[:MAX_ALIGNED]),
            entropy=fresh_entropy(),
            lasting=fresh_entropy(),
            shared_secret=secret,
            signer=None,
            job="leak test",
        )
        for name in ("bank", "shop")
    }
    with InProcessDriver(parties, ledger=ledger) as driver:
        run(align(("bank", "shop"), method=method, join="inner"), driver, ledger=ledger)
    return tape
