"""What forms offer to choose from: tables and labels of the parties whose configuration is on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from fastapi import Depends, Request

from woodlot.dashboard.party_view import PartyView
from woodlot.jobs.job_messages import ModelFacts

_TABLE = "table."
"""Before the name of a party, the field of a form with its table."""


@dataclass(frozen=True)
class Choices:
    """What a form about a model offers.

    Attributes
    ----------
    tables : dict of str to tuple of str
        By party of the model its tables; empty where its configuration is not here, so that the name has to be typed.
    labels : tuple of str
        Labels as an order names them; empty where they are not known here.
    example : str
        A label, for who has to type one.
    """

    tables: dict[str, tuple[str, ...]]
    labels: tuple[str, ...]
    example: str


def choices_of(facts: ModelFacts, parties: Mapping[str, PartyView]) -> Choices:
    """What there is to choose from, for a model."""
    here = {name: parties[name] for name in facts.parties if name in parties}
    tables = {name: tuple(sorted(here[name].tables)) if name in here else () for name in facts.parties}
    rows = facts.layout == "rows"
    found: dict[str, None] = {}
    for name, view in here.items():
        if rows or name == facts.holder:
            for _, source in sorted(view.tables.items()):
                found |= {label if rows else f"{name}.{label}": None for label in source.labels or ()}
    return Choices(tables, tuple(found), "default" if rows else f"{facts.holder or 'bank'}.default")


@dataclass(frozen=True)
class Chosen:
    """Tables as a form has named them.

    Attributes
    ----------
    named : dict of str to str
        By party.
    text : str
        One name for all parties, or ``bank=a shop=b``; counts where nothing is named by party.
    """

    named: dict[str, str] = field(default_factory=dict)
    text: str = ""

    def tables(self, facts: ModelFacts) -> dict[str, str]:
        """The table of each party of a model."""
        if self.named:
            return {party: table for party, table in self.named.items() if party in facts.parties}
        spelled = dict(word.split("=", 1) for word in self.text.split() if "=" in word)
        return spelled or dict.fromkeys(facts.parties, self.text.strip())


async def chosen_tables(request: Request) -> Chosen:
    """Read the tables of a form, whose fields have the names of the parties in them."""
    form = await request.form()
    texts = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    named = {name.removeprefix(_TABLE): value for name, value in texts.items() if name.startswith(_TABLE) and value}
    return Chosen(named, texts.get("tables", ""))


Tables: TypeAlias = Annotated[Chosen, Depends(chosen_tables)]
"""The tables of a form, as a parameter of a page."""
