"""What a party has spent of its privacy, by table: for its own eyes."""

from __future__ import annotations

from contextlib import closing
from sqlite3 import Connection
from typing import Any

from woodlot.exceptions import ConfigError
from woodlot.privacy.accounting import in_plain_words
from woodlot.privacy.budget import Charge, Ledger
from woodlot.runtime.journal import Journal
from woodlot.service.agent import JOURNAL
from woodlot.service.config import PartyConfig
from woodlot.service.identity import Identity


def privacy_accounts(settings: PartyConfig) -> list[dict[str, Any]]:
    """One entry for each table that is configured or has ever been released from.

    The record is only read, also while the party runs.
    """
    party, file = Identity.load(settings.identity).name, settings.state / JOURNAL
    if not file.exists():
        raise ConfigError(f"{settings.state} has no {JOURNAL} yet: the party has never run with this configuration")
    delta = settings.privacy.delta

    def read(db: Connection) -> tuple[dict[str, list[Charge]], dict[str, float]]:
        ledger = Ledger(db)
        charged = [dataset for client, dataset in ledger.accounts() if client == party]
        tables = [*settings.tables, *(table for table in charged if table not in settings.tables)]
        return (
            {table: ledger.charges(party, table) for table in tables},
            {table: ledger.spent(party, table, delta) for table in tables},
        )

    with closing(Journal.read(file)) as journal:
        charges, spent = journal.consult(read)
    return [
        {
            "party": party,
            "table": table,
            "epsilon": spent[table],
            "delta": delta,
            "budget": settings.privacy.epsilon,
            "meaning": in_plain_words(spent[table], delta),
            "releases": [
                {
                    "release": charge.release,
                    "job": charge.job,
                    "mechanism": charge.mechanism,
                    "epsilon": charge.spend.epsilon,
                    "count": charge.spend.count,
                }
                for charge in charges[table]
            ],
        }
        for table in charges
    ]
