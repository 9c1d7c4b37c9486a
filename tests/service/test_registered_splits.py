"""What the helper compares is what was registered and signed: in jobs, with the members' own code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from key_bench import ROWS, KeyBench, Told, recorded_keys
from party_bench import Play, Recorded

from woodlot.exceptions import EpochError, PolicyError, RemoteProtocolError
from woodlot.jobs.order_seal import open_part, read_order
from woodlot.jobs.revocable.stored_epochs import told_keys
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.split_list import SplitList, hash_lines
from woodlot.runtime.codec import decode, encode
from woodlot.service.encrypted import encrypted_order


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded_keys(tmp_path_factory.mktemp("registered")) as made:
        yield made


def until(recorded: Recorded, job: Play, kind: type[Message], member: str = "helper") -> tuple[Any, Any]:
    """A member's side of a recorded job, up to a message, and the message."""
    made = recorded.bench.job(member, job.job)
    for asked, answered in zip(job.asked[member], job.answered[member], strict=True):
        message = decode(asked)
        if isinstance(message, kind):
            return made, message
        assert encode(made.handle(message)) == answered
    raise AssertionError(f"{kind.__name__} was not asked")


def test_the_helper_has_the_owners_of_columns_from_the_users_order(recorded: Recorded) -> None:
    """They are sealed to it: the coordinator cannot say that a column is another party's."""
    job = recorded.plays["predict-encrypted"]
    order = read_order(decode(job.asked["helper"][0]).order)  # type: ignore[attr-defined]
    assert isinstance(recorded.bench.members, dict)  # type: ignore[attr-defined]
    part = open_part(order, recorded.bench.members["helper"].identity)  # type: ignore[attr-defined]
    assert part.columns == ("bank", "bank", "shop", "shop")
    helper, asked = until(recorded, job, msg.OpenDifferences)
    assert isinstance(asked, msg.OpenDifferences)
    for columns in ((asked.column + 2) % 4, 3 - asked.column):
        with pytest.raises(PolicyError, match=r"column \d of the request is not one of '(bank|shop)'"):
            helper.handle(msgspec.structs.replace(asked, column=columns.astype(np.uint32)))
    helper.handle(asked)


def test_splits_are_registered_where_keys_are_ordered_and_nowhere_else(recorded: Recorded) -> None:
    made, registering = until(recorded, recorded.plays["keys"], msg.RegisterSplits)
    assert isinstance(made.handle(registering), msg.SplitsRegistered)
    predicting, _ = until(recorded, recorded.plays["predict-encrypted"], msg.OpenDifferences)
    with pytest.raises(RemoteProtocolError, match="the order does not ask for RegisterSplits"):
        predicting.handle(registering)


def test_a_request_names_the_splits_that_its_user_has_signed(recorded: Recorded) -> None:
    helper, taking = until(recorded, recorded.plays["predict-encrypted"], msg.TakeRequest)
    other = msgspec.structs.replace(taking.ticket, splits=bytes(32))
    with pytest.raises(RemoteProtocolError, match="not the one that was ordered"):
        helper.handle(msgspec.structs.replace(taking, ticket=other))
    helper.handle(taking)


def test_a_provider_encrypts_splits_of_the_forest_in_use_only(recorded: Recorded) -> None:
    bank, asked = until(recorded, recorded.plays["keys"], msg.EncryptSplits, "bank")
    for fields, why in (
        ({"forest": "0" * 64}, "another forest than the one in use"),
        ({"total": asked.total + 1}, "another number of splits"),
        ({"node": asked.node[1:]}, "each once"),
        ({"kept_feature": asked.node[:1]}, "one column for each split that stays"),
    ):
        with pytest.raises(RemoteProtocolError, match=why):
            bank.handle(msgspec.structs.replace(asked, **fields))
    bank.handle(asked)


def test_splits_are_registered_of_the_ordered_model_and_not_replaced(recorded: Recorded) -> None:
    """While the job is open, also after the epoch has begun, a coordinator and a party could bring other ones."""
    job = recorded.plays["keys"]
    helper, registering = until(recorded, job, msg.RegisterSplits)
    with pytest.raises(PolicyError, match="a forest of another model than was ordered"):
        helper.handle(msgspec.structs.replace(registering, forest=f"{'1' * 32} forest"))
    helper.handle(registering)
    listed = read_list_after(registering)
    again = msgspec.structs.replace(
        registering, forest=f"{registering.forest} lie", **listed.fields(), stays=np.zeros(len(listed.owner), np.uint8)
    )
    with pytest.raises(PolicyError, match="none can be added or replaced"):
        helper.handle(again)
    commit = decode(job.asked["helper"][-1])
    assert isinstance(commit, msg.CommitEpoch)
    helper.handle(commit)
    with pytest.raises(PolicyError, match="none can be added or replaced"):
        helper.handle(again)


def read_list_after(message: msg.RegisterSplits) -> SplitList:
    names = [message.names[number] for number in message.fresh_owner.tolist()]
    return SplitList.of(names, message.fresh_feature, hash_lines(message.splits))


def test_a_request_is_for_the_model_whose_splits_are_registered(recorded: Recorded) -> None:
    """The coordinator tells a user the keys of another model than the user has named."""
    bench = recorded.bench
    assert isinstance(bench, KeyBench)
    job = recorded.plays["predict-encrypted"]
    model = read_order(decode(job.asked["helper"][0]).order).model  # type: ignore[attr-defined]
    user = Told(bench, told_keys(bench.coordinator, model))
    user.model = "1" * 32
    order = encrypted_order(user, user.model, ROWS, setting="test", helper="helper", key_service="keys")
    helper = bench.job("helper", order.job)
    helper.handle(bench.opening(order))
    _, taking = until(recorded, job, msg.TakeRequest)
    ticket = msgspec.structs.replace(
        taking.ticket, request=bytes.fromhex(order.job), digest=hashlib.sha256(order.values).digest()
    )
    values = np.frombuffer(order.values, np.uint8).reshape(taking.values.shape)
    with pytest.raises(EpochError, match="for another model than the one whose splits are registered"):
        helper.handle(msgspec.structs.replace(taking, ticket=ticket, values=values, proof=order.proof))


def test_a_party_without_a_key_is_not_named_as_an_owner(recorded: Recorded) -> None:
    bench = recorded.bench
    assert isinstance(bench, KeyBench)
    model = read_order(decode(recorded.plays["predict-encrypted"].asked["helper"][0]).order).model  # type: ignore[attr-defined]
    told = told_keys(bench.coordinator, model)
    for stranger in ("tax", "helper", "keys"):
        user = Told(bench, msgspec.structs.replace(told, parties=(*told.parties, stranger)))
        with pytest.raises(PolicyError, match=f"those of '{stranger}', and the key service has made none"):
            encrypted_order(user, model, ROWS, setting="test", helper="helper", key_service="keys")
