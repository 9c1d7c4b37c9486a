"""What a user orders to have answers explained."""

from __future__ import annotations

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.orders import PredictOrder

MAX_NAMED = 1_000
"""The most rows that one order names by their ids."""

HIDDEN = (
    "this forest has grown on secret shares (protection='hidden'), so that nobody learns which way rows go; an "
    "explanation would tell the leader"
)
"""Why forests that were grown hidden are not explained; every party says so, for the leader would gain by it."""


class ExplainOrder(PredictOrder, frozen=True, kw_only=True, tag="explain"):
    """Divide the answers of a forest among the parties and their columns, and tell the user alone.

    Attributes
    ----------
    named : bool
        Whether every party's part has the ids of the rows, in place of an alignment.
    model, vote
        As for `PredictOrder`; nothing is shuffled, left out, scored or delivered.

    """

    named: bool = False

    @property
    def names_rows(self) -> bool:
        """Whether every party is told the ids of the rows."""
        return self.named

    def check(self) -> None:
        """As every order; and the label holder leads, who alone gets the sides of the rows."""
        super().check()
        if self.leader is None:
            raise RemoteProtocolError(
                "an explanation is led by the label holder, and not by the coordinator, who would learn which way rows "
                "go at every node; train the model with lead='holder'"
            )
        if self.answers_to or not self.give_answers:
            raise RemoteProtocolError("an explanation is for the user who orders it, and for no party")
        if self.form != "decisions" or self.shuffled is not None or self.absent:
            raise RemoteProtocolError("an explanation is of the whole forest, in clear, with nothing shuffled")
        if self.named and (self.alignment is not None or self.subsets):
            raise RemoteProtocolError("rows that are named by their ids are neither aligned nor selected")
