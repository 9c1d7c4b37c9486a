"""Hidden trainings for which a helper deals, without a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from hidden_bench import HIDDEN_PLAN, THIRD, HiddenBench, relay_hidden
from led_bench import LEADER, OTHER, RELAY
from party_bench import Recorded

from woodlot.identity.certificates import REVOKED
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.hidden.helper_dealing import DealerBook
from woodlot.jobs.key_store import KeyStore
from woodlot.jobs.member_job import MemberHome, MemberJob
from woodlot.jobs.order_seal import common_fields
from woodlot.jobs.orders import Part, RevokeOrder, TrainOrder
from woodlot.jobs.policy import Policy

HELPER = "helper"
HAVE_ROWS = (LEADER, OTHER, THIRD)


class DealerBench(HiddenBench):
    """Three parties, and a helper that has no table."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        identity = Identity.load(self.world.member("party", HELPER))
        state = root / HELPER / "state"
        state.mkdir()
        self.helper = MemberHome(
            role="helper",
            identity=identity,
            trust=Trust(identity.authority, root / HELPER / "identity" / REVOKED),
            policy=Policy(protocols=("train", "revoke"), train=("alice", "bob")),
            store=KeyStore(state / "keys"),
            dealt=DealerBook(state),
            n_jobs=1,
            replays=lambda job: False,
        )

    def job(self, party: str, name: str) -> Any:
        return MemberJob(self.helper, name, None) if party == HELPER else super().job(party, name)

    def fields_of(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        certificates = {party: home.identity.certificate for party, home in {**self.homes, HELPER: self.helper}.items()}
        sealed = {party: msgspec.structs.replace(part, relay=RELAY) for party, part in parts.items()}
        return common_fields(sealed, certificates, **self.here)


def dealt_order(bench: DealerBench, **changes: Any) -> TrainOrder:
    """An order to grow a small forest hidden: the bank leads, the shop is the second server, the helper deals."""
    fields = bench.fields(**{THIRD: Part(table="customers"), HELPER: Part()})
    hidden: dict[str, Any] = {"plan": HIDDEN_PLAN, "led_by": LEADER, "server": OTHER, "dealer": HELPER}
    return msgspec.structs.replace(TrainOrder(**fields, holder=LEADER, settings="{}", **hidden), **changes)


def dealt_leaving(bench: DealerBench, model: str, leaver: str, **changes: Any) -> RevokeOrder:
    """An order by which the shop or the club leaves such a forest."""
    stays = next(party for party in (OTHER, THIRD) if party != leaver)
    parts = {LEADER: Part(table="customers", label="late"), stays: Part(table="customers"), HELPER: Part()}
    about: dict[str, Any] = {"model": model, "alignment": model, "leaver": leaver, "task": "classes", "level": 3}
    order = RevokeOrder(**bench.fields_of(parts), **about, led_by=LEADER, server=stays, dealer=HELPER)
    return msgspec.structs.replace(order, **changes)


@contextmanager
def recorded_dealing(root: Path) -> Iterator[Recorded]:
    """A forest for which a helper deals."""
    with closing(DealerBench(root)) as bench:
        yield Recorded(bench, {"dealt train": relay_hidden(bench, dealt_order(bench))})
