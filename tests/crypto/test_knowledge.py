"""Proofs of knowing what is in ciphertexts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from small_keys import PRIMES, ROOT, stream

from woodlot.crypto.dtpkc import Group, PublicKey, WeakKey, conceal_with
from woodlot.crypto.knowledge import CHALLENGE_BITS, MAX_PROOF_BYTES, check_known, prove_known
from woodlot.crypto.master import MasterKey
from woodlot.exceptions import CiphertextError

NUMBERS = [0, 5, -(2**63), 2**63 - 1]


@pytest.fixture(scope="module")
def group() -> Group:
    return MasterKey(*PRIMES[0], ROOT, setting="test").group


def concealed(group: Group, numbers: list[int], label: str) -> tuple[list[Any], list[int]]:
    drawn = [group.draw(stream(f"{label} {number}")) for number in range(len(numbers))]
    return [conceal_with(group, m, r) for m, r in zip(numbers, drawn, strict=True)], drawn


@pytest.mark.parametrize("n", [1, 4])
def test_what_is_known_is_proved_for_one_purpose(group: Group, n: int) -> None:
    elements, drawn = concealed(group, NUMBERS[:n], "own")
    proof = prove_known(group, elements, NUMBERS[:n], drawn, b"request", stream("proof"))
    check_known(group, elements, b"request", proof)
    assert len(proof) < MAX_PROOF_BYTES
    for purpose, others in ((b"another", elements), (b"request", elements * 2), (b"request", elements[:-1])):
        with pytest.raises(CiphertextError, match="has not proved to know"):
            check_known(group, others, purpose, proof)


def test_ciphertexts_under_ones_own_key_are_known(group: Group) -> None:
    """Their exponents are products with the key, twice as long; and the base is g, whatever h somebody has chosen."""
    key = WeakKey.draw(group, stream("key"))
    drawn = [group.draw(stream(f"split {number}")) for number in range(len(NUMBERS))]
    elements = [key.public.encrypt_with(m, r).c1 for m, r in zip(NUMBERS, drawn, strict=True)]
    exponents = [key.base_exponent(r) for r in drawn]
    proof = prove_known(group, elements, NUMBERS, exponents, b"splits", stream("proof"), keyed=True)
    check_known(group, elements, b"splits", proof, keyed=True)
    assert len(proof) < MAX_PROOF_BYTES
    with pytest.raises(CiphertextError, match="has not proved to know"):
        check_known(group, elements, b"splits", proof)  # too long for values of a request
    # an h that is somebody else's ciphertext: exponents of it are known, and what is in it is not
    theirs = concealed(group, [123], "theirs")[0][0]
    made = [PublicKey(group, theirs).encrypt_with(m, r).c1 for m, r in zip(NUMBERS, drawn, strict=True)]
    forged = prove_known(group, made, NUMBERS, drawn, b"splits", stream("proof"), keyed=True)
    with pytest.raises(CiphertextError, match="has not proved to know"):
        check_known(group, made, b"splits", forged, keyed=True)


def test_ciphertexts_of_somebody_else_are_not_known(group: Group) -> None:
    """Shifted, made to look new, or to a power: what is in them stays unknown."""
    elements, drawn = concealed(group, NUMBERS, "own")
    theirs = concealed(group, [123], "theirs")[0][0]
    noise = concealed(group, [0], "noise")[0][0]
    for other in (theirs, theirs * (1 + 9 * group.N) % group.N2, theirs * noise % group.N2, theirs**2 % group.N2):
        tried = [*elements[:-1], other]
        proof = prove_known(group, tried, NUMBERS, drawn, b"request", stream("proof"))  # as if it were the last
        with pytest.raises(CiphertextError, match="has not proved to know"):
            check_known(group, tried, b"request", proof)


def test_no_challenge_is_left_out(group: Group) -> None:
    """Two ciphertexts whose errors would cancel if their challenges were equal."""
    elements, drawn = concealed(group, [1, 2], "own")
    swapped = [elements[0] * (1 + group.N) % group.N2, elements[1] * (1 - group.N) % group.N2]
    proof = prove_known(group, swapped, [1, 2], drawn, b"request", stream("proof"))
    with pytest.raises(CiphertextError, match="has not proved to know"):
        check_known(group, swapped, b"request", proof)
    assert CHALLENGE_BITS == 128


def test_what_is_no_proof_is_refused(group: Group) -> None:
    elements, drawn = concealed(group, NUMBERS, "own")
    proof = prove_known(group, elements, NUMBERS, drawn, b"request", stream("proof"))
    parts = msgspec.msgpack.decode(proof)
    bad = [b"", b"no", proof[:-1], proof + b"\0", msgspec.msgpack.encode(parts[:2])]
    for place in range(3):
        wrong = (b"", parts[place] + b"\1", bytes(len(parts[place])), b"\xff" * 400)
        bad += [msgspec.msgpack.encode([*parts[:place], part, *parts[place + 1 :]]) for part in wrong]
    for one in bad:
        with pytest.raises(CiphertextError, match="has not proved to know"):
            check_known(group, elements, b"request", one)
