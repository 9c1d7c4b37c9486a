"""Orders that wait for the owners of the parties on this machine, and the two buttons that decide about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, Response

from woodlot.dashboard.guard import USER_KEY
from woodlot.dashboard.party_view import PartyView
from woodlot.exceptions import DataError, PolicyError
from woodlot.jobs.approvals import APPROVALS, Approvals


class ApprovalPages:
    """The page of approvals.

    Parameters
    ----------
    app : FastAPI
        Where the page is added.
    parties : mapping of str to PartyView
        The parties on this machine.
    render : callable
        From the name of a template and what it shows to the page.
    """

    def __init__(self, app: FastAPI, parties: Mapping[str, PartyView], render: Callable[..., HTMLResponse]) -> None:
        self._parties = parties
        self._render = render
        app.get("/approvals", response_class=HTMLResponse)(self.approvals)
        app.post("/approvals/{party}/{entry}")(self.decide)

    def approvals(self, request: Request) -> HTMLResponse:
        """All orders that were to be decided about, those that wait first."""
        found = []
        for name, view in self._parties.items():
            if (view.folder / APPROVALS).is_file():  # else its service has not run yet
                with self._record(name) as record:
                    found += [(name, entry) for entry in record.listed(every=True)]
        found.sort(key=lambda one: (one[1].state != "waiting", -one[1].asked))
        return self._render("approvals", entries=found, decides=USER_KEY not in request.scope)

    def decide(
        self,
        request: Request,
        party: str,
        entry: str,
        decision: Annotated[str, Form(pattern="^(allow|refuse)$")],
        reason: Annotated[str, Form()] = "",
    ) -> Response:
        """Allow or refuse an order."""
        if USER_KEY in request.scope:  # users may look from elsewhere; they may be those who ask
            raise PolicyError("orders are decided about on the machine of the party; use woodlot approvals there")
        if party not in self._parties:
            raise DataError(f"the folder of {party!r} is not on this machine")
        with self._record(party) as record:
            record.decide(entry, allow=decision == "allow", reason=reason)
        return Response(status_code=204, headers={"HX-Redirect": "/approvals"})

    def _record(self, party: str) -> Approvals:
        config = self._parties[party].config
        return Approvals(config.state, config.policy.approval_days)
