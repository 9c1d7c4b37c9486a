"""What models may be called, and which one a user means: nobody's name takes the place of another's id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from woodlot.exceptions import DataError

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import ModelFacts

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LIKE_ID = re.compile(r"[0-9a-f]*")

_SHOWN = 5  # candidates that an error lists


def check_model_name(name: str) -> None:
    """Raise a ValueError unless a model can be called so."""
    if not _NAME.fullmatch(name):
        shown = repr(name) if len(name) <= 64 else f"of {len(name):,} characters"
        raise ValueError(f"name {shown} must be up to 64 letters, digits, dots, dashes and underscores")
    if _LIKE_ID.fullmatch(name):
        raise ValueError(
            f"name {name!r} could be the beginning of an id; add something but digits and a to f: {name}-x"
        )


def meant(name: str, user: str, models: Sequence[ModelFacts]) -> ModelFacts | None:
    """The model that a user means by an id, the beginning of one, or a name; None if there is none.

    The user's own models come before those of others, and ids before names. Of several of one user that are called
    alike, the newest is meant.

    Parameters
    ----------
    name : str
        What the user says.
    user : str
        Who says it.
    models : sequence of ModelFacts
        All there are, newest first.

    Raises
    ------
    DataError
        If several could be meant; it lists them.

    """
    if not name:
        return None
    for own in (True, False):
        group = [model for model in models if (model.user == user) == own]
        begins = [model for model in group if model.model.startswith(name)]
        if len(begins) > 1:
            raise DataError(
                f"{name!r} begins the ids of {len(begins)} models ({_listed(begins, name)}); give more of it"
            )
        if begins:
            return begins[0]
        called = [model for model in group if model.name == name]
        newest = list({model.user: model for model in reversed(called)}.values())
        if len(newest) > 1:
            raise DataError(f"{len(newest)} users have a model {name!r} ({_listed(newest, name)}); give its id")
        if newest:
            return newest[0]
    return None


def _listed(models: Sequence[ModelFacts], name: str) -> str:
    digits = max(8, len(name) + 4)
    shown = [f"{model.model[:digits]} of {model.user}" for model in models[:_SHOWN]]
    return ", ".join(shown + ["..."] * (len(models) > _SHOWN))
