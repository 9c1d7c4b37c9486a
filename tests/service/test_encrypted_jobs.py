"""Trainings with encrypted labels as jobs between services: orders, policies, and answers that can be given again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from party_bench import Bench, Play, play
from small_jobs import PARTIES, PLAN

from woodlot.crypto.paillier import PrivateKey, to_bytes
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.jobs.order_seal import read_order, sign_order
from woodlot.jobs.orders import TrainOrder
from woodlot.protocols.vertical.blind_messages import TakeLabels
from woodlot.protocols.vertical.blind_proof import LabelVoucher
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.protocols.vertical.start import share_message
from woodlot.runtime.codec import decode, encode

SHARED = replace(PLAN, max_bins=32)
ENCRYPTED = replace(SHARED, labels="encrypted", key_bits=2048)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("encrypted"))
    yield made
    made.close()


def order(bench: Bench, plan: object = ENCRYPTED) -> TrainOrder:
    return TrainOrder(**bench.fields(), holder="bank", plan=plan, settings="{}")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def recorded(bench: Bench) -> Play:
    return play(bench, order(bench))


def test_the_forest_is_that_of_shared_labels(bench: Bench, recorded: Play) -> None:
    shared = play(bench, order(bench, SHARED))
    assert forest_id_of(recorded.outcome.forest) == forest_id_of(shared.outcome.forest)
    assert recorded.outcome.digests == shared.outcome.digests  # every party's part as well
    assert recorded.outcome.oob.score == shared.outcome.oob.score


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_that_is_restarted_gives_the_same_bytes(bench: Bench, recorded: Play, party: str) -> None:
    """Key, noise and shuffles follow from the party's secret and the job: what was said before is said again."""
    job = bench.job(party, recorded.job)
    for asked, answered in zip(recorded.asked[party], recorded.answered[party], strict=True):
        assert encode(job.handle(decode(asked))) == answered


def test_another_job_has_another_key(bench: Bench, recorded: Play) -> None:
    again = play(bench, order(bench))
    taken = [
        next(m for m in map(decode, p.asked["shop"]) if type(m).__name__ == "TakeLabels") for p in (recorded, again)
    ]
    assert bytes(taken[0].modulus) != bytes(taken[1].modulus)  # type: ignore[attr-defined]
    assert forest_id_of(again.outcome.forest) == forest_id_of(recorded.outcome.forest)


def test_a_coordinator_cannot_bring_a_key_of_its_own(bench: Bench, recorded: Play) -> None:
    """It would open what the party seals for the label holder, whom the user's order names."""
    job = bench.job("shop", recorded.job)
    for asked, answered in zip(recorded.asked["shop"], recorded.answered["shop"], strict=True):
        message = decode(asked)
        if isinstance(message, TakeLabels):
            own = PrivateKey.generate(2048, SecretStream.fresh())
            count = len(message.ciphertexts) // own.public.ciphertext_bytes
            changed = {
                "modulus": np.frombuffer(to_bytes(own.public.n), np.uint8),
                "noise": np.frombuffer(to_bytes(own.public.base), np.uint8),
                "ciphertexts": own.public.pack(own.encrypt([1 << row for row in range(count)], SecretStream.fresh())),
            }
            # as it is, and signed by another member of the federation than the label holder
            false = msgspec.structs.replace(message, **changed)
            shop = LabelVoucher("shop", "bank", recorded.job, signer=bench.homes["shop"].signer(recorded.job))
            fields = {name: getattr(false, name) for name in false.__struct_fields__}
            for one in (false, msgspec.structs.replace(false, **shop.vouch(fields))):
                with pytest.raises(RemoteProtocolError, match=r"has vouched for|passed on as from 'bank'"):
                    job.handle(decode(encode(one)))
        assert encode(job.handle(message)) == answered
    assert any(isinstance(decode(asked), TakeLabels) for asked in recorded.asked["shop"])


def test_a_policy_of_encrypted_labels(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        bench.change_policy("bank", labels="encrypted", min_samples_leaf=2)
        bench.change_policy("shop", labels="encrypted")  # it has no labels: nothing is asked of it
        with pytest.raises(PolicyError, match=r"labels = \"encrypted\".*train with labels='encrypted'"):
            play(bench, order(bench, SHARED))
        with pytest.raises(PolicyError, match="min_samples_leaf=2 or more"):
            play(bench, order(bench))
        assert play(bench, order(bench, replace(ENCRYPTED, min_samples_leaf=2))).outcome.forest.n_rows > 0
    finally:
        bench.close()


def test_a_coordinator_cannot_have_labels_that_were_ordered_encrypted(bench: Bench, recorded: Play) -> None:
    job = bench.job("bank", recorded.job)
    for asked in recorded.asked["bank"]:
        if type(decode(asked)).__name__ == "EncryptLabels":
            break
        job.handle(decode(asked))
    with pytest.raises(RemoteProtocolError, match="Unexpected ShareLabels"):
        job.handle(share_message(ENCRYPTED))


@pytest.mark.parametrize(
    ("name", "old", "new"), [("class_weight", b"null", b'"balanced"'), ("max_bins", b"32", b"null")]
)
def test_orders_that_cannot_be_are_refused_when_they_are_read(bench: Bench, name: str, old: bytes, new: bytes) -> None:
    data, _ = sign_order(order(bench), bench.users["alice"])
    told = b'"%s":' % name.encode()
    assert told + old in data
    with pytest.raises(RemoteProtocolError, match=f"this is no order.*{name}"):
        read_order(data.replace(told + old, told + new))
