"""Keys are those that a user has ordered: a coordinator that has others made is refused by whoever it asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from party_bench import Bench

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.messages import revocable_keys as msg
from woodlot.protocols.messages.base import Message
from woodlot.protocols.revocable.keys import CoordinatorKeys, prepare_epoch
from woodlot.runtime.codec import decode, encode
from woodlot.service.identity import Identity, Trust
from woodlot.service.key_store import KeyStore
from woodlot.service.member import MemberJob, _Home
from woodlot.service.order_seal import common_fields
from woodlot.service.orders import KeysOrder, Part
from woodlot.service.policy import Policy

ORDERED: dict[str, Any] = {"helper": "helper", "key_service": "keys", "bits": 512, "setting": "test"}
PROTOCOLS = ("train", "keys", "predict-encrypted")


class KeyBench(Bench):
    """Two parties, a helper and a key service, without any connection."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.members = {}
        for name in ("bank", "shop"):
            self.change_policy(name, weak_keys=True, protocols=PROTOCOLS)
        for name in ("helper", "keys"):
            identity = Identity.load(self.world.member("party", name))
            self.members[name] = _Home(
                role="helper" if name == "helper" else "key service",
                identity=identity,
                trust=Trust(identity.authority, None),
                policy=Policy(protocols=PROTOCOLS, train=("alice",), predict=("alice",), weak_keys=True),
                store=KeyStore(root / name / "state" / "keys"),
                n_jobs=1,
                has_opened=lambda job: False,
            )

    def order(self, **changes: Any) -> KeysOrder:
        parts = dict.fromkeys(("bank", "shop", "helper", "keys"), Part())
        homes = {**self.homes, **self.members}
        certificates = {name: homes[name].identity.certificate for name in parts}
        return KeysOrder(**common_fields(parts, certificates), model="0" * 32, **(ORDERED | changes))

    def opened(self, order: KeysOrder) -> dict[str, Any]:
        """Everybody's side of the job."""
        jobs: dict[str, Any] = {name: self.job(name, order.job) for name in self.homes}
        jobs |= {name: MemberJob(home, order.job, None) for name, home in self.members.items()}
        for job in jobs.values():
            job.handle(self.opening(order))
        return jobs


def prepare(jobs: dict[str, Any], **changes: Any) -> CoordinatorKeys:
    """The coordinator's side, through the codec; what a member refuses is raised."""
    asked = {name: changes.get(name, ORDERED[name]) for name in ORDERED}
    protocol = prepare_epoch(("bank", "shop"), epoch=changes.get("epoch", 1), **asked)
    replies: dict[str, Message] | None = None
    while True:
        try:
            step = next(protocol) if replies is None else protocol.send(replies)
        except StopIteration as end:
            keys: CoordinatorKeys = end.value
            return keys
        replies = {
            name: decode(encode(jobs[name].handle(decode(encode(message))))) for name, message in step.requests.items()
        }


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyBench]:
    made = KeyBench(tmp_path_factory.mktemp("keys"))
    yield made
    made.close()


@pytest.mark.parametrize("other", [{"bits": 514}, {"bits": 256}, {"bits": 1024, "setting": "paper"}])
def test_a_key_service_makes_the_modulus_that_was_ordered(bench: KeyBench, other: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="not the one that was ordered"):
        prepare(bench.opened(bench.order()), **other)


@pytest.mark.parametrize(("name", "kind"), [("bank", msg.TakeGroup), ("helper", msg.TakeShare)])
def test_members_take_the_modulus_that_was_ordered(bench: KeyBench, name: str, kind: type[Message]) -> None:
    jobs = bench.opened(bench.order())
    group = msg.PublicGroup(epoch=1, modulus=b"\1" * 32, generator=b"\2")
    fields = {"group": group, "tag": b""} | ({"sealed": b""} if kind is msg.TakeShare else {})
    with pytest.raises(RemoteProtocolError, match="not the one that was ordered"):
        jobs[name].handle(kind(**fields))
    assert prepare(jobs).group.N.bit_length() == ORDERED["bits"]  # and nothing has been changed


def test_one_modulus_for_an_epoch_of_a_job(bench: KeyBench) -> None:
    """A restarted key service repeats itself byte for byte; an epoch that was given up is followed by another."""
    order = bench.order()
    first = prepare(bench.opened(order))
    again = prepare(bench.opened(order))
    assert (again.group, again.share.exponent) == (first.group, first.share.exponent)
    third = prepare(bench.opened(order), epoch=2)
    assert third.group != first.group
