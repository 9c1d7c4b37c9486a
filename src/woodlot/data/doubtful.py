"""Text that is probably not meant as categories: warned about, by column, with what to do."""

from __future__ import annotations

import warnings

from woodlot.data.columns import CategoryColumn

FEWEST_NUMBERS = 3
"""Texts that look like numbers are warned about from so many on: of two values an order means nothing."""
FEWEST_ROWS = 20
"""Texts that are all different are warned about from so many rows on: in fewer it may be chance."""


class DoubtfulTextWarning(UserWarning):
    """A column of text was read as categories, and probably should not be."""


def doubt_text(column: CategoryColumn, name: str, what: str) -> None:
    """Warn of a column of plain text that looks like numbers, or differs in every row.

    Values are not quoted: warnings are logged, and these may be ids.
    """
    texts, present = column.categories, int((column.codes >= 0).sum())
    if len(texts) >= FEWEST_NUMBERS and all(map(_is_number, texts)):
        advice = (
            "holds text that looks like numbers, and each text is a category without order. Convert it to numbers, as "
            f"with pandas.to_numeric(table[{name!r}]), or to a categorical type if categories are meant"
        )
    elif present >= FEWEST_ROWS and len(texts) == present:
        advice = (
            "holds a different text in every row, from which nothing can be learnt. Leave it out, or name it with id= "
            "if it identifies the rows"
        )
    else:
        return
    warnings.warn(f"Column {name!r} of {what} {advice}.", DoubtfulTextWarning, stacklevel=2)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
