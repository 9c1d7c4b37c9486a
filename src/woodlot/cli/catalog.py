"""``woodlot catalog``: which columns the parties offer, as far as they tell it."""

from __future__ import annotations

from woodlot.cli._client import (
    Access,
    AsJson,
    CoordinatorOption,
    IdentityOption,
    JobFile,
    JobFileOption,
    PartiesOption,
    TablesOption,
    connecting,
    parse_tables,
    print_json,
    quiet_logs,
    reporting,
)
from woodlot.exceptions import ConfigError


def catalog(
    tables: TablesOption = None,
    party: PartiesOption = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Show which columns the parties offer to learn from: names, types and missing shares, and no values.

    Each party tells what the setting catalog of its policy lists, to users who may train or predict. What it tells is
    sealed to you.

    Example: woodlot catalog --tables customers
    """
    with reporting(as_json):
        if tables is None:
            raise ConfigError("name the tables of the parties, such as --tables customers")
        access = Access.find(coordinator, identity, JobFile.read(job))
        from woodlot.connected import connect

        quiet_logs()
        with connecting(access):
            federation = connect(access.address, access.identity, tables=parse_tables(tables), parties=party)
        with federation:
            found = federation.catalog()
        if as_json:
            print_json(
                {
                    "columns": found.to_dicts(),
                    "labels": list(found.labels),
                    "rows": found.rows,
                    "not_told": list(found.closed),
                }
            )
            return
        from woodlot.cli import _show as show

        show.stdout().print(repr(found), markup=False, highlight=False)
