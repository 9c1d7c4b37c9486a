"""What a party keeps of a training over rows, to take rows out of its forest later."""

from __future__ import annotations

import msgspec

from woodlot.protocols.rows.methods import HorizontalPlan


class RowTrainingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """By what a forest over rows was grown; which rows it was grown on is kept beside it, as keyed hashes of their ids.

    Attributes
    ----------
    parties : tuple of str
        All clients.
    table : str
        This party's table.
    label, weight : str, str or None
        Its columns with the labels and with the weights of the rows.
    features : tuple of str
        The columns that were learnt from.
    plan : HorizontalPlan
        What was ordered.
    forgot : bool
        Whether rows were forgotten, which may still be in the table.
    before : str
        The model that this one has taken the place of when a party left it.
    """

    parties: tuple[str, ...]
    table: str
    label: str
    weight: str | None
    features: tuple[str, ...]
    plan: HorizontalPlan
    forgot: bool = False
    before: str = ""
