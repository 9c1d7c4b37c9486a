"""A real federation of processes with its dashboard, for a browser to look at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import woodlot as wl
from woodlot.cli._companies import ID, LABEL, TABLES, TEST_TABLES, make_companies, write_companies
from woodlot.cli.dashboard import open_dashboard
from woodlot.dashboard.server import Server
from woodlot.service.local import LocalFederation, local_federation

Y = f"bank.{LABEL}"
KINDS = ("align", "train", "predict", "revoke", "evaluate", "explain", "score", "drift", "forget")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@dataclass
class Stage:
    """What there is to look at."""

    federation: LocalFederation
    server: Server
    model: str = ""
    jobs: dict[str, str] = field(default_factory=dict)
    ids: tuple[int, ...] = ()
    """Of the rows that both have in the training."""

    def connect(self, tables: Any = TABLES) -> Any:
        return wl.connect(self.federation.address, self.federation.identity, tables=tables, lead="coordinator")

    def train(self, lead: Any = "coordinator", **params: Any) -> str:
        with wl.connect(self.federation.address, self.federation.identity, tables=TABLES, lead=lead) as federation:
            settings = {"n_estimators": 20, "max_depth": 8, "random_state": 0, "oob_score": False, **params}
            model = wl.FederatedForestClassifier(**settings).fit(federation, y=Y)
            return model.forest_.model or ""

    def revoke(self, party: str) -> str:
        """Have a party leave the model; returns the job."""
        with self.connect() as federation:
            facts = federation.client.find_model(self.model)
            order = federation.revoke_order(facts, party, 3, federation.find_labels(Y, None))
            return str(federation.client.finish(federation.client.submit(order).job).job)


@contextmanager
def stage(rows: int = 1500) -> Iterator[Stage]:
    """Two companies as processes, common rows found, one model grown, one prediction delivered; and the page."""
    with local_federation(("bank", "shop")) as federation:
        companies = make_companies(rows, 0)
        files = write_companies(companies, federation.root / "bank", federation.root / "shop")
        federation.start(files, ID, n_jobs=1, labels={"bank": [LABEL]}, protocols=KINDS)
        federation.wait_connected()
        configs = [federation.root / "coordinator" / "coordinator.toml"]
        configs += [federation.root / party / "party.toml" for party in federation.parties]
        with open_dashboard(configs, federation.identity, federation.address, "127.0.0.1:0") as server:
            server.start()
            common = set(companies.bank_train[ID].to_pylist()) & set(companies.shop[ID].to_pylist())
            here = Stage(federation, server, ids=tuple(sorted(common)))
            with here.connect() as train, here.connect(TEST_TABLES) as test:
                here.jobs["align"] = train.align().job
                test.align()
                here.model = here.train(oob_score=True, n_estimators=40)
                order = test.predict_order(here.model, Y, deliver_to="bank")
                here.jobs["predict"] = test.client.finish(test.client.submit(order).job).job
            yield here
