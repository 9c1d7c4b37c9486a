"""What a party releases under differential privacy, and what it refuses because it is not: its own rules.

The refusals travel to whoever gave the order. They name the setting, and nothing of the data.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from woodlot.exceptions import PolicyError
from woodlot.jobs.kind import Kind
from woodlot.privacy.accounting import UNITS, Unit
from woodlot.privacy.budget import Budget, Budgets

_WHERE = "in the section [privacy] of its configuration"
_Epsilon = Annotated[float, msgspec.Meta(gt=0)] | None


class PrivacyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[privacy]`` of a party.

    Attributes
    ----------
    epsilon : float or None
        What may be spent on each of the two accounts of a table, labels and rows, for ever; None: any amount, which is
        recorded all the same.
    label_epsilon, row_epsilon : float or None
        The same for one account; None: `epsilon`.
    delta : float
        With 0 epsilons are added; else they are composed, and the total holds but for a chance of delta.
    required : bool or {"labels", "rows"}
        What must be differentially private in everything that a job tells: the labels of rows, whole rows, or nothing
        (False). True is "rows", the stricter.

    """

    epsilon: _Epsilon = None
    label_epsilon: _Epsilon = None
    row_epsilon: _Epsilon = None
    delta: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    required: bool | Literal["labels", "rows"] = False

    @property
    def budgets(self) -> Budgets:
        """What may be spent on one table."""

        def budget(own: float | None) -> Budget | None:
            epsilon = self.epsilon if own is None else own
            return None if epsilon is None else Budget(epsilon, self.delta)

        return Budgets(labels=budget(self.label_epsilon), rows=budget(self.row_epsilon))

    @property
    def protected(self) -> Unit | None:
        """What must be differentially private, if anything."""
        if isinstance(self.required, bool):
            return "rows" if self.required else None
        return self.required

    @property
    def _setting(self) -> str:
        """The line that forbids it, as TOML has it."""
        value = str(self.required).lower() if isinstance(self.required, bool) else f'"{self.required}"'
        return f"required = {value} {_WHERE}"

    def check_kind(self, kind: Kind) -> None:
        """Refuse an order of which no form is differentially private."""
        if self.protected is not None and not kind.private:
            raise PolicyError(
                f"this party takes part in differentially private jobs only ({self._setting}), and there is no such "
                f"form of {kind.name!r}. Train a private forest over rows, or let its operator take the setting out"
            )

    def check_training(self, protects: tuple[Unit, ...]) -> None:
        """Refuse a training that tells more than is protected.

        Parameters
        ----------
        protects : tuple of {"labels", "rows"}
            Of what all that it tells is differentially private.

        """
        if self.protected is None or self.protected in protects:
            return
        remedy = "GlobalDP" if self.protected == "rows" else "LocalDP or GlobalDP"
        more = "; LocalDP protects labels only" if protects else ""
        raise PolicyError(
            f"this party takes part in differentially private trainings only ({self._setting}){more}. Train a "
            f"PrivateForest, or FederatedExtraTrees with privacy={remedy}(...); or let its operator take the setting "
            "out"
        )

    def check_score(self, score_epsilon: float | None) -> None:
        """Refuse to tell an exact score."""
        if self.protected is not None and score_epsilon is None:
            raise PolicyError(
                f"this party tells no exact score: whoever asks again with one label changed learns the label "
                f"({self._setting}). Ask for a score with noise, score_epsilon=1.0 or --score-epsilon 1.0, which is "
                "charged to its privacy budget, or do not ask for a score"
            )

    def uncovered_by_prediction(self, *, scored: bool, score_epsilon: float | None) -> tuple[Unit, ...]:
        """Of what a prediction of a party's own rows tells something without differential privacy."""
        if self.protected is not None or score_epsilon is not None:
            return ()  # neither the number of rows is told nor an exact score
        return UNITS if scored else ("rows",)
