"""What a party has spent of its privacy, by table, and what it has told without: for its own eyes.

An epsilon is said of the charged releases only. The jobs that learnt from the table without differential privacy stand
beside it, since for them no epsilon bounds what was learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from sqlite3 import Connection
from typing import Any

from woodlot.exceptions import ConfigError
from woodlot.identity.identity import Identity
from woodlot.privacy.accounting import UNITS, Unit, in_plain_words
from woodlot.privacy.budget import BudgetRecord, Use
from woodlot.runtime.journal import Journal
from woodlot.service.agent import JOURNAL
from woodlot.service.config import PartyConfig

_ABOUT: dict[Unit, str] = {"labels": "the label of one row", "rows": "one row"}


def privacy_accounts(settings: PartyConfig) -> list[dict[str, Any]]:
    """One entry for each table that is configured, was ever released from or was ever learnt from.

    An entry has the two ``accounts`` of the table, and ``uses``: the jobs without differential privacy. The record is
    only read, also while the party runs.
    """
    party, file = Identity.load(settings.identity).name, settings.state / JOURNAL
    if not file.exists():
        raise ConfigError(f"{settings.state} has no {JOURNAL} yet: the party has never run with this configuration")

    def read(db: Connection) -> list[dict[str, Any]]:
        record = BudgetRecord(db)
        known = [dataset for client, dataset in record.accounts() if client == party]
        tables = [*settings.tables, *(table for table in known if table not in settings.tables)]
        return [_entry(settings, record, party, table) for table in tables]

    with closing(Journal.read(file)) as journal:
        return journal.consult(read)


def _entry(settings: PartyConfig, record: BudgetRecord, party: str, table: str) -> dict[str, Any]:
    uses = record.uses(party, table)
    return {
        "party": party,
        "table": table,
        "accounts": [_account(settings, record, party, table, unit, uses) for unit in UNITS],
        "uses": [{"job": use.job, "kind": use.kind, "units": list(use.units)} for use in uses],
    }


def _account(
    settings: PartyConfig, record: BudgetRecord, party: str, table: str, unit: Unit, uses: Sequence[Use]
) -> dict[str, Any]:
    delta, budget = settings.privacy.delta, settings.privacy.budgets.of(unit)
    delta = max(delta, record.spent_delta(party, table, unit))
    epsilon = record.spent(party, table, unit, delta)
    return {
        "unit": unit,
        "epsilon": epsilon,
        "delta": delta,
        "budget": None if budget is None else budget.epsilon,
        "meaning": charged_in_words(unit, epsilon, delta),
        "uncovered": uncovered_in_words(unit, uses),
        "releases": [
            {
                "release": charge.release,
                "job": charge.job,
                "mechanism": charge.mechanism,
                "epsilon": charge.spend.epsilon,
                "count": charge.spend.count,
                "delta": charge.spend.delta,
            }
            for charge in record.charges(party, table)
            if charge.unit == unit
        ],
    }


def charged_in_words(unit: Unit, epsilon: float, delta: float = 0.0) -> str:
    """What the charged releases of one account tell at most; nothing is said of other uses."""
    if epsilon == 0:
        return "no differentially private release is charged to this account"
    return f"of {_ABOUT[unit]}, by the charged releases alone: {in_plain_words(epsilon, delta)}"


def uncovered_in_words(unit: Unit, uses: Sequence[Use]) -> str:
    """Which jobs told of labels, or of rows, without differential privacy; empty where none did."""
    kinds = [use.kind for use in uses if unit in use.units]
    if not kinds:
        return ""
    trainings = sum("train" in kind or "revoke" in kind for kind in kinds)
    others = len(kinds) - trainings
    counted = [
        f"{n} {what if n == 1 else what + 's'}"
        for n, what in ((trainings, "training"), (others, "other job" if trainings else "job"))
        if n
    ]
    has, them = ("has", "it") if len(kinds) == 1 else ("have", "them")
    return (
        f"{' and '.join(counted)} {has} used this table without differential privacy of {unit}; for {them} no epsilon "
        f"bounds what is learnt of {_ABOUT[unit]}"
    )
