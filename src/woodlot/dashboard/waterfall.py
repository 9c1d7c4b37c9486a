"""An answer divided among parties and columns, step by step from the mean of the training to the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from woodlot.evaluation.explanations import Explanation

PREDICTION = "the prediction"
STEPS_SHOWN = 12
"""Features with a step of their own; the others are one step together."""


@dataclass(frozen=True)
class Step:
    """One step: who moved the answer how far, and where its bar begins and ends, between 0 and 100."""

    name: str
    owner: str
    value: float
    start: float
    end: float
    text: str = ""


@dataclass(frozen=True)
class Fall:
    """All steps of one row.

    Attributes
    ----------
    row : str
        Its id, or its number.
    output : str
        What is explained: the probability of a class, or the prediction.
    base, answer : float
        Where the steps begin and end.
    base_at, answer_at : float
        The same between 0 and 100.
    """

    row: str
    output: str
    base: float
    answer: float
    base_at: float
    answer_at: float
    steps: tuple[Step, ...]
    by_party: dict[str, float]
    reasons: tuple[str, ...]
    is_uncertain: bool

    def amount(self, value: float, sign: str = "+") -> str:
        """A step, or with another sign a value, with as many digits as it deserves."""
        return format(value, f"{sign}.3f" if self.output != PREDICTION else f"{sign}.4g")


def falls(explanation: Explanation, most: int) -> list[Fall]:
    """The steps of the first rows of an explanation.

    Parameters
    ----------
    explanation : Explanation
        What the leader has computed.
    most : int
        At most so many rows.
    """
    return [_fall(explanation, row) for row in range(min(most, len(explanation)))]


def _fall(explanation: Explanation, row: int) -> Fall:
    classes = explanation.classes.tolist()
    number = (1 if len(classes) == 2 else int(explanation.outputs[row].argmax())) if classes else None
    output = None if number is None else classes[number]
    parts = explanation.of_output(output)[row]
    base = float(explanation.base_values if number is None else explanation.base_values[number])
    answer = float(explanation.outputs[row] if number is None else explanation.outputs[row][number])
    order = [int(k) for k in np.argsort(-np.abs(parts), kind="stable")]
    moved: list[tuple[str, str, float, str]] = []
    for k in order[:STEPS_SHOWN]:
        name = explanation.features[k]
        texts = explanation.data.get(name)
        moved.append((name, _owner(explanation, k), float(parts[k]), "" if texts is None else texts[row]))
    if order[STEPS_SHOWN:]:
        rest = float(sum(parts[k] for k in order[STEPS_SHOWN:]))
        moved.append((f"{len(order) - STEPS_SHOWN} other columns", "", rest, ""))
    ends = base + np.cumsum([value for _, _, value, _ in moved])
    starts = [base, *ends[:-1]]
    low, high = (0.0, 1.0) if classes else (min(base, *ends), max(base, *ends))

    def at(value: float) -> float:
        return 100 * (value - low) / (high - low or 1.0)

    steps = tuple(
        Step(name, owner, value, at(start), at(float(end)), text)
        for (name, owner, value, text), start, end in zip(moved, starts, ends, strict=True)
    )
    shares: dict[str, float] = {}
    for k, part in enumerate(parts):
        shares[_owner(explanation, k)] = shares.get(_owner(explanation, k), 0.0) + float(part)
    said: Any = row + 1 if explanation.ids is None else explanation.ids.tolist()[row]
    return Fall(
        str(said),
        PREDICTION if output is None else f"the probability of {output}",
        base,
        answer,
        at(base),
        at(answer),
        steps,
        shares,
        tuple(explanation.reasons(3, row=row)),
        bool(len(explanation.uncertain) and explanation.uncertain[row]),
    )


def _owner(explanation: Explanation, feature: int) -> str:
    return explanation.owners[feature] if explanation.owners else ""
