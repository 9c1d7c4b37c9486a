"""What a client tells with noise: drawn once, paid for, and repeated when the same is asked again."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import LocalProtocolError
from woodlot.privacy.accounting import Spend
from woodlot.privacy.budget import Charge
from woodlot.privacy.client_budget import ClientBudget
from woodlot.privacy.derivation import pack
from woodlot.privacy.noise import CountNoise
from woodlot.protocols.core import digests
from woodlot.protocols.core.message import Message
from woodlot.protocols.sums.sum_messages import SumOrder

_TYPE = np.dtype("<i8")


def digest_of(message: Message) -> bytes:
    """All that a message says, but for the order of its sum: an answer that is asked for again is the same."""
    return digests.digest_of(message, leaving_out=SumOrder)


def release_name(job: str, what: str, *question: bytes) -> str:
    """The name of a release of one job: what is asked, and all that its answer depends on."""
    return f"{job} {what} {hashlib.sha256(pack(*question)).hexdigest()[:32]}"


COUNTS_OF_CLASSES = "integer Laplace noise on counts of classes"


def noise_charge(
    release: str, spend: Spend, job: str, answer: bytes | None = None, mechanism: str = COUNTS_OF_CLASSES
) -> Charge:
    """The charge of counts with noise."""
    return Charge(unit="rows", release=release, mechanism=mechanism, spend=spend, job=job, answer=answer)


def needed(client_budget: ClientBudget | None) -> ClientBudget:
    """Return the budget of a client that must have one."""
    if client_budget is None:
        raise LocalProtocolError("a client without a privacy budget cannot make differentially private releases")
    return client_budget


def score_noise(epsilon: float) -> CountNoise:
    """The noise on the numbers of right and wrong answers: another label makes one of them another, in both counts."""
    return CountNoise(epsilon, neighbours="replace")


def tell_noisy(
    counts: NDArray[np.int64],
    noise: CountNoise,
    client_budget: ClientBudget,
    *,
    release: str,
    job: str,
    queries: int,
    mechanism: str = COUNTS_OF_CLASSES,
) -> NDArray[np.int64]:
    """Counts with noise, paid for; those that were drawn before, where this was asked before.

    Raises
    ------
    PolicyError
        The budget would be exceeded: nothing may be told.
    """
    drawn = noise.release(counts).released.astype(_TYPE)
    kept = client_budget.charge(noise_charge(release, noise.spend(queries), job, drawn.tobytes(), mechanism))
    return np.frombuffer(kept.answer or b"", _TYPE).astype(np.int64).reshape(counts.shape)
