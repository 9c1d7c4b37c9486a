"""Rows that the dashboard's user has a model forget, in the background; receipt and key stay in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Form, Request
from fastapi.responses import HTMLResponse, Response

from woodlot.connected import ConnectedFederation
from woodlot.connected.connected_estimators import forgetting_order
from woodlot.connected.forgotten_rows import check_named
from woodlot.dashboard.choices import Tables
from woodlot.dashboard.watching import Ordered, in_background, read_ids
from woodlot.exceptions import DataError
from woodlot.identity.erasure import ErasureReceipt
from woodlot.jobs.forget.forget_jobs import check_model
from woodlot.jobs.job_messages import ModelFacts
from woodlot.protocols.rows.row_forgetting import NOISY
from woodlot.service.client import Client

if TYPE_CHECKING:
    from woodlot.dashboard.app import Pages


@dataclass
class OrderedErasure(Ordered):
    """Rows that a model was told to forget."""

    key: bytes = b""
    receipt: ErasureReceipt | None = None


class Forgetting:
    """Orders that rows are forgotten.

    Parameters
    ----------
    client : callable
        Gives a connection of the dashboard's user.
    """

    def __init__(self, client: Callable[[], Client]) -> None:
        self._client = client
        self.forgotten: dict[str, OrderedErasure] = {}

    def forget(
        self,
        model: str,
        tables: Mapping[str, str],
        label: str,
        ids: str,
        as_text: bool,
        *,
        weight: str = "",
        at: str = "",
    ) -> OrderedErasure:
        """Begin to have a model grown again without some rows.

        Parameters
        ----------
        model : str
            The forest.
        tables : mapping of str to str
            By party the table of the training.
        label : str
            The label of the training.
        ids : str
            Ids of the rows, between commas or blanks.
        as_text : bool
            Whether ids that look like numbers are text.
        weight : str
            Weights of the rows in the training; empty: none.
        at : str
            Of a forest over rows, the only party that is told the ids; empty: all of them.
        """
        if model in self.forgotten and self.forgotten[model].state == "running":
            raise DataError("this model is forgetting rows already; wait until that is done")
        wanted = read_ids(ids, as_text)
        if not wanted:
            raise DataError("name the rows by their ids, as in the parties' tables")
        found = self.forgotten[model] = OrderedErasure()
        asked = {at: wanted} if at else wanted
        in_background(found, lambda: self._forget(model, tables, (label, weight or None), asked, found))
        return found

    def known(self, model: str) -> OrderedErasure | None:
        """What was forgotten of a model, or to make it: both have it on their pages."""
        return self.forgotten.get(model) or next((one for one in self.forgotten.values() if one.job == model), None)

    def _forget(
        self,
        model: str,
        tables: Mapping[str, str],
        learnt: tuple[str, str | None],
        ids: list[object] | dict[str, list[object]],
        found: OrderedErasure,
    ) -> None:
        with self._client() as client:
            federation = ConnectedFederation(client, tables, "keyed-hash", "inner")
            facts = client.find_model(model)
            order, found.key = forgetting_order(federation, facts, ids, *learnt)
            found.job = order.job
            federation.run(order)
            found.receipt = client.erasure(order.job, found.key)
            check_named(found.receipt, ids, facts.parties)


def why_kept(facts: ModelFacts) -> str:
    """Why rows cannot be taken out of a model here; empty where they can."""
    if facts.layout == "rows":
        claim = json.loads(facts.privacy)
        return f"Rows cannot be taken out of this model: {NOISY}." if claim and claim["epsilon"] is not None else ""
    try:
        check_model(facts, linear=facts.is_linear)
    except DataError as error:
        return f"Rows cannot be taken out of this model: {error}."
    return ""


class ForgetPages:
    """The part of a model's page from which rows are forgotten, and what comes of it as files.

    Parameters
    ----------
    pages : Pages
        The dashboard that it belongs to.
    part : callable
        Renders a part of a model's page by its template.
    """

    def __init__(self, pages: Pages, part: Callable[[str, Request, str], HTMLResponse]) -> None:
        self._pages, self._part = pages, part
        pages.app.post("/models/{model}/forgotten", response_class=HTMLResponse)(self.forget)
        pages.app.get("/models/{model}/forgotten/receipt")(self.receipt)
        pages.app.get("/models/{model}/forgotten/key")(self.key)

    def forget(
        self,
        request: Request,
        model: str,
        chosen: Tables,
        label: Annotated[str, Form()],
        ids: Annotated[str, Form(max_length=40_000)] = "",
        text: Annotated[bool, Form()] = False,
        weight: Annotated[str, Form()] = "",
        at: Annotated[str, Form()] = "",
    ) -> HTMLResponse:
        """Begin to have the parties grow a forest again without some rows."""
        tables = chosen.tables(self._pages.facts_of(model))
        self._pages.acting(request).forgetting.forget(model, tables, label, ids, text, weight=weight, at=at)
        return self._part("forgotten", request, model)

    def receipt(self, request: Request, model: str) -> Response:
        """The receipt, to keep."""
        receipt = self._done(request, model).receipt
        if receipt is None:
            raise DataError("there is no receipt yet: the job goes on, or has failed")
        return _file(receipt.to_json(), f"forgotten-{model[:8]}.json", "application/json")

    def key(self, request: Request, model: str) -> Response:
        """The key of the ids in the receipt, to keep apart from it."""
        return _file(self._done(request, model).key.hex() + "\n", f"forgotten-{model[:8]}.key", "text/plain")

    def _done(self, request: Request, model: str) -> OrderedErasure:
        found = self._pages.acting(request).forgetting.known(model)
        if found is None:
            raise DataError(f"no rows of model {model!r} were forgotten from here since this dashboard has started")
        return found


def _file(text: str, name: str, media_type: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return Response(text, media_type=media_type, headers=headers)
