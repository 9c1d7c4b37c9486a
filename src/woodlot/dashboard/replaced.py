"""What became of a model that another has taken the place of: links to it that people have kept lead on from here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from woodlot.dashboard.views import CoordinatorView
from woodlot.exceptions import DataError
from woodlot.jobs.job_messages import ModelFacts


@dataclass(frozen=True)
class Replacement:
    """One model that has taken the place of another.

    Attributes
    ----------
    model : str
        Its id, and that of the job that has made it.
    left : tuple of str
        Who has left; empty: rows were forgotten.
    is_there : bool
        Whether it is known yet: False where it was deleted.
    """

    model: str
    left: tuple[str, ...] = ()
    is_there: bool = True


def replacements(view: CoordinatorView, facts: ModelFacts) -> Iterator[Replacement]:
    """All that have taken the place of a model, one after another; the last one is in use, or was deleted."""
    while facts.replaced_by:
        try:
            after = view.model(facts.replaced_by)
        except DataError:
            yield Replacement(facts.replaced_by, is_there=False)
            return
        forgot = after.former == facts.model
        yield Replacement(after.model, () if forgot else tuple(sorted(set(facts.parties) - set(after.parties))))
        facts = after


def became(view: CoordinatorView, model: str) -> tuple[ModelFacts, tuple[Replacement, ...]] | None:
    """What is known of a model that was replaced, and by what; None where this role does not know of one."""
    try:
        facts = view.model(model)
    except DataError:
        return None
    return (facts, tuple(replacements(view, facts))) if facts.replaced_by else None
