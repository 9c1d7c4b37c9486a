"""What a user orders to have new rows compared with those of a training."""

from __future__ import annotations

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.orders import PredictOrder


class DriftOrder(PredictOrder, frozen=True, kw_only=True, tag="drift"):
    """Have every owner compare the rows with those that a forest was grown on, and the leader its answers.

    Attributes
    ----------
    model, vote
        As for `PredictOrder`; answers go to nobody but the leader.

    """

    give_answers: bool = False

    def check(self) -> None:
        """As every order; and the label holder leads, who has the out-of-bag answers."""
        super().check()
        if self.leader is None:
            raise RemoteProtocolError(
                "a comparison with the rows of a training is led by the label holder; train the model with "
                "lead='holder'"
            )
        if self.answers_to or self.give_answers or self.form != "decisions" or self.shuffled is not None or self.absent:
            raise RemoteProtocolError("a drift job compares the whole forest and returns no predictions")
