"""What a finished model may claim about privacy, and what it may not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from woodlot.privacy.accounting import in_plain_words


@dataclass(frozen=True, kw_only=True)
class PrivacyClaim:
    """The guarantee that a model was grown under.

    Attributes
    ----------
    mechanism : str
        What was done; "none" where nothing was.
    unit : str
        Whose secret is kept: the label of a row, or a whole row. Empty without a guarantee.
    epsilon : float or None
        The total for one unit, over all releases of this training; None without a guarantee.
    delta : float
        The chance that more is lost.
    plain_epsilon : float or None
        The same without a delta: the sum over all releases.
    not_protected : tuple of str
        What the guarantee does not cover.

    """

    mechanism: str
    unit: str = ""
    epsilon: float | None = None
    delta: float = 0.0
    plain_epsilon: float | None = None
    not_protected: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """The guarantee in one line; it is of one training, and other uses of the rows are not in it."""
        if self.epsilon is None:
            return "no differential privacy: what the model and the messages tell of a row is not bounded"
        return f"{self.unit}, by this training alone: {in_plain_words(self.epsilon, self.delta)}"

    def to_dict(self) -> dict[str, Any]:
        """The claim in plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The claim that `to_dict` has written."""
        return cls(**{**stored, "not_protected": tuple(stored["not_protected"])})

    def __str__(self) -> str:
        lines = [f"mechanism      {self.mechanism}"]
        if self.epsilon is not None:
            lines.append(f"epsilon        {self.epsilon:.4g}" + (f" (delta {self.delta:g})" if self.delta else ""))
            if self.plain_epsilon is not None and self.delta:
                lines.append(f"               {self.plain_epsilon:.4g} without a delta")
        lines.append(f"in words       {self.in_words}")
        lines += [f"not protected  {what}" for what in self.not_protected]
        return "\n".join(lines)


def claim_in_words(stored: str) -> str:
    """What the coordinator keeps with a model, JSON of a claim or of null, in one line; null is no guarantee."""
    claim = json.loads(stored)
    return (no_privacy() if claim is None else PrivacyClaim.from_dict(claim)).in_words


def no_privacy(*not_protected: str) -> PrivacyClaim:
    """Say that there is no guarantee."""
    return PrivacyClaim(mechanism="none", not_protected=not_protected)
