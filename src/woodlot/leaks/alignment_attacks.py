"""Ids from what an alignment sends in their place.

The coordinator gets one token per id, made under a secret of the parties. It knows everything else that enters a token:
the job, the opening and all introductions. So it can try secrets, and with the right one ids.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from woodlot.data.ids import canonical_ids
from woodlot.federation import fresh_entropy
from woodlot.leaks.case import Finding, Tape, Told, not_attacked
from woodlot.protocols.align import AlignParty, align
from woodlot.protocols.align.align_keys import VERSION, JobKeys
from woodlot.protocols.align.align_messages import IdTokens, Introduced, OpenAlignment, SealedSecret
from woodlot.protocols.align.tokens import make_tokens
from woodlot.protocols.core.agreement import transcript_of
from woodlot.protocols.core.part_files import COORDINATOR
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

TRIED_IDS = 200_000
"""Ids that an attack tries at most."""
MAX_ALIGNED = 500
"""Ids of the victim that are aligned for it."""
JOB = "leak test"
WEAK = b"woodlot-alignment"
"""A secret as people write them; the attack has it on its list."""
WORDS = (
    "secret",
    "password",
    "changeme",
    "woodlot",
    "woodlot-alignment",
    "alignment",
    "federation",
    "alignment.secret",
    "correct horse battery staple",
    "0123456789abcdef",
    "00000000000000000000000000000000",
    "test",
    "bank",
    "shop",
)
"""What people write where a secret is asked for."""


def guessed_secrets(names: Iterable[str]) -> list[bytes]:
    """Secrets that a coordinator would try first: words and names of parties, also repeated to the length needed."""
    guesses = []
    for word in dict.fromkeys([*WORDS, *names]):
        text = word.encode()
        guesses += [text, text * -(-16 // len(text)), (text * -(-16 // len(text)))[:16], (text * 32)[:32]]
    return list(dict.fromkeys(guesses))


def id_attacks(ids: NDArray[Any], parties: tuple[str, str], secret: bytes | None = None) -> list[Finding]:
    """Try to read the second party's ids.

    Parameters
    ----------
    ids : array
        Its ids.
    parties : (str, str)
        Leader and victim.
    secret : bytes, optional
        The secret that the parties have configured, to be guessed; without it two are tried: a word, and 32 random
        bytes.

    """
    own, possible = _victim_and_guesses(ids)
    words = f"{len(possible):,} possible ids tried, the victim's {len(own)} among them"
    found = []
    tried = (
        {"your secret": secret} if secret else {"a word as secret": WEAK, "32 random bytes": secrets.token_bytes(32)}
    )
    for name, configured in tried.items():
        tape, _ = _aligned(parties, own, own, "keyed-hash", configured)
        told = tape.seen_by(COORDINATOR)
        start = time.perf_counter()
        guesses = guessed_secrets(parties)
        guessed = [guess for guess in guesses if _is_secret(told, guess)]
        value = _ids_of_tokens(told, parties[1], guessed[0], possible, own) if guessed else 0.0
        found.append(
            Finding(
                COORDINATOR,
                f"keyed-hash, {name}",
                "ids",
                "guessed key",
                "ids read",
                value,
                0.0,
                "no id",
                f"the secret is {'one' if guessed else 'none'} of {len(guesses)} guesses, each checked against the "
                f"confirmation that the coordinator gets; {words}",
                time.perf_counter() - start,
            )
        )
    key = secrets.token_bytes(32)
    tape, _ = _aligned(parties, own, own, "keyed-hash", key)
    start = time.perf_counter()
    value = _ids_of_tokens(tape.seen_by(COORDINATOR), parties[1], key, possible, own)
    found.append(
        Finding(
            f"{COORDINATOR} with {parties[0]}",
            "keyed-hash, 32 random bytes",
            "ids",
            "key of an accomplice",
            "ids read",
            value,
            0.0,
            "no id",
            f"any one party can hand its key to the coordinator; {words}",
            time.perf_counter() - start,
        )
    )
    methods: tuple[Literal["keyed-hash", "psi"], ...] = ("keyed-hash", "psi")
    for method in methods:
        start = time.perf_counter()
        listed = _sample_of(possible, own)
        _, leader = _aligned(parties, listed, own, method, key)
        learnt = {listed[row] for row in leader.rows.tolist()}
        value = float(np.mean([i in learnt for i in own]))
        found.append(
            Finding(
                parties[0],
                method,
                "ids",
                "a table of all possible ids",
                "ids read",
                value,
                0.0,
                "no id",
                f"a party that lists ids it does not have is told which of them {parties[1]} has "
                f"({len(listed):,} listed here; nothing limits how many)",
                time.perf_counter() - start,
            )
        )
    found.append(
        not_attacked(COORDINATOR, "psi", "ids", "blinded ids", "curve points and sealed envelopes; no attack is known")
    )
    return found


def _victim_and_guesses(ids: NDArray[Any]) -> tuple[list[Any], list[Any]]:
    """Ids of the victim, and those that an attacker tries: all numbers of their range, or a list of likely ones."""
    if ids.dtype.kind not in "iu":
        return [str(i) for i in ids[:MAX_ALIGNED]], [str(i) for i in ids[:TRIED_IDS]]
    lowest = int(ids.min())
    own = [int(i) for i in np.sort(ids)[:MAX_ALIGNED] if i < lowest + TRIED_IDS]
    return own, list(range(lowest, own[-1] + 1))


def _sample_of(possible: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """Some of the possible ids for the slower attacks: ten for each of the victim's, these among them or not."""
    chosen = np.random.default_rng(0).permutation(len(possible))[: 9 * len(own)]
    within = set(possible)
    return list(dict.fromkeys([*(possible[k] for k in chosen), *(i for i in own if i in within)]))


def _aligned(
    names: tuple[str, str],
    first: Sequence[Any],
    second: Sequence[Any],
    method: Literal["keyed-hash", "psi"],
    secret: bytes,
) -> tuple[Tape, AlignParty]:
    """An alignment in this process; returns its messages, and the leader as it stands afterwards."""
    tape = Tape()
    ledger = Ledger(tape.record)
    parties = {
        name: AlignParty(
            name,
            pa.array(ids),
            entropy=fresh_entropy(),
            lasting=fresh_entropy(),
            shared_secret=secret,
            signer=None,
            job=JOB,
        )
        for name, ids in zip(names, (first, second), strict=True)
    }
    with InProcessDriver(parties, ledger=ledger) as driver:
        run(align(names, method=method, join="inner"), driver, ledger=ledger)
    return tape, parties[names[0]]


def _keys(told: Sequence[Told]) -> JobKeys:
    """All that enters a key but the secret: the coordinator has sent and got it."""
    opening = next(message for _, _, message in told if isinstance(message, OpenAlignment))
    introductions = {sender: message.introduction for sender, _, message in told if isinstance(message, Introduced)}
    ordered = {name: introductions[name] for name in opening.parties}
    transcript = transcript_of(VERSION, JOB, opening, ordered)
    return JobKeys(COORDINATOR, opening.parties[0], transcript, {}, None)


def _is_secret(told: Sequence[Told], guess: bytes) -> bool:
    """Whether a guess fits the leader's confirmation, which passes through the coordinator."""
    confirmation = next(message.confirmation for _, _, message in told if isinstance(message, SealedSecret))
    return _keys(told).confirmation(guess) == confirmation


def _ids_of_tokens(
    told: Sequence[Told], victim: str, secret: bytes, possible: Sequence[Any], own: Sequence[Any]
) -> float:
    """Share of the victim's ids that are read from its tokens by trying possible ids under a key."""
    tokens = next(message.tokens for sender, _, message in told if isinstance(message, IdTokens) and sender == victim)
    sent = {bytes(token) for token in tokens.reshape(-1, 16)}
    canonical = canonical_ids(pa.array(possible)).values
    tried, order = make_tokens(_keys(told).matching_key(secret), canonical)
    read = {possible[row] for token, row in zip(tried, order.tolist(), strict=True) if bytes(token) in sent}
    return float(np.mean([i in read for i in own]))
