"""Parties, a helper and a key service without a network, and whole jobs about keys that are recorded with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from party_bench import Bench, Recorded, play, train_order

from woodlot.identity.certificates import REVOKED
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs import job_messages as jobs
from woodlot.jobs.hidden.helper_dealing import DealerBook
from woodlot.jobs.key_store import KeyStore
from woodlot.jobs.member_job import MemberHome, MemberJob
from woodlot.jobs.order_seal import common_fields
from woodlot.jobs.orders import Part, PredictOrder
from woodlot.jobs.policy import Policy
from woodlot.jobs.revocable.revocable_orders import KeysOrder
from woodlot.jobs.revocable.stored_epochs import told_keys
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.share_messages import SharesOfModel
from woodlot.runtime.codec import decode, encode
from woodlot.service.client import Client
from woodlot.service.encrypted import encrypted_order

ORDERED: dict[str, Any] = {"helper": "helper", "key_service": "keys", "bits": 512, "setting": "test"}
ROWS = {"bank.age": [40.0], "bank.income": [3000.0], "shop.visits": [3.0], "shop.basket": [20.0]}
PROTOCOLS = ("train", "keys", "predict-encrypted", "predict")


class KeyBench(Bench):
    """Two parties, a helper and a key service, without any connection."""

    def __init__(self, root: Path, *, forgets: bool = True) -> None:
        super().__init__(root)
        self.members: dict[str, MemberHome] = {}
        for name in ("bank", "shop"):
            self.change_policy(name, weak_keys=True, protocols=PROTOCOLS)
        for name in ("helper", "keys"):
            identity = Identity.load(self.world.member("party", name))
            self.members[name] = MemberHome(
                role="helper" if name == "helper" else "key service",
                identity=identity,
                trust=Trust(identity.authority, self.world.root / name / "identity" / REVOKED),
                policy=Policy(protocols=PROTOCOLS, train=("alice",), predict=("alice",), weak_keys=True),
                store=KeyStore(root / name / "state" / "keys", forgets=forgets and name == "keys"),
                dealt=DealerBook(root / name / "state"),
                n_jobs=1,
                replays=lambda job: False,
            )

    def order(self, **changes: Any) -> KeysOrder:
        parts = dict.fromkeys(("bank", "shop", "helper", "keys"), Part())
        homes = {**self.homes, **self.members}
        certificates = {name: homes[name].identity.certificate for name in parts}
        return KeysOrder(**common_fields(parts, certificates, **self.here), **({"model": "0" * 32} | ORDERED | changes))

    def job(self, party: str, name: str) -> Any:
        return MemberJob(self.members[party], name, None) if party in self.members else super().job(party, name)

    def opened(self, order: KeysOrder) -> dict[str, Any]:
        """Everybody's side of the job."""
        jobs = {name: self.job(name, order.job) for name in order.parties}
        for job in jobs.values():
            job.handle(self.opening(order))
        return jobs


class Told(Client):
    """A user to whom a coordinator says what the test wants it to say."""

    def __init__(self, bench: KeyBench, told: msg.KeysOfModel | SharesOfModel) -> None:
        super().__init__("localhost:1", bench.world.root / "alice" / "identity")
        self.told, self._bench = told, bench
        self.certificates = {name: home.identity.certificate for name, home in {**bench.homes, **bench.members}.items()}

    def ask(self, request: Message, kind: type[Any]) -> Any:
        if isinstance(request, msg.AskKeys):
            return decode(encode(self.told))
        assert isinstance(request, jobs.AskFederation)
        facts = (jobs.PartyFacts(name=name, since=None, certificate=pem) for name, pem in self.certificates.items())
        return jobs.FederationFacts(parties=tuple(facts), coordinator=self._bench.identity.certificate)

    def find_model(self, name: str) -> Any:
        return self  # of its facts only the id is asked for

    model = "0" * 32


def splits_order(bench: Bench, model: str, keys: str, **fields: Any) -> PredictOrder:
    """An order to predict the common rows by the encrypted splits of a model, with its keys under some name."""
    parts = {"bank": Part(table="customers", label="late", keys=keys), "shop": Part(table="customers", keys=keys)}
    return PredictOrder(**bench.fields(**parts), model=model, how="encrypted-splits", **fields)


@contextmanager
def recorded_keys(root: Path) -> Iterator[Recorded]:
    """Keys for a forest, rows that nobody reads predicted with it, and the common rows by its encrypted splits."""
    with closing(KeyBench(root, forgets=False)) as bench:  # so that all of it can be asked again
        trained = play(bench, train_order(bench))
        made = play(bench, bench.order(model=trained.job))
        user = Told(bench, told_keys(bench.coordinator, trained.job))
        user.model = trained.job
        order = encrypted_order(user, trained.job, ROWS, setting="test", helper="helper", key_service="keys")
        plays = {
            "keys": made,
            "predict-encrypted": play(bench, order),
            "encrypted-splits": play(bench, splits_order(bench, trained.job, trained.job, score_at="bank")),
        }
        yield Recorded(bench, plays)
