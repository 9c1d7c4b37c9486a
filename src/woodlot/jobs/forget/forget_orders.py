"""What a user, or a party, orders to have rows forgotten."""

from __future__ import annotations

from typing import ClassVar

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.orders import AlignedOrder, JobId, Order

MAX_FORGOTTEN = 10_000
"""The most ids of one order: they are sealed to every party."""


class ForgetOrder(AlignedOrder, frozen=True, kw_only=True, tag="forget"):
    """Take rows out of a forest: it is from then on the one that grows without them.

    Every party's part has the ids, in the form of `woodlot.data.ids`, and the key of their digests in the receipt. The
    parties of the order are all parties of the model.

    Attributes
    ----------
    model : str
        The job that has grown it. It is the alignment of the order, too.

    """

    every_row: ClassVar[bool] = True
    any_rows: ClassVar[bool] = False

    model: JobId

    def check(self) -> None:
        """As every order; and the label holder leads, who alone gets what a training tells of rows."""
        super().check()
        if self.leader is None:
            raise RemoteProtocolError(
                "rows are forgotten where the label holder leads, and not the coordinator; train the model with "
                "lead='holder'"
            )
        if self.alignment != self.model:
            raise RemoteProtocolError("rows are forgotten of a training, and the order names other rows")


class ForgetRowsOrder(Order, frozen=True, kw_only=True, tag="forget-rows"):
    """Take rows out of a forest over rows: all its clients grow it again without them, by the plan of its training.

    The part of every party that is to look for rows has their ids, in the form of `woodlot.data.ids`, and the key of
    their digests in the receipt. Parties that have no ids in their part keep all their rows. The parties of the order
    are all parties of the model.

    Attributes
    ----------
    model : str
        The job that has grown it.

    """

    model: JobId
