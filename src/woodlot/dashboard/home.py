"""The first page: the federation as a map that follows what happens, and a page of members and settings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi.responses import HTMLResponse, Response

from woodlot.dashboard.federation_map import MINUTE, MapFacts, MapMember, by_line, draw_narrow, draw_wide
from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.views import COORDINATOR, CoordinatorView, Flow, PartyRow
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.job_store import ENDED
from woodlot.protocols.core.stakes import STAKES

if TYPE_CHECKING:
    from woodlot.dashboard.app import Pages

_LATEST = 5
"""Jobs that have ended which the first page names."""
_PARTY_JOBS = 20
"""Jobs of a party's own record in which messages of the last minute are looked for."""


class Home:
    """The first page, its live part, and the page of settings.

    Parameters
    ----------
    pages : Pages
        The dashboard that they belong to.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        get = pages.app.get
        get("/", response_class=HTMLResponse)(self.federation)
        get("/map", response_class=HTMLResponse)(self.map)
        get("/settings", response_class=HTMLResponse)(self.settings)

    def federation(self) -> HTMLResponse:
        """Who belongs to it, who is there, and what happens now."""
        coordinator = self._pages.coordinator
        lines, jobs = self._known()
        return self._pages.render(
            "federation",
            coordinator=coordinator,
            lines=lines,
            latest=[job for job in jobs if job.state in ENDED][:_LATEST],
            **self._map(lines, jobs),
        )

    def map(self, seen: str = "") -> Response:
        """The part that changes; nothing if the browser has seen it as it is."""
        facts = self._map(*self._known())
        if facts["map"].digest == seen:
            return Response(status_code=204)
        return self._pages.render("map", **facts)

    def settings(self) -> HTMLResponse:
        """Members with their certificates, and the policies of the parties that are here."""
        coordinator = self._pages.coordinator
        return self._pages.render(
            "settings",
            coordinator=coordinator,
            lines=[] if coordinator is None else coordinator.parties(),
            parties=list(self._pages.parties.values()),
        )

    def _known(self) -> tuple[list[PartyRow], list[JobFacts]]:
        coordinator = self._pages.coordinator
        return ([], []) if coordinator is None else (coordinator.parties(), coordinator.jobs())

    def _map(self, lines: list[PartyRow], jobs: list[JobFacts]) -> dict[str, Any]:
        now, coordinator = time.time(), self._pages.coordinator
        if coordinator is None:
            facts = map_of_parties(list(self._pages.parties.values()), now)
        else:
            facts = map_of_coordinator(coordinator, lines, jobs, now)
        return {
            "map": facts, "drawings": [draw_wide(facts), draw_narrow(facts)], "lines_of_map": by_line(facts.flows),
            "stakes": STAKES, "knows_all": coordinator is not None,
        }  # fmt: skip


def map_of_coordinator(view: CoordinatorView, lines: list[PartyRow], jobs: list[JobFacts], now: float) -> MapFacts:
    """The map by the coordinator's record.

    Parameters
    ----------
    view : CoordinatorView
        Its state folder.
    lines, jobs
        The parties and the jobs, as `view` has them.
    now : float
        The time, in seconds since 1970.
    """
    unfinished = [job for job in jobs if job.state not in ENDED]
    recent = [job.job for job in jobs if job.ended is None or job.ended > now - MINUTE]
    models = [model for model in view.models() if not model.replaced_by]
    running = [job for job in unfinished if job.state == "running"]
    members = tuple(
        MapMember(
            name=line.name,
            since=line.since,
            seen=line.seen,
            n_rows=line.n_rows,
            n_columns=line.n_columns,
            leads=sum(model.leader == line.name for model in models),
            has_labels=any(model.holder == line.name for model in models),
            doing=tuple(dict.fromkeys(job.kind for job in running if line.name in job.parties)),
        )
        for line in lines
    )
    flows = tuple(_merged(view.flows(recent, now - MINUTE)))
    return MapFacts(view.running(), members, tuple(unfinished), flows)


def map_of_parties(views: list[PartyView], now: float) -> MapFacts:
    """The map by the records of some parties: whether they are connected, only the coordinator knows."""
    flows = [
        flow
        for view in views
        for flow in view.flows(view.latest_jobs(_PARTY_JOBS), now - MINUTE)
        if COORDINATOR in (flow.sender, flow.receiver)
    ]
    return MapFacts(None, tuple(MapMember(view.name, is_known=False) for view in views), (), tuple(_merged(flows)))


def _merged(flows: list[Flow]) -> list[Flow]:
    """Flows of several jobs, each line and kind once."""
    found: dict[tuple[str, str, str], Flow] = {}
    for flow in flows:
        key = (flow.sender, flow.receiver, flow.kind)
        before = found.get(key)
        found[key] = flow if before is None else Flow(*key, before.count + flow.count, before.bytes + flow.bytes)
    return [found[key] for key in sorted(found)]
