"""What the dashboard's user orders from its pages: ends of jobs, evaluations, contributions, explanations, leaving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from woodlot.connected.ordered_reports import HeldOut
from woodlot.dashboard.choices import Chosen, Tables, choices_of
from woodlot.dashboard.forget_pages import ForgetPages, why_kept
from woodlot.dashboard.watching import why_not
from woodlot.jobs.job_messages import ModelFacts

if TYPE_CHECKING:
    from woodlot.dashboard.app import Pages

_PARTS = ("evaluation", "contribution", "explanation", "drift", "forgotten")
"""Parts of a model's page that are renewed while something is computed, and their templates."""


class Doing:
    """Whatever changes something, or has others compute.

    Parameters
    ----------
    pages : Pages
        The dashboard that it belongs to.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        post = pages.app.post
        post("/jobs/{job}/cancel")(self.cancel)
        post("/jobs/{job}/resume")(self.resume)
        post("/models/{model}/revoke")(self.revoke)
        post("/models/{model}/contribution", response_class=HTMLResponse)(self.measure)
        post("/models/{model}/evaluation", response_class=HTMLResponse)(self.evaluate)
        post("/models/{model}/explanation", response_class=HTMLResponse)(self.explain)
        post("/models/{model}/drift", response_class=HTMLResponse)(self.watch)
        ForgetPages(pages, self._part)
        for name in _PARTS:
            pages.app.get(f"/models/{{model}}/{name}", response_class=HTMLResponse)(self._renewed(name))

    def _renewed(self, name: str) -> Any:
        def part(request: Request, model: str) -> HTMLResponse:
            return self._part(name, request, model)

        return part

    def _part(self, name: str, request: Request, model: str) -> HTMLResponse:
        facts = self._pages.facts_of(model)
        return self._pages.render(name, model=model, facts=facts, **self.asked(request, facts))

    def asked(self, request: Request, facts: ModelFacts) -> dict[str, Any]:
        """What was ordered of a model from here, and what forms offer: for its page.

        What parties have sealed to the user is for nobody else who may look.
        """
        actions = self._pages.actions if self._pages.is_user(request) else None
        model = facts.model
        shared = {
            "choices": choices_of(facts, self._pages.parties),
            "no_explanation": why_not(facts),
            "no_forgetting": why_kept(facts),
        }
        if actions is None:
            return shared | dict.fromkeys(("contribution", "evaluation", "explained", "watched", "forgotten"))
        return shared | {
            "contribution": actions.contributions.get(model),
            "evaluation": actions.evaluations.get(model),
            "explained": actions.watching.explained.get(model),
            "watched": actions.watching.watched.get(model),
            "forgotten": actions.forgetting.known(model),
        }

    def _tables(self, model: str, chosen: Chosen) -> dict[str, str]:
        return chosen.tables(self._pages.facts_of(model))

    # --- jobs ---

    def cancel(self, request: Request, job: str) -> Response:
        """End a job."""
        self._pages.acting(request).cancel(job)
        return RedirectResponse(f"/jobs/{job}", 303)

    def resume(self, request: Request, job: str) -> Response:
        """Go on with a job."""
        self._pages.acting(request).resume(job)
        return RedirectResponse(f"/jobs/{job}", 303)

    # --- models ---

    def measure(self, request: Request, model: str, chosen: Tables, label: Annotated[str, Form()]) -> HTMLResponse:
        """Begin to measure what each party contributes."""
        self._pages.acting(request).measure(model, self._tables(model, chosen), label)
        return self._part("contribution", request, model)

    def evaluate(
        self,
        request: Request,
        model: str,
        chosen: Tables,
        label: Annotated[str, Form()],
        held_out: Annotated[float | None, Form(gt=0, lt=1)] = None,
        seed: Annotated[int, Form(ge=0)] = 0,
        allow_two: Annotated[bool, Form()] = False,
    ) -> HTMLResponse:
        """Begin to have the parties with labels say how good a model is."""
        rows = None if held_out is None else HeldOut(held_out, seed)
        actions = self._pages.acting(request)
        actions.evaluate(model, self._tables(model, chosen), label, rows, allow_two=allow_two)
        return self._part("evaluation", request, model)

    def explain(
        self,
        request: Request,
        model: str,
        chosen: Tables,
        ids: Annotated[str, Form(max_length=20_000)] = "",
        text: Annotated[bool, Form()] = False,
    ) -> HTMLResponse:
        """Begin to have the leader divide answers among parties and columns."""
        self._pages.acting(request).watching.explain(model, self._tables(model, chosen), ids, text)
        return self._part("explanation", request, model)

    def watch(self, request: Request, model: str, chosen: Tables) -> HTMLResponse:
        """Begin to have owners compare new rows with those of the training."""
        self._pages.acting(request).watching.watch(model, self._tables(model, chosen))
        return self._part("drift", request, model)

    def revoke(
        self,
        request: Request,
        model: str,
        chosen: Tables,
        party: Annotated[str, Form()],
        level: Annotated[int, Form()],
        label: Annotated[str, Form()],
    ) -> Response:
        """Have a party leave a model."""
        job = self._pages.acting(request).revoke(model, party, level, self._tables(model, chosen), label)
        return Response(status_code=204, headers={"HX-Redirect": f"/jobs/{job}"})
