"""The page of a job: how far it is, who has learnt what in it, and attacks on the same setting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import HTMLResponse, JSONResponse

from woodlot.dashboard.leak_runs import ROWS, LeakRuns
from woodlot.dashboard.learnt import Matrix, Roles, leak_test, learnt, on_request
from woodlot.dashboard.views import estimator_settings, order_of
from woodlot.exceptions import DataError, WoodlotError
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.job_store import ENDED
from woodlot.jobs.kind import outcome_of
from woodlot.protocols.core.stakes import STAKES
from woodlot.runtime.audit import DisclosureRow

if TYPE_CHECKING:
    from woodlot.dashboard.app import Pages

_ROUNDS_SHOWN = 400
_RECORDS_SHOWN = 200

_MAKE_MODELS = ("model", "receipt", "erasure")
"""What comes of jobs that leave a model behind, also when a party has left or rows were forgotten."""


class JobPages:
    """Pages about one job.

    Parameters
    ----------
    pages : Pages
        The dashboard that they belong to.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._leak_runs = LeakRuns()
        get = pages.app.get
        get("/jobs/{job}", response_class=HTMLResponse)(self.job)
        get("/jobs/{job}/live", response_class=HTMLResponse)(self.live)
        get("/jobs/{job}/rounds")(self.rounds)
        get("/jobs/{job}/leak-test", response_class=HTMLResponse)(self.leak_test)
        pages.app.post("/jobs/{job}/leak-test", response_class=HTMLResponse)(self.run_leak_test)

    def job(self, job: str) -> HTMLResponse:
        """One job: how far it is, and what it has cost so far."""
        return self._pages.render("job", **self._details(job), **self._leaks(job))

    def live(self, job: str) -> HTMLResponse:
        """The part of a job's page that changes while it runs."""
        return self._pages.render("job_live", **self._details(job))

    def _details(self, job: str) -> dict[str, Any]:
        view = self._pages.the_coordinator()
        facts, records = view.job(job), view.records(job)
        return {
            "job": facts,
            "live": facts.state not in (*ENDED, "stopped"),
            "receipt": facts.state == "done" and outcome_of(facts.kind) == "receipt",
            "records": records[-_RECORDS_SHOWN:][::-1],
            "n_records": len(records),
            "matrix": self.matrix(facts),
            "stakes": STAKES,
        }

    def rounds(self, job: str) -> JSONResponse:
        """Time and bytes of each round, for the charts."""
        rounds = self._pages.the_coordinator().rounds(job)[-_ROUNDS_SHOWN:]
        parties = sorted({party for r in rounds for party in r.bytes_by_party})
        return JSONResponse(
            {
                "rounds": [r.number for r in rounds],
                "seconds": [round(r.seconds, 6) for r in rounds],
                "kinds": [", ".join(r.kinds) for r in rounds],
                "bytes": {party: [r.bytes_by_party.get(party, 0) for r in rounds] for party in parties},
            }
        )

    # --- who has learnt what ---

    def matrix(self, facts: JobFacts) -> Matrix:
        """Assets by roles, from the coordinator's record and, where it is here, the leader's account."""
        view = self._pages.the_coordinator()
        order = order_of(view, facts.job)
        holder = getattr(order, "holder", "") or ""
        roles = Roles(facts.leader or holder, bool(facts.leader), facts.user)
        offered = on_request(outcome_of(facts.kind), getattr(order, "answers_user", True))
        return learnt(view.disclosures(facts.job), roles, self._account(facts), offered)

    def _account(self, facts: JobFacts) -> list[DisclosureRow]:
        """What was in the frames of a job that has made a model, by its leader's account, where that is here."""
        for leader in self._pages.leaders.values():
            if facts.leader and leader.name.startswith(f"{facts.leader} ") and outcome_of(facts.kind) in _MAKE_MODELS:
                try:
                    return [DisclosureRow(**row) for row in json.loads(leader.model(facts.job).disclosure)]
                except WoodlotError:
                    return []
        return []

    # --- attacks on the same setting ---

    def _leaks(self, job: str) -> dict[str, Any]:
        command = self._command(job)
        run = self._leak_runs.of(command) if command else None
        return {"job_id": job, "leak_command": command, "leak_run": run, "leak_rows": ROWS}

    def _command(self, job: str) -> str:
        view = self._pages.the_coordinator()
        facts = view.job(job)
        try:
            params = estimator_settings(view.model(facts.model or job).settings)["params"]
        except WoodlotError:  # a job without a model
            params = {}
        return leak_test(facts.kind, bool(facts.leader), facts.protection == "hidden", params)

    def leak_test(self, job: str) -> HTMLResponse:
        """What the attacks have found, as far as they have run."""
        return self._pages.render("leak_test", **self._leaks(job))

    def run_leak_test(self, request: Request, job: str) -> HTMLResponse:
        """Begin to attack made-up tables under the settings of a job."""
        self._pages.check_may_act(request)
        command = self._command(job)
        if not command:
            raise DataError("the leak test has no attack on jobs of this kind")
        self._leak_runs.start(command)
        return self.leak_test(job)
