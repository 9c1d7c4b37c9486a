"""The catalogue as a kind of job: every party is asked, and its page is sealed to the user."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from woodlot.data.columns import NumericColumn
from woodlot.jobs.catalog.catalog_messages import AskCatalog, CatalogTold
from woodlot.jobs.evaluate.report_seal import ReportSeal
from woodlot.jobs.home import TakenOrder
from woodlot.jobs.job_messages import OpenJob
from woodlot.jobs.orders import Order
from woodlot.privacy.accounting import Unit
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept


class CatalogOrder(Order, frozen=True, kw_only=True, tag="catalog"):
    """Have each party tell the user of the columns that it offers; each part has the key of its page."""


class ToldColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column: its name, as what it is learnt from, and the share of rows without a value; None: not told."""

    name: str
    kind: Literal["numbers", "categories"] | None = None
    missing: float | None = None


class CatalogPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one party tells: its columns and those that may be labels, None where names are not told; and its rows."""

    columns: tuple[ToldColumn, ...] | None = None
    labels: tuple[str, ...] | None = None
    rows: int | None = None


def catalog_job(
    order: CatalogOrder, opening: OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], dict[str, bytes]]:
    """Bring the order to every party, and collect the pages."""
    yield Round("open", dict.fromkeys(order.parties, opening))
    replies = yield Round("catalog", dict.fromkeys(order.parties, AskCatalog()))
    return {party: reply_of(replies[party], CatalogTold, party).page.tobytes() for party in order.parties}


class CatalogWork(MessageHandler):
    """What a party tells of its table."""

    n_aligned = None

    def __init__(self, taken: TakenOrder[CatalogOrder]) -> None:
        self._taken = taken
        self._told = taken.home.policy.catalog
        self._seal = ReportSeal(taken.part.key, taken.job, taken.home.identity.name)

    @property
    def uncovered(self) -> tuple[Unit, ...]:
        """Numbers of rows are told without differential privacy, where they are told."""
        return ("rows",) if {"missing", "rows"} & set(self._told) else ()

    @takes(AskCatalog)
    def tell(self, message: AskCatalog) -> CatalogTold:
        """Tell what the policy lets be told."""
        return CatalogTold(page=np.frombuffer(self._seal.seal(self._page()), np.uint8))

    def _page(self) -> CatalogPage:
        loaded, told = self._taken.loaded, self._told
        rows = loaded.n_rows if "rows" in told else None
        if "names" not in told:
            return CatalogPage(rows=rows)
        table = loaded.table()
        columns = []
        for name in loaded.features:
            column = table.column(name)
            numeric = isinstance(column, NumericColumn)
            lacking = np.isnan(column.values) if isinstance(column, NumericColumn) else column.codes < 0
            columns.append(
                ToldColumn(
                    name,
                    ("numbers" if numeric else "categories") if "types" in told else None,
                    float(lacking.mean()) if "missing" in told else None,
                )
            )
        source = self._taken.home.tables[self._taken.part.table]
        return CatalogPage(tuple(columns), tuple(name for name in loaded.columns if source.may_label(name)), rows)


def keep_catalog(kept: Kept, outcome: dict[str, bytes]) -> dict[str, Any]:
    """Tell the user the pages, which are sealed."""
    return {"told": json.dumps({party: page.hex() for party, page in outcome.items()})}
