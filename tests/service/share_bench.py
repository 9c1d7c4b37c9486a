"""Parties, a helper and a key service without a network, and whole jobs with shares that are recorded with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from key_bench import PROTOCOLS, ROWS, KeyBench, Told
from party_bench import Play, Recorded, play, train_order
from small_jobs import PLAN

from woodlot.jobs.order_seal import common_fields
from woodlot.jobs.orders import Part
from woodlot.jobs.revocable.revocable_orders import (
    KeysOrder,
    PredictEncryptedOrder,
    RevokeRevocableOrder,
    TrainRevocableOrder,
)
from woodlot.jobs.revocable.stored_epochs import told_keys
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.service.encrypted import encrypted_order

MEMBERS: dict[str, Any] = {"helper": "helper", "key_service": "keys", "scheme": "shares"}
HOLDERS = dict.fromkeys(("helper", "keys"), Part())
BANK, SHOP = Part(table="customers", label="late"), Part(table="customers")
ALLOWED = (*PROTOCOLS, "train-revocable", "revoke-revocable")


class ShareBench(KeyBench):
    """The same members, for orders with ``scheme="shares"``."""

    def __init__(self, root: Path, *, forgets: bool = False) -> None:
        super().__init__(root, forgets=forgets)
        for name in ("bank", "shop"):
            self.change_policy(name, protocols=ALLOWED, labels_to_coordinator=True)
        for name, home in self.members.items():
            self.members[name] = replace(home, policy=msgspec.structs.replace(home.policy, protocols=ALLOWED))

    def fields_of_all(self, **parts: Part) -> dict[str, Any]:
        """What every order says, with these parts and those of the holders."""
        homes = {**self.homes, **self.members}
        whole = {**parts, **HOLDERS}
        return common_fields(whole, {name: homes[name].identity.certificate for name in whole}, **self.here)

    def shares_order(self, model: str) -> KeysOrder:
        """New keys for a model, and all its splits shared."""
        return KeysOrder(**self.fields_of_all(bank=Part(), shop=Part()), model=model, **MEMBERS)

    def training(self) -> TrainRevocableOrder:
        """A revocable forest whose splits are shared."""
        fields = self.fields_of_all(bank=BANK, shop=SHOP)
        return TrainRevocableOrder(**fields, **MEMBERS, holder="bank", plan=RevocablePlan(PLAN), settings="{}")

    def leaving(self, model: str) -> RevokeRevocableOrder:
        """The shop leaves such a forest, within the epoch."""
        about: dict[str, Any] = {"model": model, "alignment": model, "leaver": "shop", "task": "classes", "level": 1}
        return RevokeRevocableOrder(**self.fields_of_all(bank=BANK), **MEMBERS, holder="bank", keys=model, **about)

    def request(self, model: str, rows: Any = ROWS) -> PredictEncryptedOrder:
        """A user's rows, for a forest whose splits are shared."""
        user = Told(self, told_keys(self.coordinator, model))
        user.model = model
        return encrypted_order(user, model, rows, helper="helper", key_service="keys")


def shared(bench: ShareBench) -> tuple[Play, Play]:
    """A forest, and its splits shared."""
    trained = play(bench, train_order(bench))
    return trained, play(bench, bench.shares_order(trained.job))


@contextmanager
def recorded_shares(root: Path) -> Iterator[Recorded]:
    """Splits shared, rows predicted that nobody reads, a revocable forest with shares, and a party that leaves one."""
    with closing(ShareBench(root)) as bench:
        trained, made = shared(bench)
        left = play(bench, bench.training())
        plays = {
            "shares": made,
            "predict-shares": play(bench, bench.request(trained.job)),
            "train-shares": play(bench, bench.training()),
            "leave-shares": play(bench, bench.leaving(left.job)),
        }
        yield Recorded(bench, plays)
