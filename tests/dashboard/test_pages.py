"""The pages of a real federation, over real sockets: what they show, and what they must not."""

from __future__ import annotations

import asyncio
import html
import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from crawler import crawled, is_html, trees_of
from fastapi import FastAPI
from small_jobs import PARTIES, PLAN
from typer.testing import CliRunner
from world import World, running

import woodlot as wl
from woodlot.cli import app
from woodlot.dashboard.actions import Actions
from woodlot.dashboard.app import Pages
from woodlot.dashboard.guard import USER_KEY
from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.server import Server
from woodlot.dashboard.views import CoordinatorView
from woodlot.data.ids import canonical_ids
from woodlot.exceptions import ConfigError, DataError
from woodlot.federation import Labels
from woodlot.identity.erasure import ErasureReceipt
from woodlot.identity.identity import Identity, Trust
from woodlot.identity.receipts import Receipt
from woodlot.identity.signed_page import SignedPage
from woodlot.protocols.vertical.sight import subtree_end

EVIL = "<script>alert(1)</script>"
EVIL_CLASS = "'\"><script>alert(2)</script>"
EVIL_TABLE = "<img src=x onerror=alert(3)>"
EVIL_ID = "]]></script><script>alert(4)</script>"
"""Names of a column, a class, a table and a model; they are shown, as text."""


@dataclass
class Stage:
    """A federation with a finished model, its dashboard, and a browser that was let in."""

    world: World
    model: str
    alignment: str
    prediction: str
    browser: httpx.Client
    csrf: str
    views: dict[str, PartyView]
    coordinator: CoordinatorView
    app: FastAPI

    def seen_by(self, user: str, path: str) -> str:
        """A page as the TLS layer lets a user in who looks over the network."""

        async def door(scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope | {USER_KEY: user}, receive, send)

        async def look() -> str:
            transport = httpx.ASGITransport(door)
            async with httpx.AsyncClient(transport=transport, base_url="https://dashboard") as browser:
                return (await browser.get(path)).text

        return asyncio.run(look())

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.browser.get(path, params=params, headers={"accept": "text/html"})

    def post(self, path: str, **form: str) -> httpx.Response:
        headers = {"x-woodlot-csrf": self.csrf, "origin": str(self.browser.base_url).rstrip("/")}
        return self.browser.post(path, data=form, headers=headers)

    def revoke(self, model: str, **form: str) -> str:
        """Have a party leave, and wait until it has."""
        ordered = self.post(f"/models/{model}/revoke", **form)
        assert ordered.status_code == 204, ordered.text
        job = ordered.headers["hx-redirect"].removeprefix("/jobs/")
        until = time.monotonic() + 300
        while (state := self.coordinator.job(job).state) != "done":
            assert state in ("queued", "running"), self.coordinator.job(job)
            assert time.monotonic() < until
            time.sleep(0.1)
        return job


def tables(n: int = 90) -> dict[str, dict[str, pa.Table]]:
    rng = np.random.default_rng(3)
    ids, values = np.arange(n), rng.normal(size=(n, 4))
    label = np.where(values[:, 0] + values[:, 2] > 0, "yes", EVIL_CLASS)
    bank = {"id": ids, "years_old": values[:, 0], EVIL: values[:, 1], "late": label}
    shop = {"id": ids[::-1], "visits": values[::-1, 2], "basket": values[::-1, 3]}
    branch = pa.table({"id": ids, "staff": values[:, 0], "late": label})  # of both, so that they have the same columns
    return {
        "bank": {"customers": pa.table(bank), "branches": branch, EVIL_TABLE: pa.table(bank)},
        "shop": {"customers": pa.table(shop), "branches": branch, EVIL_TABLE: pa.table(shop)},
    }


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("dashboard"), tables())
        for own in world.settings.values():
            kinds = ["align", "train", "predict", "revoke", "train-linear", "train-rows", "evaluate"]
            kinds += ["explain", "score", "drift", "forget"]
            own["policy"] |= {
                "allow_two": True,
                "protocols": kinds,
                "explains": "columns",
                "explanations_per_day": 100,
                "catalog": ["names"],
                "min_evaluation_rows": 5,
                "evaluations_per_day": 50,
                "round_counts": 1,
            }
        world.settings["bank"]["policy"]["own_evaluations"] = True
        stack.enter_context(running(world))
        where = (world.address, world.root / "alice" / "identity")
        with wl.connect(*where, tables="customers", lead="coordinator") as federation:
            alignment = federation.align().job
            model = wl.FederatedForestClassifier(6, random_state=0, max_depth=6)
            model.fit(federation, y="bank.late")
            name = model.forest_.model or ""
            order = federation.predict_order(name, "bank.late", deliver_to="bank")
            prediction = federation.client.finish(federation.client.submit(order).job).job
        coordinator = CoordinatorView(world.coordinator_config())
        views = {party: PartyView(world.party_config(party)) for party in world.settings}
        pages = Pages(coordinator, list(views.values()), Actions(*where))
        server = stack.enter_context(Server(pages.app, "127.0.0.1", 0))
        server.start()
        browser = stack.enter_context(httpx.Client(base_url=server.address, follow_redirects=True, timeout=300))
        assert browser.get(server.url.removeprefix(server.address)).status_code == 200
        yield Stage(world, name, alignment, prediction, browser, server.guard.csrf, views, coordinator, pages.app)


def test_every_page_is_there(stage: Stage) -> None:
    model, job = stage.model, stage.model
    for path in (
        "/",
        "/jobs",
        f"/jobs/{job}",
        f"/jobs/{job}/live",
        "/models",
        f"/models/{model}",
        "/disclosure",
        "/answers",
        "/budget",
        "/receipts",
    ):
        page = stage.get(path)
        assert page.status_code == 200, path
        assert "Undefined" not in page.text
        assert not re.search(r'(?:src|href)="(?:https?:)?//', page.text), "a page must not ask another machine"
        assert not re.search(r"<script(?! src| type=.application/json)[^>]*>|<[^>]*\s(?:on\w+|style)=", page.text), path
    for party in ("bank", "shop"):
        for path in (f"/models/{model}", f"/models/{model}/trees/0", "/disclosure"):
            assert stage.get(path, role=party).status_code == 200


def test_what_the_pages_say_of_privacy_is_true(stage: Stage) -> None:
    """Of a table that ordinary trainings have used, and of roles that can work out more than they keep."""
    budget = html.unescape(stage.get("/budget").text)
    assert "no epsilon bounds what is learnt of one row" in budget
    assert "no epsilon bounds what is learnt of the label of one row" in budget
    assert "without differential privacy" in budget
    assert "50% sure" not in budget
    assert "Nothing was released" not in budget
    federation = stage.get("/").text
    assert "and nothing else" not in federation
    assert "it can work out training labels and the order of values" in federation
    tree = f"/models/{stage.model}/trees/0"
    assert "it can work out what the leaves answer" in stage.get(tree, role="bank").text
    assert "It has the labels" in stage.get(tree, role="bank").text
    assert "received the labels under a code" in stage.get(tree, role="shop").text
    assert "it can work out their labels" in stage.get(tree, role="coordinator").text
    for role in ("bank", "shop"):
        assert "what the leaves answer, it does not know" not in stage.get(tree, role=role).text


def test_messages_are_coloured_by_what_is_at_stake(stage: Stage) -> None:
    """Labels under a code are labels, and a message in clear may tell nothing."""
    page = stage.get("/disclosure", role="coordinator").text
    shown = dict(re.findall(r'<code>(\w+)</code>.*?<span class="stake (\w+)"', page))
    assert shown["EncodedLabels"] == shown["StartForest"] == shown["LeafTotals"] == shown["Partition"] == "rows"
    assert shown["Offers"] == "numbers"
    assert shown["Ready"] == "nothing"


def test_jobs_and_their_rounds(stage: Stage) -> None:
    found = stage.get(f"/jobs/{stage.model}/rounds").json()
    assert len(found["rounds"]) == len(found["seconds"]) > 10
    sent = stage.coordinator.job(stage.model).bytes_by_party
    assert {party: sum(sizes) for party, sizes in found["bytes"].items()} == sent


def test_a_partys_tree_holds_nothing_of_another(stage: Stage) -> None:
    for party, other in (("bank", "shop"), ("shop", "bank")):
        theirs = stage.views[other].part(stage.model)
        secrets = {f"{t:.6g}" for t in theirs.splits.threshold} | set(theirs.names)
        for tree in range(6):
            page = stage.get(f"/models/{stage.model}/trees/{tree}", role=party)
            nodes = stage.get(f"/models/{stage.model}/trees/{tree}/nodes", role=party, levels=8)
            assert not [secret for secret in secrets if secret in page.text or secret in nodes.text]
            for node in nodes.json()["nodes"]:
                assert set(node) <= {"id", "leaf", "left", "right", "more", "name", "test", "missing_left"}
    everything = stage.get(f"/models/{stage.model}/trees/0/nodes", role="coordinator", levels=8)
    for view in stage.views.values():
        part = view.part(stage.model)
        assert not [t for t in part.splits.threshold if f"{t:.6g}" in everything.text]
        assert not [name for name in part.names if name in everything.text]


def test_levels_are_loaded_on_demand_and_together_make_the_tree(stage: Stage) -> None:
    forest = stage.coordinator.forest(stage.model)
    start, end = (int(place) for place in forest.structure.offset[1:3])
    seen: dict[int, dict[str, Any]] = {}
    todo: list[int | None] = [None]
    while todo:
        root = todo.pop()
        params = {} if root is None else {"root": root}
        found = stage.get(f"/models/{stage.model}/trees/1/nodes", role="coordinator", levels=2, **params).json()
        for node in found["nodes"]:
            if node["id"] in seen and "more" in node:
                continue
            seen[node["id"]] = node
            if "more" in node:
                assert node["more"] == subtree_end(forest.structure, start + node["id"]) - start - node["id"] - 1
                todo.append(node["id"])
    assert set(seen) == set(range(end - start))


def test_the_way_of_a_row(stage: Stage) -> None:
    forest = stage.coordinator.forest(stage.model)
    for row in (0, 40):
        way = stage.get(
            f"/models/{stage.model}/trees/2/way", role="coordinator", row=row, alignment=stage.alignment
        ).json()["nodes"]
        leaves = [node for node in way if forest.structure.right[forest.structure.offset[2] + node] < 0]
        assert len(leaves) == 1, "all answers together leave one leaf"
        for party, view in stage.views.items():
            own = int(view.alignment(stage.alignment)[1][row])
            possible = stage.get(f"/models/{stage.model}/trees/2/way", role=party, row=own, table="customers").json()[
                "nodes"
            ]
            assert set(way) <= set(possible)


def test_answers_are_judged_at_the_party_with_the_labels(stage: Stage) -> None:
    page = stage.get("/answers", role="bank", job=stage.prediction, table="customers", label="late")
    assert f"{100 * (stage.coordinator.job(stage.prediction).score or 0):.1f} % right" in page.text


def evaluated(stage: Stage, model: str) -> str:
    """The card of an evaluation, when it is done."""
    until = time.monotonic() + 300
    while "<progress" in (page := stage.get(f"/models/{model}/evaluation").text):
        assert time.monotonic() < until
        time.sleep(0.1)
    return html.unescape(page)


def test_a_model_is_evaluated_from_its_page(stage: Stage) -> None:
    assert "Evaluate</button>" in stage.get(f"/models/{stage.model}").text
    began = stage.post(f"/models/{stage.model}/evaluation", tables="customers", label="bank.late")
    assert began.status_code == 200
    page = evaluated(stage, stage.model)
    assert "all rows were in the training" in page
    shown = dict(re.findall(r'<tr><td>([^<]+)</td><td class="n">([^<]+)</td>', page))
    score = stage.coordinator.job(stage.prediction).score
    assert shown["accuracy"] == f"{score:.4f}"
    assert float(shown["roc auc"]) > 0.9
    assert 'data-chart="roc"' in page
    assert EVIL_CLASS not in stage.get(f"/models/{stage.model}/evaluation").text
    # the report is for the user: the coordinator keeps none of it
    files = [path for path in stage.world.coordinator_config().state.rglob("*") if path.is_file()]
    assert not [path for path in files if b"roc_auc" in path.read_bytes()]


def test_rows_are_forgotten_where_a_party_leads_only(stage: Stage) -> None:
    path = f"/models/{stage.model}/forgotten"
    assert "rows are forgotten where the label holder leads" in html.unescape(stage.get(path).text)
    assert stage.get(f"{path}/receipt").status_code == 404
    nothing = stage.post(path, tables="customers", label="bank.late", ids=" , ")
    assert "name the rows by their ids" in nothing.text
    stage.post(path, tables="customers", label="bank.late", ids="3, 4")
    assert "Rows cannot be taken out of this model" in part_of(stage, stage.model, "forgotten")
    assert stage.get(f"{path}/receipt").status_code == 404
    assert "No rows were forgotten" in stage.get("/receipts").text


def test_an_evaluation_that_fails_says_why(stage: Stage) -> None:
    stage.post(f"/models/{stage.model}/evaluation", tables="customers", label="shop.visits")
    page = evaluated(stage, stage.model)
    assert 'role="alert"' in page
    assert "Evaluate</button>" in page, "it can be tried again"
    refused = stage.post(f"/models/{stage.model}/evaluation", tables="customers", label="bank.late", held_out="1.5")
    assert refused.status_code == 422


def test_contributions_are_measured_by_the_parties_themselves(stage: Stage) -> None:
    began = stage.post(f"/models/{stage.model}/contribution", tables="customers", label="bank.late")
    assert began.status_code == 200
    until = time.monotonic() + 300
    while "Shapley" not in (page := stage.get(f"/models/{stage.model}/contribution").text) or "Measuring" in page:
        assert time.monotonic() < until, page
        time.sleep(0.2)
    assert "bank alone" in page
    assert "together" in page
    assert page.count("<tr><td>") == 2
    # each measurement leaves some parties out; only whole predictions tell how good the model is
    scored = [job.job for job in stage.coordinator.scored(stage.model)]
    assert stage.prediction in scored
    assert len([job for job in stage.coordinator.jobs() if job.kind == "predict"]) >= len(scored) + 3
    page = stage.get(f"/models/{stage.model}").text
    assert "Scores of predictions" in page
    assert "may include rows of the training" in page


def test_rows_of_a_forest_over_rows_are_forgotten_from_the_page(stage: Stage) -> None:
    """At one party, then at all: each time with a receipt and its key; the former pages lead to the forest in use."""
    where = (stage.world.address, stage.world.root / "alice" / "identity")
    with wl.connect(*where, tables="branches", parties=("bank", "shop"), layout="rows") as federation:
        grown = wl.LocalForestsClassifier(2, max_depth=3, random_state=3).fit(federation, y="late")
    first = grown.forest_.model or ""
    form = {"table.bank": "branches", "table.shop": "branches", "label": "late"}
    assert "who is told the ids" in stage.get(f"/models/{first}").text
    second, receipt = forgotten(stage, first, **form, ids="3, 1003", at="bank")
    s = receipt.statement
    assert (s.rows, s.unknown, s.rows_left, s.parties) == (1, 1, 179, ("bank", "shop"))
    third, receipt = forgotten(stage, second, **form, ids="4")
    assert (receipt.statement.rows, receipt.statement.rows_left) == (2, 177)
    page = stage.get(f"/models/{first}")
    check_replaced(page, f"Rows were forgotten: model <code>{second[:8]}</code>", third)
    assert f"Rows were forgotten: model <code>{third[:8]}</code>" in page.text
    assert f"/models/{first}/forgotten/key" in page.text
    assert "forgotten/key" not in stage.seen_by("bob", f"/models/{first}"), "the key is its user's"
    report = stage.get("/report/file", role="coordinator").text.partition("<h2>Rows that were forgotten")[2]
    assert all(f"<code>{job[:8]}</code>" in report for job in (second, third))
    assert stage.post(f"/models/{third}/forgotten", **form, ids="5", at="nobody").status_code == 200
    assert "no clients of this model" in part_of(stage, third, "forgotten")


def forgotten(stage: Stage, model: str, **form: str) -> tuple[str, ErasureReceipt]:
    """Have rows forgotten from a model's page; returns the model without them, and what the page gave to keep."""
    path = f"/models/{model}/forgotten"
    assert stage.post(path, **form).status_code == 200
    page = part_of(stage, model, "forgotten")
    assert "forgotten</b>" in page, page
    key = bytes.fromhex(stage.get(f"{path}/key").text)
    receipt = ErasureReceipt.parse(stage.get(f"{path}/receipt").content)
    receipt.verify()
    asked = canonical_ids([int(id) for id in form["ids"].split(",")]).values
    assert all(receipt.names(id, key) for id in asked)
    successor = re.search(r'href="/models/(\w+)">The model without them', page)
    assert successor is not None
    return successor[1], receipt


def part_of(stage: Stage, model: str, part: str) -> str:
    """A part of a model's page, when it is done."""
    until = time.monotonic() + 300
    while "<progress" in (page := stage.get(f"/models/{model}/{part}").text):
        assert time.monotonic() < until
        time.sleep(0.1)
    return html.unescape(page)


@pytest.mark.slow
def test_answers_are_explained_and_rows_compared_from_the_page(stage: Stage) -> None:
    where = (stage.world.address, stage.world.root / "alice" / "identity")
    assert "lead='holder'" in html.unescape(stage.get(f"/models/{stage.model}/explanation").text)
    with wl.connect(*where, tables="customers") as federation:
        model = wl.FederatedForestClassifier(4, random_state=0, max_depth=4, oob_score=True)
        led = model.fit(federation, y="bank.late").forest_.model or ""
    form = {"table.bank": "customers", "table.shop": "customers"}
    assert stage.post(f"/models/{led}/explanation", ids="3, 17", **form).status_code == 200
    page = part_of(stage, led, "explanation")
    assert 'role="alert"' not in page, page
    assert page.count("without any column") == 2
    assert "Row 17: the probability of" in page
    assert "shop.visits" in page
    assert EVIL_CLASS not in stage.get(f"/models/{led}/explanation").text
    for path in (f"/models/{led}", f"/models/{led}/explanation"):  # sealed to alice, in whose name it was ordered
        assert "Row 17: the probability of" in stage.seen_by("alice", path)
        assert "Row 17" not in stage.seen_by("bob", path)
    job = re.findall(r'/jobs/(\w{32})"', page)[0]
    files = [path for path in stage.world.coordinator_config().state.rglob("*") if path.is_file()]
    assert not [path for path in files if b"years_old" in path.read_bytes()], "the coordinator reads no explanation"
    learnt = stage.get(f"/jobs/{job}").text
    assert 'class="cell sealed"' in learnt, "what was in the frames of an explanation is not known here"
    stage.post(f"/models/{led}/explanation", **form)
    assert "Mean size of each part" in part_of(stage, led, "explanation")
    stage.post(f"/models/{led}/drift", **form)
    page = part_of(stage, led, "drift")
    assert "From 90 rows of the training to 90 rows now" in page
    assert "0.000 stable" in page
    stage.post(f"/models/{led}/explanation", ids="12345678", **form)
    assert "bank" in part_of(stage, led, "explanation")


def test_a_report_is_signed_and_tells_nothing_of_the_data(stage: Stage, tmp_path: Path) -> None:
    authority = stage.coordinator.identity.authority
    for role in ("coordinator", "bank"):
        reply = stage.get("/report/file", role=role)
        assert reply.status_code == 200
        assert reply.headers["content-disposition"].startswith("attachment")
        verdict = SignedPage.parse(reply.content).verify(authority)
        assert verdict.vouched
        assert role in verdict.signer
        text = html.unescape(reply.text)
        assert "Compliance report" in text
        assert "all are what was written" in text
        assert "<script" not in reply.text
        for secret in ("years_old", EVIL, EVIL_CLASS, "visits", "basket", "staff"):
            assert secret not in text, secret
    assert "bank" in text
    assert "min_rows" in text, "a party's report has its policy"
    nothing = stage.get("/report/file", first="2001-01-01", last="2001-01-02")
    assert "Nothing was sent." in nothing.text
    assert stage.get("/report/file", first="2001-02-30").status_code == 404
    assert stage.get("/report/file", first="2002-01-01", last="2001-01-01").status_code == 404
    out = tmp_path / "report.html"
    out.write_bytes(stage.get("/report/file", role="shop").content)
    (tmp_path / "ca.pem").write_bytes(authority)
    verify = ["audit", "verify", str(out), "--authority", str(tmp_path / "ca.pem")]
    found = CliRunner().invoke(app, verify)
    assert found.exit_code == 0, found.output
    assert "party 'shop'" in found.output
    out.write_bytes(out.read_bytes().replace(b"Compliance", b"Compliancy", 1))
    assert CliRunner().invoke(app, verify).exit_code == 1


def test_forms_offer_what_there_is_to_choose(stage: Stage) -> None:
    page = html.unescape(stage.get(f"/models/{stage.model}").text)
    assert page.count('<select name="table.bank">') == page.count('<select name="table.shop">') >= 2
    assert "<option>branches</option>" in page
    began = stage.post(
        f"/models/{stage.model}/evaluation", label="bank.late", **{"table.bank": "nothing", "table.shop": "customers"}
    )
    assert began.status_code == 200
    assert "no table of the name" in evaluated(stage, stage.model)


@pytest.mark.slow
def test_names_are_shown_as_text_on_every_page_in_every_role(stage: Stage) -> None:
    where = (stage.world.address, stage.world.root / "alice" / "identity")
    with wl.connect(*where, tables=EVIL_TABLE, parties=["bank", "shop"], lead="coordinator") as federation:
        kind = {"estimator": EVIL_ID}
        for column, said in (("late", EVIL), ("late", kind), (EVIL * 2, kind)):  # the last column is not there
            order = federation.train_order(PLAN, Labels("bank", column, None), {}, "hostile")
            order = msgspec.structs.replace(order, settings=json.dumps(said))  # which nobody but the user has checked
            federation.client.follow(federation.client.submit(order).job)
    jobs = stage.coordinator.jobs()
    trained = [job.job for job in jobs if job.kind == "train"]
    assert sorted(job.state for job in jobs if job.name == "hostile") == ["done", "done", "failed"]
    evil = [quote(name, safe="") for name in (EVIL, EVIL_CLASS, EVIL_TABLE, EVIL_ID)]
    also = [f"/{place}/{job.job}" for job in jobs for place in ("jobs", "models")]
    also += [path for model in (stage.model, *trained) for path in trees_of(model, 2)]
    also += [f"/{place}/{name}" for place in ("jobs", "models", "receipts", "static", "nowhere") for name in evil]
    also += [f"/answers?job={name}&table={EVIL_TABLE}&label={name}" for name in (stage.prediction, *evil)]
    also += [f"/answers?job={stage.prediction}&table={quote(EVIL_TABLE)}&label=late"]
    also += [f"/models/{stage.model}/trees/{tree}/nodes?root={root}" for tree in (0, *evil) for root in (0, *evil)]
    shown = {name: set[str]() for name in (EVIL, EVIL_CLASS, EVIL_TABLE, EVIL_ID)}
    for role in ("coordinator", "bank", "shop"):
        for path, page in crawled(stage.browser, role, also).items():
            assert is_html(page) or page.headers["x-content-type-options"] == "nosniff"
            for name, pages in shown.items():
                assert not (is_html(page) and name in page.text), (role, path)
                if html.escape(name).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page.text:
                    pages.add(path)
    assert all(shown.values()), shown  # each is somewhere, as text


def test_a_party_leaves_and_the_receipt_is_shown(stage: Stage) -> None:
    where = (stage.world.address, stage.world.root / "alice" / "identity")
    options = {"tables": "customers", "parties": ["bank", "shop"], "lead": "coordinator"}  # others need theirs whole
    with wl.connect(*where, **options) as federation:  # type: ignore[arg-type]
        grown = wl.FederatedForestClassifier(30, max_depth=2, oob_score=True, random_state=1)
        leaving = str(grown.fit(federation, y="bank.late").forest_.model)
    assert "Not scored" in stage.get(f"/models/{stage.model}").text
    assert f"[30, {grown.oob_score_}]" in stage.get(f"/models/{leaving}").text, "the curve of scores"
    form = {"party": "shop", "level": "3", "tables": "customers", "label": "bank.late"}
    job = stage.revoke(leaving, **form)
    page = stage.get(f"/receipts/{job}").text
    assert "shop has left" in page
    assert "signature holds" in page
    kept = stage.get(f"/receipts/{job}/file")
    assert Receipt.parse(kept.content).statement.party == "shop"
    assert job[:8] in stage.get("/receipts").text
    assert stage.get("/receipts/unknown").status_code == 404
    stage.coordinator.store.keep_receipt(job, kept.text.replace('"shop"', '"bank"'))
    assert "does not hold" in stage.get(f"/receipts/{job}").text


def test_a_policy_is_shown_as_it_is_written(stage: Stage) -> None:
    shown = dict(re.findall(r"<dt>(\w+)</dt><dd>([^<]*)</dd>", stage.get("/settings").text))  # of shop, the last
    assert (shown["allow_two"], shown["own_evaluations"], shown["min_cell"]) == ("true", "false", "not set")
    assert (shown["min_evaluation_rows"], shown["train"]) == ("5", "alice")


def test_a_linear_model_has_weights_and_no_trees(stage: Stage) -> None:
    where = (stage.world.address, stage.world.root / "alice" / "identity")
    with wl.connect(*where, tables="customers", lead="coordinator") as federation:
        fitted = wl.FederatedLogisticRegression(tol=0.01).fit(federation, y="bank.late")
    model = fitted.linear_.model or ""
    assert ">linear</td>" in stage.get("/models").text
    page = stage.get(f"/models/{model}")
    assert page.status_code == 200
    assert "weights stay with the parties" in page.text
    for party, other in (("bank", "shop"), ("shop", "bank")):
        own, theirs = (stage.views[name].weights(model) or [] for name in (party, other))
        page = stage.get(f"/models/{model}", role=party)
        assert all(f"{column['weights'][0]:.4g}" in page.text for column in own)
        assert not [column for column in theirs if column["name"] in page.text]
        assert "visits" in page.text or party == "bank"
    for role in ("coordinator", "bank"):
        for path in ("trees/0", "trees/0/nodes"):
            found = stage.get(f"/models/{model}/{path}", role=role)
            assert found.status_code == 404
            assert "has no trees" in found.text
    assert stage.get("/").status_code == 200


def test_a_whole_model_over_rows_is_shown(stage: Stage) -> None:
    where = (stage.world.address, stage.world.root / "alice" / "identity")
    with wl.connect(*where, tables="branches", parties=("bank", "shop"), layout="rows") as federation:
        grown = wl.LocalForestsClassifier(2, max_depth=3, random_state=0).fit(federation, y="late")
    model = grown.forest_.model or ""
    page = stage.get(f"/models/{model}")
    assert page.status_code == 200
    assert "Every party has all columns" in page.text
    assert "knows all of it" in stage.get(f"/models/{model}/trees/0", role="coordinator").text
    nodes = stage.get(f"/models/{model}/trees/0/nodes", role="coordinator").json()["nodes"]
    asked = {node["name"] for node in nodes if not node["leaf"]}
    assert asked == {"staff"}, "a forest over rows is whole, and its columns are everybody's"
    assert "staff" in page.text
    assert stage.get("/").status_code == 200
    stage.post(f"/models/{model}/evaluation", tables="branches", label="late")
    assert "there are 2" in evaluated(stage, model)
    stage.post(f"/models/{model}/evaluation", tables="branches", label="late", allow_two="true")
    report = evaluated(stage, model)
    assert "By client" in report
    assert ">tells no figures of its own<" in report, "shop does not let it"
    assert re.search(r"<td>bank</td><td class=\"n\">\d+</td>", report)
    form = {"party": "shop", "level": "3", "tables": "branches", "label": "late"}
    assert stage.post(f"/models/{model}/revoke", **form | {"level": "1"}).status_code == 404
    assert "shop has left" in stage.get(f"/receipts/{stage.revoke(model, **form)}").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/jobs/unknown", 404), ("/models/unknown", 404), ("/models/..%2f..%2fsecret", 404), ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404), ("/models/unknown/trees/0", 404), ("/nowhere", 404),
        ("/static/..%2fapp.py", 404), ("/static/%2e%2e%2fapp.py", 404), ("/static/..\\app.py", 404),
        ("/static/vendor/../../app.py", 404), ("/static//etc/passwd", 404), ("/static/%2fetc%2fpasswd", 404),
        ("/static/../static/style.css", 200), ("/static/style.css%00", 404), ("//static/../../app.py", 404),
    ],
)  # fmt: skip
def test_what_is_not_there(stage: Stage, path: str, status: int) -> None:
    """The path goes out as it is: a client would put it in order first."""
    address = stage.browser.base_url
    connection = http.client.HTTPConnection(address.host, address.port or 0, timeout=300)
    try:
        cookies = "; ".join(f"{name}={value}" for name, value in stage.browser.cookies.items())
        connection.request("GET", path, headers={"cookie": cookies, "host": f"{address.host}:{address.port}"})
        answer = connection.getresponse()
        assert answer.status == status
        assert b"import" not in answer.read()
    finally:
        connection.close()


def test_bad_questions_are_told(stage: Stage) -> None:
    tree = f"/models/{stage.model}/trees"
    assert stage.get(f"{tree}/99", role="bank").status_code == 404
    assert "there is no tree" in stage.get(f"{tree}/99", role="bank").text
    assert stage.get(f"{tree}/0/nodes", role="bank", root=10**6).status_code == 404
    assert stage.get(f"{tree}/0/nodes", role="mallory").status_code == 404
    assert stage.get(f"{tree}/0/way", role="bank", table="customers", row=9999).status_code == 404
    assert stage.get(f"{tree}/0/way", role="bank", table="../secret", row=0).status_code == 404
    assert stage.get("/answers", role="bank", job="../../secret", table="customers", label="late").status_code == 404
    assert stage.post(f"/models/{stage.model}/contribution", tables="customers", label="nobody.late").status_code == 404


def test_over_tls_only_named_users_get_in(stage: Stage) -> None:
    world = stage.world
    own = Identity.load(world.root / "coordinator" / "identity")
    pages = Pages(stage.coordinator, [])
    with pytest.raises(ConfigError, match="--user"):
        Server(pages.app, "0.0.0.0", 0)  # noqa: S104 - refused
    trust = Trust(own.authority, None)
    with Server(pages.app, "0.0.0.0", 0, identity=own, trust=trust, users=("alice",)) as server:  # noqa: S104 - not started
        assert server.address == f"https://{socket.gethostname()}:{server.port}/"
    with Server(pages.app, "127.0.0.1", 0, identity=own, trust=trust, users=("alice",)) as server:
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{server.port}: .*--listen"):
            Server(pages.app, "127.0.0.1", server.port)
        server.start()
        for user, status in (("alice", 200), ("bob", 403), (None, None)):
            context = ssl.create_default_context(cafile=str(world.root / "alice" / "identity" / "ca.pem"))
            context.check_hostname = False  # the certificate names the coordinator, not this machine
            if user is not None:
                folder = world.root / user / "identity"
                context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
            with httpx.Client(verify=context, timeout=10) as client:
                if status is None:
                    with pytest.raises(httpx.TransportError):
                        client.get(server.address)
                else:
                    assert client.get(server.address).status_code == status


def test_two_processes_with_one_key_are_shown(stage: Stage) -> None:
    said = "two processes have used its key at once (ipv4:10.0.0.7:1 and ipv4:10.0.0.8:2)"
    assert said not in stage.get("/").text
    stage.coordinator.store.note_second("shop", "ipv4:10.0.0.7:1", "ipv4:10.0.0.8:2")
    shown = stage.get("/").text
    assert f'role="alert"><b>shop</b>: {said}, last at 20' in shown
    assert "its key was copied: revoke its certificate" in shown


def test_of_a_model_that_a_party_keeps_the_coordinator_shows_what_it_knows(stage: Stage) -> None:
    """Its leader's own page of the same model has that party's part, as ever."""
    where = (stage.world.address, stage.world.root / "alice" / "identity")
    with wl.connect(*where, tables="customers") as federation:
        model = str(wl.FederatedForestClassifier(2, random_state=0).fit(federation, y="bank.late").forest_.model)
    shown = stage.get(f"/models/{model}", role="coordinator")
    assert shown.status_code == 200
    assert "bank, who leads its jobs" in shown.text
    assert "SealedReply" in shown.text
    assert "kept at bank" in stage.get("/models").text
    assert "; bank leads" in stage.get(f"/jobs/{model}").text
    assert "kept by bank" in stage.get(f"/models/{model}", role="bank").text
    assert "kept by bank" in stage.get(f"/models/{model}", role="shop").text
    assert "kept by the coordinator" in stage.get(f"/models/{stage.model}", role="shop").text
    trees = stage.get(f"/models/{model}/trees/0", role="coordinator")
    assert trees.status_code >= 400
    assert "keeps this model" in html.unescape(trees.text)
    form = {"party": "shop", "level": "3", "tables": "customers", "label": "bank.late"}
    assert stage.post(f"/models/{model}/revoke", **form | {"party": "bank"}).status_code == 404
    without, receipt = forgotten(stage, model, tables="customers", label="bank.late", ids="3, 4")
    assert receipt.statement.rows == 2
    shown = stage.get(f"/jobs/{without}").text
    check_opened(shown)
    assert 'class="cell rows"' in shown, "shop has learnt which row goes where"
    job = stage.revoke(without, **form)
    check_opened(stage.get(f"/jobs/{job}").text)
    assert "see what was removed" in stage.get(f"/jobs/{job}").text
    assert "Signed by bank (leader)" in stage.get(f"/receipts/{job}").text
    with pytest.raises(DataError, match="'bank' has led this job and keeps its receipt"):
        Pages(stage.coordinator, []).receipt(job)
    assert "no part of this model" in stage.get(f"/models/{job}", role="coordinator").text
    for role in ("", "coordinator", "bank (leader)"):
        check_replaced(stage.get(f"/models/{without}", role=role), f"shop left: model <code>{job[:8]}</code>", job)
        check_replaced(stage.get(f"/models/{model}", role=role), "Rows were forgotten", job)
    lost = stage.get(f"/models/{without}/trees/0")
    assert (lost.status_code, f"was replaced by {job}" in lost.text) == (404, True)
    reports = {role: stage.get("/report/file", role=role).text for role in ("bank", "shop", "coordinator")}
    told = {
        role: re.findall(r"<h2>(Rows that were forgotten|Parties that have left)", reports[role]) for role in reports
    }
    assert told["bank"] == ["Parties that have left", "Rows that were forgotten"], "it has led both jobs"
    assert f'<code>{without[:8]}</code></td><td class="n">2</td>' in reports["bank"]
    assert told["shop"] == []
    assert without[:8] not in "".join(reports["coordinator"].partition("<h2>Rows that were forgotten")[1:])
    store = stage.coordinator.store
    kept = store.model_facts(job)
    store.delete_model(job)
    assert "and was deleted since" in stage.get(f"/models/{without}").text
    store.keep_led_model(kept)


def check_opened(page: str) -> None:
    """Who learnt what is shown from the leader's account, which is on this machine."""
    assert 'id="learnt"' in page
    assert 'class="cell sealed"' not in page


def check_replaced(page: httpx.Response, why: str, successor: str) -> None:
    """The page of a model that is gone says why, and leads to the one that is in use."""
    assert page.status_code == 200
    assert "This model was replaced" in page.text
    assert why in page.text
    assert f'<a class="button main" href="/models/{successor}">The model in use</a>' in page.text


def test_the_leader_shows_the_model_its_trees_scores_and_receipts(stage: Stage) -> None:
    """On the machine of the leader, without the coordinator's folder; another party's machine has none of it."""
    where = (stage.world.address, stage.world.root / "alice" / "identity")
    with wl.connect(*where, tables="customers") as federation:
        forest = wl.FederatedForestClassifier(3, random_state=0, oob_score=True)
        model = str(forest.fit(federation, y="bank.late").forest_.model)
        linear = str(wl.FederatedLogisticRegression(tol=0.01).fit(federation, y="bank.late").linear_.model)
        score = federation.run(federation.predict_order(model, "bank.late", give_answers=False)).score
        facts = federation.client.find_model(model)
        left = federation.run(federation.revoke_order(facts, "shop", 3, Labels("bank", "late", None))).job
    for party in PARTIES:
        pages = Pages(None, [PartyView(stage.world.party_config(party))])
        with Server(pages.app, "127.0.0.1", 0) as server:
            server.start()
            with httpx.Client(base_url=server.address, follow_redirects=True, timeout=300) as browser:
                assert browser.get(server.url.removeprefix(server.address)).status_code == 200
                shown = {
                    path: browser.get(path, params={"role": "bank (leader)"})
                    for path in (
                        f"/models/{left}", f"/models/{left}/trees/0", f"/models/{left}/trees/0/nodes",
                        f"/models/{linear}", "/receipts", f"/receipts/{left}", f"/models/{model}",
                    )
                }  # fmt: skip
        if party != "bank":
            assert {page.status_code for path, page in shown.items() if path != "/receipts"} == {404}
            assert left[:8] not in shown["/receipts"].text
            continue
        assert {page.status_code for page in shown.values()} == {200}
        check_replaced(shown[f"/models/{model}"], "shop left", left)
        page = shown[f"/models/{left}"].text
        assert f"{federation_score(stage, left):.4f}" in page
        assert "out of bag" in page
        assert "bank (leader)" in page
        assert "it has led the training" in shown[f"/models/{left}/trees/0"].text
        assert any("answer" in node or node["leaf"] for node in shown[f"/models/{left}/trees/0/nodes"].json()["nodes"])
        assert "weights stay with the parties" in shown[f"/models/{linear}"].text
        assert left[:8] in shown["/receipts"].text
        assert "Signed by bank (leader)" in shown[f"/receipts/{left}"].text
    assert score is not None


def federation_score(stage: Stage, model: str) -> float:
    with wl.connect(stage.world.address, stage.world.root / "alice" / "identity", tables="customers") as federation:
        return float(federation.client.find_model(model).oob_score or 0)
    assert stage.get("/").status_code == stage.get("/disclosure").status_code == 200
