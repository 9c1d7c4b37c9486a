"""Keys of 512 bits, good for tests only: drawn once, so that no test waits for primes."""

from __future__ import annotations

from functools import cache

from woodlot.crypto.master import MasterKey
from woodlot.crypto.streams import SecretStream

PRIMES = (
    (
        0xF7A6996FA37F475E6166BF0BC5BC61F0E75BAF133B0B83C883072724DE1479D3,
        0xDF99CA5765A46854C46E55F6B1DE9616EAD0AFBC5146F6347ECA795C89385447,
    ),
    (
        0xC340A2770C6C4653C2FEF7A9607C4867C212FB9288089634E31FAE8FD1DB496F,
        0xF6AB1BB98481AF83AA7DC6C3E354F287A6BD8B3B13B5D4743B2FAD6918187287,
    ),
    (
        0xD88ABAFC7C1D434B109AC0219726369A0DE191A381CB36DD8EA279A75B7C92C7,
        0xCC8C62D0F533256C60D93928A43A428D7E887982EFF13B79629A6F3E7E629B7F,
    ),
)
ROOT = 3


@cache
def master(number: int = 0, epoch: int = 1) -> MasterKey:
    """A master key; those of different numbers have different moduli."""
    return MasterKey(*PRIMES[number], ROOT, epoch=epoch, setting="test")


def stream(label: object = 0) -> SecretStream:
    """A stream that is the same in every run."""
    return SecretStream.derived(b"a secret of the tests", label)
