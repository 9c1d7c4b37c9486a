"""The pages. Each shows what one role knows: the coordinator, or a party whose folder is on this machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles

from woodlot.dashboard import trees
from woodlot.dashboard.actions import Actions
from woodlot.dashboard.approval_pages import ApprovalPages
from woodlot.dashboard.doing import Doing
from woodlot.dashboard.guard import USER_KEY
from woodlot.dashboard.home import Home
from woodlot.dashboard.job_pages import JobPages
from woodlot.dashboard.leader_view import LeaderView
from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.replaced import Replacement, became
from woodlot.dashboard.report_pages import ReportPages
from woodlot.dashboard.templating import page_templates
from woodlot.dashboard.views import COORDINATOR, CoordinatorView, estimator_settings
from woodlot.exceptions import DataError, PolicyError, WoodlotError
from woodlot.identity.receipts import Receipt
from woodlot.jobs.job_messages import ModelFacts
from woodlot.jobs.kind import known
from woodlot.privacy.claims import claim_in_words
from woodlot.protocols.core.stakes import STAKES, stake_of
from woodlot.protocols.vertical.out_of_bag import WITHHELD
from woodlot.service.party import LED

STATIC = Path(__file__).parent / "static"
LIVE_SECONDS = 0.5
"""How often a live page looks for news."""
_SCORES_SHOWN = 10


class Pages:
    """The dashboard of the roles whose folders are on this machine.

    Parameters
    ----------
    coordinator : CoordinatorView or None
        The coordinator, where it is here.
    parties : sequence of PartyView
        The parties that are here.
    actions : Actions or None
        The user in whose name something may be done; None: only to look at.
    """

    def __init__(
        self, coordinator: CoordinatorView | None, parties: list[PartyView], actions: Actions | None = None
    ) -> None:
        if coordinator is None and not parties:
            raise DataError("a dashboard needs the configuration of a coordinator or a party")
        known()  # messages of other packages' kinds, too, or pages would not know what they tell
        self.coordinator = coordinator
        self.parties = {view.name: view for view in parties}
        led = [LeaderView(view.config) for view in parties if (view.folder / LED).is_dir()]
        self.leaders = {view.name: view for view in led}
        self.actions = actions
        self.templates = page_templates()
        self.app = FastAPI(title="Woodlot", docs_url=None, redoc_url=None, openapi_url=None)
        self.app.mount("/static", _Assets(directory=STATIC), name="static")
        self.app.add_exception_handler(WoodlotError, self._on_error)
        self._add_routes()
        Home(self)
        JobPages(self)
        self._doing = Doing(self)
        ReportPages(self)

    @property
    def roles(self) -> list[str]:
        """Who can be looked at: the coordinator first."""
        return ([COORDINATOR] if self.coordinator is not None else []) + list(self.parties)

    def view(self, role: str) -> CoordinatorView | PartyView:
        """What a role knows."""
        if role == COORDINATOR and self.coordinator is not None:
            return self.coordinator
        if role in self.parties:
            return self.parties[role]
        if role in self.leaders:
            return self.leaders[role]
        raise DataError(f"the folder of {role!r} is not on this machine; here are {', '.join(self.roles)}")

    def _add_routes(self) -> None:
        get = self.app.get
        get("/jobs", response_class=HTMLResponse)(self.jobs)
        get("/models", response_class=HTMLResponse)(self.models)
        get("/models/{model}", response_class=HTMLResponse)(self.model)
        get("/models/{model}/trees/{tree}", response_class=HTMLResponse)(self.tree)
        get("/models/{model}/trees/{tree}/nodes")(self.nodes)
        get("/models/{model}/trees/{tree}/way")(self.way)
        get("/disclosure", response_class=HTMLResponse)(self.disclosure)
        get("/receipts", response_class=HTMLResponse)(self.receipts)
        get("/receipts/{job}", response_class=HTMLResponse)(self.receipt)
        get("/receipts/{job}/file")(self.receipt_file)
        get("/budget", response_class=HTMLResponse)(self.budget)
        get("/answers", response_class=HTMLResponse)(self.answers)
        get("/events")(self.events)
        ApprovalPages(self.app, self.parties, self.render)

    # --- rendering ---

    def render(self, name: str, role: str | None = None, **facts: Any) -> HTMLResponse:
        """A page from its template, with what all pages show."""
        shared = {
            "roles": self.roles,
            "role": role or self.roles[0],
            "page": name,
            "csrf": self.app.state.guard.csrf,
            "user": None if self.actions is None else self.actions.user,
            "now": time.time(),
        }
        return HTMLResponse(self.templates.get_template(f"{name}.html").render(shared | facts))

    async def _on_error(self, request: Request, error: Exception) -> Response:
        status = 403 if isinstance(error, PolicyError) else 404 if isinstance(error, DataError) else 500
        if "text/html" not in request.headers.get("accept", "") or request.headers.get("hx-request"):
            return JSONResponse({"error": str(error)}, status)
        title = {403: "Not allowed", 404: "Not found"}.get(status, "This could not be done")
        page = self.render("error", title=title, reason=str(error))
        page.status_code = status
        return page

    # --- looking ---

    def jobs(self) -> HTMLResponse:
        """All jobs."""
        return self.render("jobs", jobs=[] if self.coordinator is None else self.coordinator.jobs())

    def models(self) -> HTMLResponse:
        """All models."""
        held = {name: set(view.models()) for name, view in self.parties.items()}
        facts = [] if self.coordinator is None else self.coordinator.models()
        known = {m.model for m in facts}
        others = sorted(set().union(*held.values()) - known) if held else []
        return self.render("models", models=facts, held=held, others=others)

    def model(self, request: Request, model: str, role: str = "") -> HTMLResponse:
        """One model, as one role knows it; of one that was replaced, what became of it."""
        replaced = self._replaced(model)
        if replaced is not None:
            facts, by = replaced
            return self.render(
                "replaced", model=model, facts=facts, replacements=by, **self._doing.asked(request, facts)
            )
        role = role or self._first_role_with(model)
        view = self.view(role)
        if isinstance(view, PartyView):
            weights = view.weights(model)
            if weights is not None:
                return self.render(
                    "model_linear", role, model=model, facts=None, weights=weights, roles_with=self._roles_with(model)
                )
            part = view.part(model)
            return self.render(
                "model_party", role, model=model, part=part, importances=view.importances(model),
                keeper=view.keeper(model), n_own=len(part.splits.node), roles_with=self._roles_with(model),
            )  # fmt: skip
        facts = view.model(model)
        if not view.keeps(facts):
            return self.render(
                "model_led", role, model=model, facts=facts, settings=estimator_settings(facts.settings),
                cost=json.loads(facts.cost), disclosure=json.loads(facts.disclosure),
                roles_with=self._roles_with(model), **self._doing.asked(request, facts),
            )  # fmt: skip
        linear = view.is_linear(model)
        scored = view.scored(model)[:_SCORES_SHOWN]
        return self.render(
            "model_linear" if linear else "model", role, model=model, facts=facts,
            measure="accuracy" if facts.classes else "R²", withheld=_withheld(facts),
            scored=scored, held_out={job.job for job in scored if view.held_out(model, job.job)},
            importances=[] if linear else view.importances(model), cost=json.loads(facts.cost),
            disclosure=json.loads(facts.disclosure),
            privacy=claim_in_words(facts.privacy), settings=estimator_settings(facts.settings),
            roles_with=self._roles_with(model), **self._doing.asked(request, facts),
        )  # fmt: skip

    def _replaced(self, model: str) -> tuple[ModelFacts, tuple[Replacement, ...]] | None:
        """A model that another has taken the place of, by whoever knows of it here."""
        views = [*([] if self.coordinator is None else [self.coordinator]), *self.leaders.values()]
        return next((found for view in views if (found := became(view, model)) is not None), None)

    def facts_of(self, model: str) -> ModelFacts:
        """What is known of a model, by the coordinator or by a leader that is here."""
        if self.coordinator is not None:
            return self.coordinator.model(model)
        return self._leader_of(model).model(model)

    def _leader_of(self, model: str) -> LeaderView:
        for view in self.leaders.values():
            if any(kept.model == model for kept in view.models()):
                return view
        raise DataError(f"what is known of model {model!r} is at the coordinator, whose folder is not on this machine")

    def _roles_with(self, model: str) -> list[str]:
        here = [] if self.coordinator is None else [m.model for m in self.coordinator.models()]
        found = [r for r in self.roles if (r == COORDINATOR and model in here) or (
            r in self.parties and model in self.parties[r].models())]  # fmt: skip
        return found + [
            name for name, view in self.leaders.items() if any(kept.model == model for kept in view.models())
        ]

    def _first_role_with(self, model: str) -> str:
        found = self._roles_with(model)
        if not found:
            raise DataError(f"there is no model {model!r} here")
        return found[0]

    def tree(self, model: str, tree: int, role: str = "") -> HTMLResponse:
        """One tree, drawn in the browser; see ``nodes``."""
        replaced = self._replaced(model)
        if replaced is not None:
            raise DataError(f"model {model} was replaced by {replaced[0].replaced_by}; look at that one")
        role = role or self._first_role_with(model)
        view = self.view(role)
        n_trees = view.n_trees(model)
        if not 0 <= tree < n_trees:
            raise DataError(f"there is no tree {tree}; the forest has trees 0 to {n_trees - 1}")
        alignments = [] if self.coordinator is None else [
            j for j in self.coordinator.jobs() if j.kind == "align" and j.state == "done"
        ]  # fmt: skip
        return self.render(
            "tree", role, model=model, tree=tree, n_trees=n_trees, roles_with=self._roles_with(model),
            tables=sorted(view.tables) if isinstance(view, PartyView) else [],
            whole=isinstance(view, CoordinatorView) and view.model(model).complete, leads=isinstance(view, LeaderView),
            sight=view.sight(model) if isinstance(view, PartyView) else "",
            alignments=alignments if role == COORDINATOR and self._all_here(model) else [],
        )  # fmt: skip

    def _all_here(self, model: str) -> bool:
        """Whether the folders of all parties of a model are on this machine."""
        return self.coordinator is not None and set(self.coordinator.model(model).parties) <= set(self.parties)

    def nodes(self, model: str, tree: int, role: str, root: int | None = None, levels: int = 5) -> JSONResponse:
        """Some levels of a tree, as the role knows them."""
        return JSONResponse(trees.draw(self.view(role), model, tree, root, levels))

    def way(self, model: str, tree: int, role: str, row: int, table: str = "", alignment: str = "") -> JSONResponse:
        """The nodes that a row may come through, as far as the role knows."""
        view = self.view(role)
        if isinstance(view, PartyView):
            return JSONResponse({"nodes": trees.way_at_party(view, model, tree, table, row)})
        if not self._all_here(model):
            raise DataError("the coordinator learns a row's way from its parties' answers, which are not here")
        holders = [self.parties[p] for p in view.model(model).parties if model in self.parties[p].models()]
        return JSONResponse({"nodes": trees.way_at_coordinator(holders, model, tree, alignment, row)})

    def disclosure(self, role: str = "") -> HTMLResponse:
        """Who saw what, by a role's own record."""
        role = role or self.roles[0]
        rows = sorted(self.view(role).all_disclosures(), key=lambda row: (STAKES.index(stake_of(row.kind)), -row.bytes))
        sizes = [
            {"sender": row.sender, "receiver": row.receiver, "bytes": row.bytes, "stake": stake_of(row.kind)}
            for row in rows
        ]
        return self.render("disclosure", role, rows=rows, sizes=sizes, stakes=STAKES)

    def receipts(self) -> HTMLResponse:
        """All parties, and all rows, that have left a model."""
        views = [*([] if self.coordinator is None else [self.coordinator]), *self.leaders.values()]
        receipts = {job: receipt for view in views for job, receipt in view.receipts().items()}
        erasures = {job: receipt for view in views for job, receipt in view.erasures().items()}
        return self.render("receipts", receipts=receipts, erasures=erasures)

    def _keeper_of(self, job: str) -> CoordinatorView:
        """Who has the receipt of a job: the party that has led it, where its folder is here, else the coordinator."""
        for view in self.leaders.values():
            if view.store.job(job) is not None:
                return view
        leader = self.the_coordinator().job(job).leader
        if leader:
            raise DataError(f"{leader!r} has led this job and keeps its receipt; its folder is not on this machine")
        return self.the_coordinator()

    def receipt(self, job: str) -> HTMLResponse:
        """One receipt, checked."""
        keeper = self._keeper_of(job)
        receipt, problem = keeper.receipt(job)
        signer = keeper.name if isinstance(keeper, LeaderView) else "the coordinator"
        template = "receipt" if isinstance(receipt, Receipt) else "erasure"
        return self.render(template, job=job, statement=receipt.statement, problem=problem, signer=signer)

    def receipt_file(self, job: str) -> Response:
        """The receipt as it was signed, to keep."""
        receipt, _ = self._keeper_of(job).receipt(job)
        headers = {"content-disposition": f'attachment; filename="receipt-{job[:8]}.json"'}
        return Response(receipt.to_json(), media_type="application/json", headers=headers)

    def budget(self) -> HTMLResponse:
        """What the parties on this machine have spent of their privacy."""
        tables = [one for view in self.parties.values() for one in view.accounts()]
        return self.render("budget", tables=tables, titles={"labels": "Labels of rows", "rows": "Whole rows"})

    def answers(self, role: str = "", job: str = "", table: str = "", label: str = "") -> HTMLResponse:
        """Answers that were delivered to a party, against its own labels."""
        party = self.parties.get(role) or next(iter(self.parties.values()), None)
        if party is None:
            return self.render("answers", party=None, jobs=[], chosen={}, result=None, columns=[])
        jobs = [path.stem for path in party.answers()]
        table = table or next(iter(sorted(party.tables)), "")
        columns = list(party.loaded(table).columns) if table else []
        result = party.confusion(job, table, label) if job and table and label else None
        chosen = {"job": job, "table": table, "label": label}
        return self.render("answers", party.name, party=party, jobs=jobs, chosen=chosen, result=result, columns=columns)

    async def events(self, request: Request) -> StreamingResponse:
        """News of running jobs, as server-sent events: the version of each job that moves.

        The first event, ``here``, comes after the first look at the jobs. A page that asks again then misses nothing:
        a job may have ended after the page was made and before this look.
        """

        async def stream() -> AsyncIterator[str]:
            seen: dict[str, Any] = {}
            while not await request.is_disconnected():
                facts = {} if self.coordinator is None else {
                    f.job: (f.version, f.state) for f in await asyncio.to_thread(self.coordinator.jobs)
                }  # fmt: skip
                news = [job for job, state in facts.items() if seen.get(job) != state]
                if seen and news:
                    yield f"event: jobs\ndata: {json.dumps(news)}\n\n"
                elif not seen:
                    yield "event: here\ndata: []\n\n"
                seen = facts or {"": None}
                await asyncio.sleep(LIVE_SECONDS)

        return StreamingResponse(stream(), media_type="text/event-stream")

    def the_coordinator(self) -> CoordinatorView:
        """The coordinator's view, where its folder is on this machine."""
        if self.coordinator is None:
            raise DataError("jobs are known to the coordinator, whose folder is not on this machine")
        return self.coordinator

    def check_may_act(self, request: Request) -> None:
        """Refuse over the network who may only look; on this machine, whoever was let in may have it compute."""
        if USER_KEY in request.scope:
            self.acting(request)

    def is_user(self, request: Request) -> bool:
        """Whether who looks is the user in whose name something may be done."""
        return self.actions is not None and request.scope.get(USER_KEY, self.actions.user) == self.actions.user

    def acting(self, request: Request) -> Actions:
        """The user in whose name something is done; refuses who may only look."""
        if self.actions is None:
            raise PolicyError("this dashboard is to look at only; start it with --identity to act as a user")
        if not self.is_user(request):
            user = request.scope[USER_KEY]
            raise PolicyError(f"this dashboard acts in the name of {self.actions.user}; {user} may only look")
        return self.actions


class _Assets(StaticFiles):
    """Files that never change while the server runs."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "private, max-age=3600"
        return response


def _withheld(facts: ModelFacts) -> str:
    """Why a model that was to be scored out of bag has no score; empty where it has one, or none was asked for."""
    asked = facts.layout == "columns" and estimator_settings(facts.settings)["params"].get("oob_score") is True
    return WITHHELD if asked and facts.oob_score is None else ""
