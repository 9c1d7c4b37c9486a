"""Keys are those that a user has ordered and the key service has made: a coordinator cannot slip in others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gmpy2
import msgspec
import pytest
from key_bench import ORDERED, PROTOCOLS, KeyBench, Told
from small_jobs import PLAN

from woodlot.crypto.dtpkc import Group
from woodlot.crypto.primes import safe_prime
from woodlot.crypto.streams import SecretStream
from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import IdentityError, PolicyError, RemoteProtocolError
from woodlot.jobs import key_store
from woodlot.jobs.member_job import MemberJob
from woodlot.jobs.order_seal import common_fields
from woodlot.jobs.orders import Part
from woodlot.jobs.revocable.revocable_orders import KeysOrder, TrainRevocableOrder
from woodlot.protocols.core.agreement import derive
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import (
    GROUP_PURPOSE,
    TAG,
    bytes_number,
    proof_bytes,
    public_group,
    unseal,
)
from woodlot.protocols.revocable.key_service import share_key
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys, prepare_epoch, revoke_key
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.journal import Journal
from woodlot.runtime.sessions import Sessions
from woodlot.service.encrypted import checked_keys, encrypted_order, key_fields


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


# --- a requester, to whom the coordinator tells the modulus ---


def told_by(keys: CoordinatorKeys, **changes: Any) -> msg.KeysOfModel:
    """What an honest coordinator tells of these keys, but for the changes."""
    fields: dict[str, Any] = {
        "group": public_group(keys.group),
        "setting": "test",
        "parties": keys.parties,
        "helper": keys.helper,
        "key_service": keys.key_service,
        "keys": "0" * 32,
        "splits": bytes(32),
        "proof": keys.proof,
    }
    return msg.KeysOfModel(**(fields | changes))


@pytest.fixture(scope="module")
def made(bench: KeyBench) -> CoordinatorKeys:
    return prepare(bench.opened(bench.order()))


COLUMNS = {"bank.age": [1.0, 2.0], "shop.visits": [3.0, 4.0]}
TINY = Group(59 * 83, 6457553, setting="test")
"""What a coordinator would pass on to read everything: it knows the factors."""


def test_rows_are_encrypted_under_a_modulus_that_the_key_service_has_signed(
    bench: KeyBench, made: CoordinatorKeys
) -> None:
    honest = Told(bench, told_by(made))
    order = encrypted_order(honest, "forest", COLUMNS, setting="test", helper="helper", key_service="keys")
    assert len(order.values) == 4 * made.group.element_bytes
    assert key_fields(honest, "0" * 32)["bits"] == 512
    # who has left since does not matter: the signature is of the epoch's beginning
    left = told_by(made, parties=("bank",))
    assert checked_keys(Told(bench, left), "0" * 32, setting="test").parties == ("bank",)


def signed_by(home: Any, told: msg.KeysOfModel, members: tuple[str, ...] = ("bank", "helper", "keys", "shop")) -> Any:
    data = proof_bytes("0" * 32, told.setting, members, told.helper, told.key_service, told.group)
    return msg.GroupProof(job="0" * 32, members=members, signature=home.identity.sign(data, GROUP_PURPOSE))


def test_a_modulus_of_the_coordinators_own_is_refused(bench: KeyBench, made: CoordinatorKeys) -> None:
    own = told_by(made, group=public_group(TINY))
    # as it is; with a signature of a member that is no key service; in its name; and of another federation's setting
    false = [
        own,
        msgspec.structs.replace(own, proof=signed_by(bench.homes["shop"], own)),
        told_by(made, helper="bank"),
        told_by(made, key_service="shop"),
        told_by(made, setting="paper", group=public_group(Group(bytes_number(b"\xff" * 128), 4, setting="paper"))),
        told_by(made, proof=msgspec.structs.replace(made.proof, job="1" * 32)),
        told_by(made, proof=msgspec.structs.replace(made.proof, members=("bank", "helper", "keys"))),
        told_by(made, group=msgspec.structs.replace(public_group(made.group), epoch=2)),
    ]
    for told in false:
        user = Told(bench, told)
        with pytest.raises(IdentityError, match=r"not one that the key service '\w+' has signed"):
            encrypted_order(user, "forest", COLUMNS, setting=told.setting)
        with pytest.raises(IdentityError, match=r"not one that the key service '\w+' has signed"):
            key_fields(user, "0" * 32)
    # nor does another's certificate help, or none
    user = Told(bench, msgspec.structs.replace(own, proof=signed_by(bench.homes["shop"], own)))
    user.certificates["keys"] = user.certificates["shop"]
    with pytest.raises(IdentityError, match="the certificate of 'shop' on as that of 'keys'"):
        checked_keys(user, "0" * 32, setting="test")
    user.certificates["keys"] = bench.users["bob"].certificate
    with pytest.raises(IdentityError, match="here a party is needed"):
        checked_keys(user, "0" * 32, setting="test")
    del user.certificates["keys"]
    with pytest.raises(IdentityError, match="never joined"):
        checked_keys(user, "0" * 32, setting="test")


def test_short_keys_other_members_and_keys_without_a_proof_are_refused(bench: KeyBench, made: CoordinatorKeys) -> None:
    user = Told(bench, told_by(made))
    with pytest.raises(PolicyError, match="of the test setting, too short for use"):
        encrypted_order(user, "forest", COLUMNS)
    with pytest.raises(PolicyError, match="the helper 'helper', not 'bank'"):
        encrypted_order(user, "forest", COLUMNS, setting="test", helper="bank")
    with pytest.raises(PolicyError, match="the key service 'keys', not 'shop'"):
        key_fields(user, "0" * 32, key_service="shop")
    # what was stored before there were proofs: the way out is a new epoch, which can be ordered
    user.told = told_by(made, proof=None)
    with pytest.raises(PolicyError, match=r"a revocation at level 2, .* or train the model again"):
        encrypted_order(user, "forest", COLUMNS, setting="test")
    with pytest.raises(PolicyError, match="nobody has signed them; train it again"):
        key_fields(user, "0" * 32)
    long = Group(bytes_number(b"\xff" * 256), 4)
    user.told = told_by(made, proof=None, setting="standard", group=public_group(long))
    assert key_fields(user, "0" * 32)["bits"] == 2048


def test_a_proof_outlives_a_party_that_leaves(made: CoordinatorKeys) -> None:
    protocol = revoke_key(made, "shop")
    next(protocol)
    with pytest.raises(StopIteration) as end:
        protocol.send({"keys": msg.RevokedAtService(), "helper": msg.RevokedAtHelper()})
    assert end.value.value.proof == made.proof is not None


# --- what a key service keeps of an epoch that has begun ---


class Heard:
    """A member's side of a job, and all that it was asked and answered."""

    def __init__(self, job: Any) -> None:
        self._job, self.asked, self.answered = job, [], []

    def handle(self, message: Message) -> Message:
        reply: Message = self._job.handle(message)
        self.asked.append(encode(message))
        self.answered.append(reply)
        return reply

    def reply(self, kind: type[Any]) -> Any:
        return next(reply for reply in self.answered if isinstance(reply, kind))


def factors_by_seed(folder: Path, heard: Heard, bits: int) -> tuple[int, int] | None:
    """p and q from what lies in a key service's folder: its secrets, and what the coordinator has heard."""
    transcript = heard.reply(msg.MembersMet).transcript
    for path in folder.glob("*.secret"):
        secret = derive(key_store._TAG, bytes.fromhex(path.read_text()), "revocable keys 1")
        drawn = SecretStream.derived(secret, TAG, "modulus", 1, bits, "test", transcript)
        return safe_prime(bits // 2, drawn), safe_prime(bits // 2, drawn)
    return None


def factors_by_shares(folder: Path, heard: Heard, keys: CoordinatorKeys) -> int | None:
    """A factor from both shares: the coordinator's was sent in clear, the helper's sealed; both are in the journal."""
    group, made = keys.group, heard.reply(msg.GroupMade)
    for path in folder.glob("*.keys"):
        stored = from_msgpack(bytes.fromhex(path.read_text()), key_store._StoredKeys)
        try:
            other = bytes_number(unseal(share_key(stored.keys.peers["helper"], group), made.sealed))
        except RemoteProtocolError:
            return None
        # both shares add up to 0 modulo lambda: a multiple of the order, as a factoring needs it
        order = bytes_number(made.share) + other
        odd = order // (order & -order)
        for base in range(2, 60):
            power = gmpy2.powmod(base, odd, group.N)
            while power not in (1, group.N - 1):
                power, before = power * power % group.N, power
                if power == 1:
                    return int(gmpy2.gcd(before - 1, group.N))
    return None


def test_the_factors_cannot_be_rebuilt_once_the_epoch_has_begun(tmp_path: Path) -> None:
    with closing(KeyBench(tmp_path)) as bench:
        folder, order = tmp_path / "keys" / "state" / "keys", bench.order()
        jobs: dict[str, Any] = {name: Heard(job) for name, job in bench.opened(order).items()}
        keys, heard = prepare(jobs), jobs["keys"]
        p, q = factors_by_seed(folder, heard, ORDERED["bits"]) or (1, 1)
        assert p * q == keys.group.N  # the attack works, before the epoch has begun
        for name, job in jobs.items():
            assert isinstance(job.handle(msg.CommitEpoch(epoch=1)), msg.EpochCommitted), name
        assert factors_by_seed(folder, heard, ORDERED["bits"]) is None
        assert factors_by_shares(folder, heard, keys) is None
        assert [path.suffix for path in folder.iterdir()] == [".keys"]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_key_service_that_has_forgotten_goes_on_after_a_restart(tmp_path: Path, recorded: bool) -> None:
    """It was killed when the epoch had begun: before that was recorded, or before the answer arrived."""
    with closing(KeyBench(tmp_path)) as bench, closing(Journal(tmp_path / "journal", durable=False)) as journal:
        home, order, commit = bench.members["keys"], bench.order(), encode(msg.CommitEpoch(epoch=1))
        jobs: dict[str, Any] = {name: Heard(job) for name, job in bench.opened(order).items()}
        prepare(jobs)
        asked = [encode(bench.opening(order)), *jobs["keys"].asked]
        sessions = Sessions("keys", lambda job: MemberJob(home, job, None), journal=journal)
        said = [sessions.answer(order.job, number, data) for number, data in enumerate(asked, 1)]
        assert said[1:] == [encode(reply) for reply in jobs["keys"].answered]
        if recorded:
            sessions.answer(order.job, len(asked) + 1, commit)
        else:
            jobs["keys"].handle(decode(commit))  # the keys are written, the secret is gone
        again = Sessions("keys", lambda job: MemberJob(home, job, None), journal=journal)
        assert isinstance(decode(again.answer(order.job, len(asked) + 1, commit)), msg.EpochCommitted)
        assert again.answer(order.job, len(asked), asked[-1]) == said[-1]  # as the journal has it


def test_a_party_encrypts_its_splits_for_members_that_its_policy_names(tmp_path: Path) -> None:
    """The user names helper and key service, who together read all splits: two parties that work for it would do."""

    def told(**changes: Any) -> list[str]:
        """What the bank refuses orders of both kinds with, that name these members; empty where it takes part."""
        homes = {**bench.homes, **bench.members}
        parts = {name: Part(table="customers" if name in bench.homes else "") for name in homes}
        certificates = {name: home.identity.certificate for name, home in homes.items()}
        grown = {"holder": "shop", "plan": RevocablePlan(PLAN), "settings": "{}"}
        found = []
        for kind, more in ((KeysOrder, {"model": "0" * 32}), (TrainRevocableOrder, grown)):
            order: Any = kind(**common_fields(parts, certificates, **bench.here), **(ORDERED | changes), **more)
            try:
                bench.job("bank", order.job).handle(bench.opening(order))
            except PolicyError as error:
                found.append(str(error))
        return found

    def refused(name: str, setting: str) -> list[str]:
        words = (
            'this party does not trust {0!r} with its encrypted splits; its operator can add "{0}" to the setting {1}'
        )
        return [f"{words.format(name, setting)} in the section [policy] of its configuration"] * 2

    with closing(KeyBench(tmp_path)) as bench:
        bench.change_policy("bank", protocols=("train-revocable", *PROTOCOLS))
        assert told() == []
        assert told(helper="keys") == told(helper="keys", key_service="helper") == refused("keys", "helpers")
        assert told(key_service="helper") == refused("helper", "key_services")
        bench.change_policy("bank", helpers=())
        assert told() == refused("helper", "helpers")
