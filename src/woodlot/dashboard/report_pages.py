"""The page from which a compliance report is made, and the report itself, to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.responses import HTMLResponse, Response

from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.report import Period, report_of_coordinator, report_of_party

if TYPE_CHECKING:
    from woodlot.dashboard.app import Pages


class ReportPages:
    """Pages about reports.

    Parameters
    ----------
    pages : Pages
        The dashboard that they belong to.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        pages.app.get("/report", response_class=HTMLResponse)(self.report)
        pages.app.get("/report/file")(self.file)

    def report(self, role: str = "") -> HTMLResponse:
        """What a report has in it, and for which period."""
        return self._pages.render("report_form", role or None, period=Period.read("", ""))

    def file(self, request: Request, role: str = "", first: str = "", last: str = "") -> Response:
        """A signed report; the browser keeps it as a file."""
        self._pages.check_may_act(request)  # it is signed by the role, so not everybody who may look has one made
        role = role or self._pages.roles[0]
        period = Period.read(first, last)
        view, templates = self._pages.view(role), self._pages.templates
        if isinstance(view, PartyView):
            made = report_of_party(view, period, templates)
        else:
            made = report_of_coordinator(self._pages.the_coordinator(), period, templates)
        name = f"report-{view.identity.name}-{period.last}.html"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(made.to_bytes(), media_type="text/html; charset=utf-8", headers=headers)
