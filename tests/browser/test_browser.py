"""The dashboard in a real browser, on a real federation of processes. ``make test-browser`` installs what it needs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stage import CHROMIUM, FLAGS, Stage, stage

from woodlot.dashboard.party_view import PartyView
from woodlot.data.ids import canonical_ids
from woodlot.identity.erasure import ErasureReceipt
from woodlot.identity.signed_page import SignedPage

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
        self.page.on("response", self.keep)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)

    def keep(self, response: Any) -> None:
        self.hosts.add(response.url.split("/")[2])
        kind = response.headers.get("content-type", "")
        if response.ok and ("html" in kind or "json" in kind):
            self.received.append(response.text())


@pytest.fixture
def watched(browser: Any) -> Iterator[Watched]:
    seen = Watched(browser)
    yield seen
    seen.page.remove_listener("response", seen.keep)  # a page that renews itself may receive while it is closed
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
    page.select_option("#contribution [name='table.bank']", "newcomers")
    page.get_by_role("button", name="Measure").click()
    playwright.expect(page.locator("#contribution")).to_contain_text("The values add up", timeout=PATIENCE)


def test_a_model_is_evaluated_from_the_page(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{here.server.address}models/{here.model}")
    page.select_option("#evaluation [name='table.bank']", "newcomers")
    page.get_by_role("button", name="Evaluate").click()
    playwright.expect(page.locator("#evaluation table")).to_contain_text("roc auc", timeout=PATIENCE)
    playwright.expect(page.locator("#roc canvas")).to_be_visible()


def test_rows_are_forgotten_from_the_page(here: Stage, watched: Watched) -> None:
    led = here.train(lead="holder", n_estimators=5)
    page = watched.page
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{here.server.address}models/{led}")
    part = page.locator("#forgotten")
    part.locator("[name=ids]").fill("1, 1")
    part.get_by_role("button", name="Forget").click()
    playwright.expect(part.get_by_role("alert")).to_be_visible(timeout=PATIENCE)
    part.locator("[name=ids]").fill(", ".join(map(str, here.ids[:3])))
    part.get_by_role("button", name="Forget").click()
    playwright.expect(part).to_contain_text("3 rows are forgotten", timeout=PATIENCE)
    with page.expect_download() as download:
        part.get_by_role("link", name="Keep the receipt").click()
    with page.expect_download() as key:
        part.get_by_role("link", name="Keep its key").click()
    receipt = ErasureReceipt.load(download.value.path())
    secret = bytes.fromhex(Path(key.value.path()).read_text())
    assert all(receipt.names(id, secret) for id in canonical_ids(here.ids[:3], "ids").values)
    after = part.get_by_role("link", name="The model without them").get_attribute("href")
    page.goto(f"{here.server.address}{str(after).removeprefix('/')}")
    playwright.expect(part).to_contain_text("3 rows are forgotten")
    playwright.expect(part.get_by_role("button", name="Forget")).to_be_visible()
    playwright.expect(part.get_by_role("link", name="Keep its key")).to_be_visible()
    page.goto(f"{here.server.address}receipts")
    page.locator(f"a[href='/receipts/{str(after).rpartition('/')[2]}']").click()
    playwright.expect(page.locator("h1")).to_contain_text("3 rows forgotten")
    page.set_viewport_size({"width": 400, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    playwright.expect(page.locator("main")).to_contain_text("signature holds")


def test_the_map_shows_who_is_there_and_what_travels(here: Stage, watched: Watched) -> None:
    page = watched.page
    growing = threading.Thread(target=here.train, kwargs={"lead": "holder"})
    page.goto(here.server.address)
    page.evaluate("window.sameDocument = true")
    growing.start()
    try:
        playwright.expect(page.locator("svg.wide .strand")).not_to_have_count(0, timeout=PATIENCE)
        playwright.expect(page.locator("svg.wide .member")).to_have_count(3)
        playwright.expect(page.locator("svg.wide .badge", has_text="leads")).to_be_visible(timeout=PATIENCE)
    finally:
        growing.join()
    assert page.evaluate("window.sameDocument") is True
    moving = "getComputedStyle(document.querySelector('.map .moving')).animationName"
    assert page.evaluate(moving) == "flow"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == "none"


def test_who_learnt_what_is_opened_cell_by_cell(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{here.server.address}jobs/{here.model}")
    cell = page.locator("button[aria-controls=told-labels-coordinator]")
    told = page.locator("#told-labels-coordinator")
    playwright.expect(told).to_be_hidden()
    cell.focus()
    page.keyboard.press("Enter")
    playwright.expect(told).to_be_visible()
    playwright.expect(told).to_contain_text("EncodedLabels")
    page.locator("button[aria-controls=told-values-coordinator]").click()
    playwright.expect(told).to_be_hidden()
    playwright.expect(page.locator("#leak-test")).to_contain_text("woodlot leak-test --part labels --part values")


def test_an_answer_is_explained_from_the_page(here: Stage, watched: Watched) -> None:
    led = here.train(lead="holder", n_estimators=5)
    page = watched.page
    page.goto(f"{here.server.address}models/{led}")
    page.get_by_role("button", name="Explain").click()
    playwright.expect(page.locator("#explanation")).to_contain_text("Mean size of each part", timeout=PATIENCE)
    assert page.locator("#explanation .fall tr").count() > 5


def test_a_tree_stays_in_place_when_the_role_changes(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{here.server.address}models/{here.model}/trees/0?role=coordinator")
    playwright.expect(page.locator("#tree g.node").first).to_be_visible(timeout=PATIENCE)
    page.locator("#tree g.more").first.click()
    page.evaluate("window.sameDocument = true")
    before = page.locator("#tree g.node").count()
    page.get_by_role("link", name="as bank sees it").click()
    playwright.expect(page.locator("#tree-note")).to_contain_text("bank keeps the shape", timeout=PATIENCE)
    playwright.expect(page.locator("#tree .branch").first).to_be_visible(timeout=PATIENCE)
    playwright.expect(page.locator("#tree g.node")).to_have_count(before)
    assert page.evaluate("window.sameDocument") is True
    assert "role=bank" in page.url
    page.get_by_role("button", name="Show its way").click()
    playwright.expect(page.locator("#way-note")).to_contain_text("as far as bank knows", timeout=PATIENCE)


def test_a_report_is_kept_and_prints(here: Stage, browser: Any, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(f"{here.server.address}report")
    with page.expect_download() as download:
        page.get_by_role("button", name="Make the report").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert SignedPage.load(file).verify(here.federation.party_config("bank").identity.joinpath("ca.pem").read_bytes())
    page.goto(file.as_uri())
    assert page.locator("h1").text_content() == "Compliance report"
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.close()


def test_axe_finds_nothing(here: Stage, browser: Any) -> None:
    axe = pytest.importorskip("axe_core_python.base", reason="make test-browser installs axe-core-python")
    page = browser.new_page()
    model = here.model
    paths = [
        "",
        "jobs",
        f"jobs/{model}",
        "models",
        f"models/{model}",
        f"models/{model}/trees/0?role=bank",
        "disclosure",
    ]
    found = []
    for theme, width in (("light", 1400), ("dark", 400)):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(here.server.address)
        page.evaluate(f"localStorage.setItem('theme', '{theme}')")
        for path in [*paths, "budget", "receipts", "report", "answers", "settings"]:
            page.goto(f"{here.server.address}{path}")
            page.evaluate(axe.AXE_SCRIPT)
            wrong = "axe.run().then(r => r.violations.map(v => v.id + ' ' + v.nodes[0].html))"
            found += [(theme, width, path, one) for one in page.evaluate(wrong)]
            if page.evaluate("document.documentElement.scrollWidth") > width:
                found.append((theme, width, path, "wider than the window"))
    page.evaluate("localStorage.removeItem('theme')")
    page.close()
    assert found == []


def test_a_party_leaves_and_its_receipt_is_seen(here: Stage, watched: Watched) -> None:
    page = watched.page
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{here.server.address}models/{here.model}")
    form = page.locator("form", has_text="Revoke")
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
