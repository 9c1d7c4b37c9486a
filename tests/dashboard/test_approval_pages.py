"""The page of approvals: what it shows, its two buttons, and who may press them."""

from __future__ import annotations

import html
import ssl
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from party_bench import Bench, train_order
from world import POLICY

from woodlot.dashboard.app import Pages
from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.server import Server
from woodlot.exceptions import ApprovalPendingError
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.approvals import Approvals
from woodlot.jobs.orders import Part

HTML = {"accept": "text/html"}
EVIL = "<script>alert(1)</script>"


def test_orders_are_decided_about_on_the_page_of_this_machine_only(tmp_path: Path) -> None:
    with closing(Bench(tmp_path)) as bench:
        bench.world.settings["bank"]["policy"] = POLICY | {"approve": ["train"]}
        config = bench.world.party_config("bank")
        pages = Pages(None, [PartyView(config)])
        with Server(pages.app, "127.0.0.1", 0) as server:
            server.start()
            with httpx.Client(base_url=server.address, follow_redirects=True, timeout=300) as browser:
                assert browser.get(server.url.removeprefix(server.address)).status_code == 200
                assert "No order waits" in browser.get("/approvals", headers=HTML).text
                with Approvals(config.state, 7) as record:
                    for _ in range(2):
                        order = train_order(bench)
                        part = Part(table=EVIL, label="late", weight="care", features=("age",), ids=(b"i1", b"i2"))
                        with pytest.raises(ApprovalPendingError):
                            record.check(order.job.encode(), order, part, "alice")
                    first, second = record.listed()
                    page = browser.get("/approvals", headers=HTML).text
                    assert page.count(">Allow</button>") == page.count(">Refuse</button>") == 2
                    assert EVIL not in page
                    assert "&lt;script&gt;alert(1)" in page
                    assert "What it may tell whom" in page
                    for fact, words in first.about.facts().items():  # what a person decides by is all there
                        assert not words or f"<dt>{fact}</dt><dd>{html.escape(words)}</dd>" in page, fact
                    shown = {fact for fact, words in first.about.facts().items() if words}
                    assert shown >= {"weights", "columns", "named rows", "label", "run by"}
                    ours = {"x-woodlot-csrf": server.guard.csrf, "origin": str(browser.base_url).rstrip("/")}
                    where = f"/approvals/bank/{first.id}"
                    assert browser.post(where, data={"decision": "allow"}).status_code == 403  # from another page
                    assert browser.post(where, data={"decision": "maybe"}, headers=ours).status_code == 422
                    done = browser.post(where, data={"decision": "allow"}, headers=ours)
                    assert (done.status_code, done.headers["hx-redirect"]) == (204, "/approvals")
                    refused = {"decision": "refuse", "reason": "not now"}
                    assert browser.post(f"/approvals/bank/{second.id}", data=refused, headers=ours).status_code == 204
                    assert browser.post("/approvals/shop/x", data=refused, headers=ours).status_code == 404
                    states = {entry.id: (entry.state, entry.reason) for entry in record.listed(every=True)}
                    assert states == {first.id: ("allowed", ""), second.id: ("refused", "not now")}
        own = Identity.load(tmp_path / "coordinator" / "identity")
        trust, alice = Trust(own.authority, None), tmp_path / "alice" / "identity"
        with Server(pages.app, "127.0.0.1", 0, identity=own, trust=trust, users=("alice",)) as server:
            server.start()
            context = ssl.create_default_context(cafile=str(alice / "ca.pem"))
            context.check_hostname = False  # the certificate names the coordinator, not this machine
            context.load_cert_chain(alice / "certificate.pem", alice / "key.pem")
            with httpx.Client(base_url=server.address, verify=context, timeout=300) as browser:
                assert ">Refuse</button>" not in browser.get("/approvals", headers=HTML).text
                ours = {"x-woodlot-csrf": server.guard.csrf, "origin": str(browser.base_url).rstrip("/")}
                late = browser.post(where, data={"decision": "refuse"}, headers=ours)  # she may be the one who asks
                assert late.status_code == 403
                assert "on the machine of the party" in late.text
        with Approvals(config.state, 7) as record:
            assert {entry.state for entry in record.listed(every=True)} == {"allowed", "refused"}
