"""Proof that whoever sends ciphertexts knows what is in them.

Anybody can add a number to a ciphertext and make it look new. Without a proof, somebody could ask about another's
value, or about a split, shifted by numbers of his own, and find it by bisection. The proof is Schnorr's, for many
ciphertexts at once and without interaction (Fiat and Shamir)::

    C_i = g^(r_i) (1 + m_i N)                       the ciphertexts, of `conceal`; or C1 of splits, r_i = sk r
    A   = g^a (1 + b N)                             a, b drawn
    c_i                                             128 bits each: hashes of all C_i, of A and of what they are for
    z   = a + sum of c_i r_i,   w = b + sum of c_i m_i mod N
    it holds if  g^z (1 + w N) = A * product of C_i^(c_i)

Who can answer two challenges for one A knows m_i. The hash is over what the ciphertexts are for, so a proof is good for
one request of one requester, or for the splits of one party and epoch. The base is g in any case: a party chooses its
own h, and one made of somebody else's ciphertext would prove nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from woodlot.crypto._libraries import gmp
from woodlot.crypto.dtpkc import Group
from woodlot.crypto.powers import secret_power
from woodlot.crypto.streams import SecretStream
from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import CiphertextError

CHALLENGE_BITS = 128
"""Bits of a challenge: a proof of what is not known succeeds with a chance of 2 to minus this."""

MAX_PROOF_BYTES = 8192
"""The longest proof: more than one under a modulus of 12,288 bits has."""

_HIDING_BITS = 128
_COUNT_BITS = 40  # there are never as many ciphertexts
_TAG = b"woodlot knowledge of plaintexts 1"
_NOT_KNOWN = "whoever sends these ciphertexts has not proved to know what is in them: are they somebody else's?"


class _Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A, z and w."""

    commitment: bytes
    exponent: bytes
    number: bytes


def prove_known(
    group: Group,
    elements: Sequence[Any],
    numbers: Sequence[int],
    exponents: Sequence[int],
    purpose: bytes,
    stream: SecretStream,
    *,
    keyed: bool = False,
) -> bytes:
    """Prove that the numbers in ciphertexts are known.

    Parameters
    ----------
    group : Group
        Where they live.
    elements : sequence
        C1 of each.
    numbers, exponents : sequence of int
        What is in each, and the exponent of g that it was made with.
    purpose : bytes
        What they are for: the proof is good for nothing else.
    stream : SecretStream
        For what is drawn.
    keyed : bool
        Whether the exponents have a secret key as a factor, so that they are twice as long.

    """
    a = 1 + stream.bits(_exponent_bits(group, keyed) - 1)
    b = stream.below(int(group.N))
    commitment = secret_power(group.g, a, group.N2) * (1 + b * group.N) % group.N2
    challenges = _challenges(group, elements, commitment, purpose)
    z = a + sum(c * r for c, r in zip(challenges, exponents, strict=True))
    w = (b + sum(c * m for c, m in zip(challenges, numbers, strict=True))) % int(group.N)
    proof = _Proof(*(_bytes(int(number)) for number in (commitment, z, w)))
    return msgspec.msgpack.encode(proof)


def check_known(group: Group, elements: Sequence[Any], purpose: bytes, proof: bytes, *, keyed: bool = False) -> None:
    """Refuse ciphertexts unless their sender knows what is in them; parameters as for `prove_known`.

    Raises
    ------
    CiphertextError
        If the proof is not one of these ciphertexts, for this purpose.

    """
    try:
        told = from_msgpack(proof, _Proof)
    except (msgspec.MsgspecError, ValueError):
        raise CiphertextError(_NOT_KNOWN) from None
    commitment, z, w = (int.from_bytes(part, "little") for part in (told.commitment, told.exponent, told.number))
    longest = _exponent_bits(group, keyed) + 1
    if not (0 < commitment < group.N2 and z.bit_length() <= longest and w < group.N):
        raise CiphertextError(_NOT_KNOWN)
    challenges = _challenges(group, elements, commitment, purpose)
    made = gmp().powmod(group.g, z, group.N2) * (1 + w * group.N) % group.N2
    if made != commitment * _product(elements, challenges, group.N2) % group.N2:
        raise CiphertextError(_NOT_KNOWN)


def _exponent_bits(group: Group, keyed: bool) -> int:
    """Bits of what hides the sum of all exponents by their challenges."""
    return (1 + keyed) * int(group.N.bit_length()) + CHALLENGE_BITS + _COUNT_BITS + _HIDING_BITS


def _challenges(group: Group, elements: Sequence[Any], commitment: Any, purpose: bytes) -> list[int]:
    fixed = hashlib.sha256(_TAG)
    for part in (group.fingerprint, purpose, group.write(elements).tobytes(), group.write([commitment]).tobytes()):
        fixed.update(len(part).to_bytes(8, "little") + part)
    seed = fixed.digest()
    size = CHALLENGE_BITS // 8
    return [
        int.from_bytes(hashlib.sha256(seed + number.to_bytes(8, "little")).digest()[:size], "little")
        for number in range(len(elements))
    ]


def _product(elements: Sequence[Any], exponents: Sequence[int], modulus: Any) -> Any:
    """The product of all elements to their exponents: one squaring of the whole for each bit, not one of each."""
    raw = b"".join(exponent.to_bytes(CHALLENGE_BITS // 8, "little") for exponent in exponents)
    bits = np.unpackbits(
        np.frombuffer(raw, np.uint8).reshape(len(exponents), CHALLENGE_BITS // 8), axis=1, bitorder="little"
    )
    product = gmp().mpz(1)
    for column in reversed(range(CHALLENGE_BITS)):
        product = product * product % modulus
        for number in np.flatnonzero(bits[:, column]).tolist():
            product = product * elements[number] % modulus
    return product


def _bytes(number: int) -> bytes:
    return number.to_bytes(-(-number.bit_length() // 8), "little")
