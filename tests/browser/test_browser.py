"""The dashboard in a real browser, on a real federation of processes. ``make test-browser`` installs what it needs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from stage import CHROMIUM, FLAGS, Stage, stage

from woodlot.dashboard.party_view import PartyView

playwright = pytest.importorskip("playwright.sync_api", reason="make test-browser installs Playwright")
if CHROMIUM is None:
    pytest.skip("make test-browser installs Chromium", allow_module_level=True)

PATIENCE = 60_000
"""Milliseconds that the page has to show something, on a busy machine."""
GEOMETRY = re.compile(r' (?:x|y|width|height|viewBox|d)="[-MC\d. ]*"')
"""Where the browser has drawn something: it follows from the width of the window, and may look like any number."""


@pytest.fixture(scope="module")
def here() -> Iterator[Stage]:
    with stage() as made:
        yield made


@pytest.fixture(scope="module")
def browser(here: Stage) -> Iterator[Any]:
    with playwright.sync_playwright() as engine:
        chromium = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.goto(here.server.url)
        page.close()
        try:
            yield context
        finally:
            chromium.close()


class Watched:
    """A page, with all that it received and every complaint of the browser."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.received: list[str] = []
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("response", self._keep)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)

    def _keep(self, response: Any) -> None:
        self.hosts.add(response.url.split("/")[2])
        kind = response.headers.get("content-type", "")
        if response.ok and ("html" in kind or "json" in kind):
            self.received.append(response.text())


@pytest.fixture
def watched(browser: Any) -> Iterator[Watched]:
    seen = Watched(browser)
    yield seen
    seen.page.close()
    assert seen.problems == []


def test_a_job_is_seen_to_finish_without_reloading(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{here.server.address}jobs")
    before = page.locator("tbody tr").count()
    page.evaluate("window.sameDocument = true")
    growing = threading.Thread(target=here.train)
    growing.start()
    try:
        playwright.expect(page.locator("tbody tr")).to_have_count(before + 1, timeout=PATIENCE)
        playwright.expect(page.locator("tbody tr").first.locator(".state")).to_have_text("done", timeout=PATIENCE)
    finally:
        growing.join()  # before its federation ends
    assert page.evaluate("window.sameDocument") is True


def test_scores_by_number_of_trees_are_drawn(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{here.server.address}models/{here.model}")
    playwright.expect(page.locator("#curve canvas")).to_be_visible(timeout=PATIENCE)


def test_a_tree_as_each_role_sees_it(here: Stage, watched: Watched) -> None:
    page = watched.page
    views = {party: PartyView(here.federation.party_config(party)) for party in ("bank", "shop")}
    for role, other in (("bank", "shop"), ("shop", "bank"), ("coordinator", "bank")):
        watched.received.clear()
        page.goto(f"{here.server.address}models/{here.model}/trees/0?role={role}")
        playwright.expect(page.locator("#tree g.node").first).to_be_visible(timeout=PATIENCE)
        n_before = page.locator("#tree g.node").count()
        page.locator("#tree g.more").first.click()
        playwright.expect(page.locator("#tree g.node")).not_to_have_count(n_before, timeout=PATIENCE)
        part = views[other].part(here.model)
        # short ones, such as 2.5 or age, may stand there by chance
        secrets = {s for s in [*(f"{t:.6g}" for t in part.splits.threshold), *part.names] if len(s) >= 6}
        assert len(secrets) > 20
        everything = "\n".join([GEOMETRY.sub("", page.content()), *watched.received])
        assert not [secret for secret in secrets if secret in everything]
        if role != "coordinator":
            own = set(views[role].part(here.model).names)
            assert own & set(page.locator("#tree g.own text").all_text_contents())
    assert watched.hosts == {here.server.address.split("/")[2]}, "no request leaves the machine"


def test_a_party_has_one_colour_in_a_tree(here: Stage, watched: Watched) -> None:
    page = watched.page
    for tree in range(4):  # the party that is drawn first is not everywhere the first by name
        page.goto(f"{here.server.address}models/{here.model}/trees/{tree}?role=coordinator")
        playwright.expect(page.locator("#tree g.node").first).to_be_visible(timeout=PATIENCE)
        pairs = page.eval_on_selector_all(
            "#tree g.owned",
            "all => all.map(g => [g.querySelector('text').textContent, g.querySelector('rect').style.fill])",
        )
        colours = {tuple(pair) for pair in pairs}
        assert len(colours) == len({party for party, _ in colours}) == len({colour for _, colour in colours})


def test_the_way_of_a_row_is_drawn(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{here.server.address}models/{here.model}/trees/0?role=coordinator")
    page.get_by_role("button", name="Show its way").click()
    playwright.expect(page.locator("#way-note")).to_contain_text("one way", timeout=PATIENCE)
    assert page.locator("#tree path.way").count() >= 1


def test_the_keyboard_is_enough(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{here.server.address}models/{here.model}/trees/0?role=bank")
    playwright.expect(page.locator("#tree g.node").first).to_be_visible(timeout=PATIENCE)
    page.locator("#tree").focus()
    root = page.locator("#tree g.chosen").get_attribute("data-id")
    page.keyboard.press("ArrowDown")
    assert page.locator("#tree g.chosen").get_attribute("data-id") != root
    page.goto(here.server.address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_light_and_dark(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(here.server.address)
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.locator("#theme").click()


def test_a_phone_shows_it_without_scrolling_sideways(here: Stage, browser: Any) -> None:
    page = browser.new_page()
    page.set_viewport_size({"width": 390, "height": 800})
    for path in ("", "jobs", "models", f"models/{here.model}", "disclosure"):
        page.goto(f"{here.server.address}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.close()


def test_contributions_are_measured_from_the_page(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{here.server.address}models/{here.model}")
    page.fill("#contribution input[name=tables]", "bank=newcomers shop=customers")
    page.fill("#contribution input[name=label]", "bank.default")
    page.get_by_role("button", name="Measure").click()
    playwright.expect(page.locator("#contribution")).to_contain_text("The values add up", timeout=PATIENCE)


def test_a_model_is_evaluated_from_the_page(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{here.server.address}models/{here.model}")
    page.fill("#evaluation input[name=tables]", "bank=newcomers shop=customers")
    page.fill("#evaluation input[name=label]", "bank.default")
    page.get_by_role("button", name="Evaluate").click()
    playwright.expect(page.locator("#evaluation table")).to_contain_text("roc auc", timeout=PATIENCE)
    playwright.expect(page.locator("#roc canvas")).to_be_visible()


def test_a_party_leaves_and_its_receipt_is_seen(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{here.server.address}models/{here.model}")
    form = page.locator("form", has_text="Revoke")
    form.locator("input[name=tables]").fill("customers")
    form.locator("input[name=label]").fill("bank.default")
    page.route("**/events", lambda route: (time.sleep(2), route.continue_()))  # a slow line: the job ends before
    form.get_by_role("button", name="Revoke").click()
    page.get_by_role("link", name="see what was removed").click()
    playwright.expect(page.locator("h1")).to_contain_text("shop has left", timeout=PATIENCE)
    playwright.expect(page.locator("main")).to_contain_text("signature holds")


def test_a_stranger_sees_nothing(here: Stage, browser: Any) -> None:
    stranger = browser.browser.new_context()
    page = stranger.new_page()
    reply = page.goto(here.server.address)
    assert reply.status == 401
    stranger.close()
