"""A real federation for experiments: coordinator and parties as processes, behind a link of given quality."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from woodlot.connected import ConnectedFederation, connect
from woodlot.service.local import LocalFederation, local_federation
from woodlot_lab.forests import Split
from woodlot_lab.link import Link, Relay

ID, LABEL = "id", "label"
NO_LINK = Link()
PAPER_LINK = Link(delay=0.01, rate=20e6)
"""Federated Forest's bandwidth ("20m/s", read as megabits); it names no delay: 20 ms there and back."""


class Network:
    """A running federation.

    Attributes
    ----------
    link : Link
        Between the parties and the coordinator; may be set between measurements.

    """

    def __init__(self, federation: LocalFederation, relay: Relay) -> None:
        self._federation = federation
        self._relay = relay

    @property
    def link(self) -> Link:
        return self._relay.link

    @link.setter
    def link(self, link: Link) -> None:
        self._relay.link = link

    @contextmanager
    def rows(
        self, table: str, parties: Sequence[str], lead: Literal["holder", "coordinator"] | None = None
    ) -> Iterator[ConnectedFederation]:
        """The rows of one table at some parties, aligned; ``lead`` says who runs a training."""
        address, identity = self._federation.address, self._federation.identity
        with connect(address, identity, tables=table, parties=parties, lead=lead) as federation:
            federation.align()
            yield federation


def tables_of(rows: Split, columns: Mapping[str, Sequence[int]], *, test: bool) -> dict[str, pa.Table]:
    """The rows of one side of a split as tables of the parties; the first one has the labels."""
    X, y = (rows.test, rows.y_test) if test else (rows.train, rows.y_train)
    tables = {
        party: pa.table({ID: np.arange(len(y)), **{f"x{column}": X[:, column] for column in own}})
        for party, own in columns.items()
    }
    first = next(iter(columns))
    tables[first] = tables[first].append_column(LABEL, pa.array(y))
    return tables


@contextmanager
def networked(tables: Mapping[str, Mapping[str, pa.Table]]) -> Iterator[Network]:
    """Start a process for the coordinator and each party; at the end nothing of them is left.

    Parameters
    ----------
    tables : mapping
        For each name of a table, the parties' parts of it.

    """
    parties = list(dict.fromkeys(party for parts in tables.values() for party in parts))
    with local_federation(parties) as federation:
        files: dict[str, dict[str, str]] = {party: {} for party in parties}
        labels: dict[str, list[str]] = {}
        for name, parts in tables.items():
            for party, table in parts.items():
                files[party][name] = f"{name}.parquet"
                if LABEL in table.column_names:
                    labels[party] = [LABEL]
                pq.write_table(table, federation.root / party / files[party][name])
        relays: list[Relay] = []

        def dial(address: str) -> str:
            relays.append(Relay(address, NO_LINK))
            return relays[0].address

        try:
            federation.start(files, ID, n_jobs=1, labels=labels, dial=dial)
            federation.wait_connected()
            yield Network(federation, relays[0])
        finally:
            for relay in relays:
                relay.close()
