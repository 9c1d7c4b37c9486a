"""Jobs with shares at helper and key service, without a network: what a restart and a coordinator cannot set back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from key_bench import Told
from party_bench import Play, play, train_order
from share_bench import ShareBench, shared

from woodlot.crypto._libraries import gmp
from woodlot.exceptions import DataError, EpochError, MissingExtraError, PolicyError, RemoteProtocolError
from woodlot.jobs.job_messages import OpenJob
from woodlot.jobs.key_store import KeyStore
from woodlot.jobs.member_job import MemberJob
from woodlot.jobs.orders import Part
from woodlot.jobs.revocable.key_jobs import check_keys, check_prediction
from woodlot.jobs.revocable.revocable_orders import KeysOrder
from woodlot.jobs.revocable.stored_epochs import told_keys
from woodlot.protocols.core.message import Message, Refusal, Unanswered
from woodlot.protocols.revocable import share_messages as msg
from woodlot.protocols.revocable.share_keeping import HeldShares
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.journal import Journal
from woodlot.runtime.sessions import Sessions
from woodlot.service.encrypted import checked_keys


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ShareBench]:
    with closing(ShareBench(tmp_path)) as made:
        yield made


@pytest.fixture
def model(bench: ShareBench) -> str:
    return shared(bench)[0].job


class Holder:
    """A helper or a key service with its journal, as its process has them."""

    def __init__(self, bench: ShareBench, name: str, journal: Journal) -> None:
        self._bench, self._name, self._journal = bench, name, journal
        self.restart()

    def restart(self) -> None:
        """As after kill -9: only what is on disk is left."""
        home = self._bench.members[self._name]
        self.sessions = Sessions(self._name, lambda job: MemberJob(home, job, None), journal=self._journal)

    def ask(self, job: str, number: int, request: Message | bytes) -> Message:
        data = request if isinstance(request, bytes) else encode(request)
        return decode(self.sessions.answer(job, number, data))


@pytest.fixture
def holders(bench: ShareBench, tmp_path: Path) -> Iterator[dict[str, Holder]]:
    journals = {name: Journal(tmp_path / f"{name}.sqlite", durable=False) for name in bench.members}
    yield {name: Holder(bench, name, journal) for name, journal in journals.items()}
    for journal in journals.values():
        journal.close()


def refusal(reply: Message) -> str:
    assert isinstance(reply, Refusal), reply
    return reply.reason


def question(played: Play) -> msg.CompareAtHelper:
    """The first comparisons that the helper was asked for."""
    return next(m for m in map(decode, played.asked["helper"]) if isinstance(m, msg.CompareAtHelper))


def test_a_restart_sets_no_count_back(bench: ShareBench, model: str, holders: dict[str, Holder]) -> None:
    played, helper = play(bench, bench.request(model)), holders["helper"]
    opening, take = (data for data in played.asked["helper"] if isinstance(decode(data), OpenJob | msg.TakeValues))
    assert not isinstance(helper.ask(played.job, 1, opening), Refusal)
    assert isinstance(helper.ask(played.job, 2, take), msg.ValuesTaken)
    asked, number, answers = question(played), 3, []
    one = {name: getattr(asked, name)[:1] for name in ("owner", "place", "row", "column")}
    while True:  # the same comparison over and over, with a kill -9 after each
        reply = helper.ask(played.job, number, msgspec.structs.replace(asked, **one))
        helper.restart()
        number += 1
        if isinstance(reply, Refusal):
            break
        assert isinstance(reply, msg.HelperCompared)
        answers.append(encode(reply))
    assert "comparisons of row 0 with splits of" in refusal(reply)
    most = int(refusal(reply).split("a row has at most ")[1].split()[0])
    assert len(answers) == most
    assert len(set(answers)) == 1  # the same question has the same answer: to ask again tells nothing more
    # nor is the request taken again, or another message under a number that was answered
    assert "has been taken; it is answered once" in refusal(helper.ask(played.job, number, take))
    other = helper.ask(played.job, 3, msgspec.structs.replace(asked, **one | {"row": one["row"] + 1}))
    assert isinstance(other, Unanswered)
    assert "is not the one that was answered under this number" in other.reason
    # once the job has ended, nothing of it is answered, also after a restart
    helper.sessions.end(played.job)
    helper.restart()
    for number, data in enumerate((opening, take), 1):
        again = helper.ask(played.job, number, data)
        assert isinstance(again, Unanswered)
        assert "the job has ended here" in again.reason


def test_a_request_has_one_order_and_an_order_one_request(bench: ShareBench, model: str) -> None:
    first, second = play(bench, bench.request(model)), play(bench, bench.request(model))
    job = bench.job("helper", second.job)
    job.handle(decode(second.asked["helper"][0]))
    for data in first.asked["helper"][1:]:
        with pytest.raises(RemoteProtocolError, match="the request is not the one that was ordered"):
            job.handle(decode(data))
    with pytest.raises(RemoteProtocolError, match="the order is of another job"):
        bench.job("helper", second.job).handle(decode(first.asked["helper"][0]))


def test_each_holder_is_told_its_part_alone(bench: ShareBench, model: str) -> None:
    order = bench.request(model)
    told = {}
    for name in bench.members:
        job = bench.job(name, order.job)
        job.handle(bench.opening(order))
        told[name] = job._told()
    assert told["helper"].owners == ("bank", "bank", "shop", "shop")
    assert told["keys"].owners == ()
    assert told["helper"].key != told["keys"].key
    values = np.frombuffer(order.values, np.uint8)
    assert told["helper"].key not in values.tobytes() + b"".join(order.sealed.values())


def test_messages_of_the_other_scheme_are_refused(bench: ShareBench, model: str) -> None:
    """Encrypted splits registered beside shares would be compared by nobody; who has shares keeps to them."""
    fields = bench.fields_of_all(bank=Part(), shop=Part())
    paper = KeysOrder(**fields, model=model, helper="helper", key_service="keys", bits=512, setting="test")
    with pytest.raises(DataError, match="this model has scheme='shares' and the order says 'paper'"):
        check_keys(bench.coordinator, paper)
    for name in paper.parties:  # a coordinator that passes it on all the same
        with pytest.raises(PolicyError, match="keeps the keys of the model under scheme='shares'"):
            bench.job(name, paper.job).handle(bench.opening(paper))
    order = bench.request(model)
    unset = msgspec.structs.replace(order, scheme=msgspec.UNSET)
    with pytest.raises(DataError, match="the order says 'paper'"):
        check_prediction(bench.coordinator, unset)
    with pytest.raises(PolicyError, match="scheme='shares'"):
        bench.job("helper", unset.job).handle(bench.opening(unset))


def test_orders_with_shares_that_cannot_be(bench: ShareBench, model: str) -> None:
    order = bench.shares_order(model)
    for changed in ({"bits": 512}, {"setting": "test"}):
        with pytest.raises(RemoteProtocolError, match="says nothing of a modulus"):
            msgspec.structs.replace(order, **changed).check()
    alone = {"helper": None, "key_service": None, "parties": ("bank",), "sealed": {"bank": b""}}
    with pytest.raises(RemoteProtocolError, match="the order names none"):
        msgspec.structs.replace(bench.training(), **alone).check()
    request = bench.request(model)
    for changed, error, words in (
        ({"values": request.values[:-8]}, DataError, "not of 1 rows and 4 columns"),
        ({"proof": b"1"}, DataError, "not of 1 rows and 4 columns"),
        ({"epoch": 2}, EpochError, "the request is of epoch 2"),
        ({"splits": bytes(32)}, EpochError, "signed for other splits"),
        ({"helper": "keys", "key_service": "helper"}, DataError, "helper and key service of this model are"),
    ):
        with pytest.raises(error, match=words):
            check_prediction(bench.coordinator, msgspec.structs.replace(request, **changed))  # type: ignore[arg-type]


def test_a_user_who_names_members_and_scheme_is_told_of_others(bench: ShareBench, model: str) -> None:
    user = Told(bench, told_keys(bench.coordinator, model))
    assert checked_keys(user, model, helper="helper", key_service="keys", scheme="shares").helper == "helper"
    with pytest.raises(PolicyError, match="the helper 'helper', not 'bank'"):
        checked_keys(user, model, helper="bank")
    with pytest.raises(PolicyError, match="hidden by scheme='shares', not 'paper'"):
        checked_keys(user, model, scheme="paper")


def shares_at(bench: ShareBench, member: str, keyring: str) -> dict[str, HeldShares]:
    """What a holder has of the forest that is registered with it."""
    store = bench.members[member].store
    keys, _ = store.load(keyring, "another job")
    assert keys is not None
    return store.shares(keyring).load(keys.registered)


@pytest.mark.parametrize("member", ["helper", "keys"])
@pytest.mark.slow
def test_a_job_that_another_has_followed_erases_nothing(bench: ShareBench, model: str, member: str) -> None:
    """A coordinator that keeps the first job open, and has its epoch committed once more."""
    made = play(bench, bench.shares_order(model))
    job = bench.job(member, made.job)
    for asked in made.asked[member]:
        job.handle(decode(asked))
    play(bench, bench.shares_order(model))  # the next epoch
    held = shares_at(bench, member, model)
    assert set(held) == {"bank", "shop"}
    for asked in made.asked[member][1:]:
        with pytest.raises((EpochError, RemoteProtocolError)):
            job.handle(decode(asked))
    assert shares_at(bench, member, model) == held


@pytest.mark.slow
def test_an_order_about_one_model_does_not_touch_the_keys_of_another(bench: ShareBench, model: str) -> None:
    """Its new epoch would end the keys of the other model, and erase the shares of its splits."""
    other = play(bench, train_order(bench)).job
    order = msgspec.structs.replace(bench.shares_order(other), keys=model)
    with pytest.raises(DataError, match="names the keys of another model"):
        check_keys(bench.coordinator, order)
    for member in ("helper", "keys"):  # a coordinator that passes it on all the same
        with pytest.raises(PolicyError, match="names the keys of another model than its own"):
            bench.job(member, order.job).handle(bench.opening(order))


def test_without_the_extra_shares_work_and_other_orders_name_it(
    bench: ShareBench, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    gmp.cache_clear()
    try:
        assert play(bench, bench.request(model)).outcome.shape == (1, 2)
        other = bench.order(model="1" * 32)
        for member in ("helper", "keys"):
            with pytest.raises(MissingExtraError, match=r"woodlot\[crypto\]"):
                bench.job(member, other.job).handle(bench.opening(other))
    finally:
        gmp.cache_clear()


# --- what is kept ---


def test_shares_are_files_that_only_their_owner_reads_and_that_go_as_a_whole(tmp_path: Path) -> None:
    def held(data: bytes) -> HeldShares:
        return HeldShares(forest="f", total=1, count=1, commit=bytes(32), feature=b"", data=data)

    book = KeyStore(tmp_path / "keys").shares("m")
    assert book.load(b"1") == {}
    book.keep_only(b"1")  # where there are none
    book.keep(b"1", {"bank": held(b"of the bank"), "shop": held(b"of the shop")})
    book.keep(b"2", {"bank": held(b"of the bank, later")})
    other = KeyStore(tmp_path / "keys").shares("another")
    other.keep(b"1", {"bank": held(b"of another model")})
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()} == {0o600}
    book.strike_out("shop")
    assert book.load(b"1") == {"bank": held(b"of the bank")}
    book.keep_only(b"2")
    assert book.load(b"1") == {}
    assert book.load(b"2") == {"bank": held(b"of the bank, later")}
    assert other.load(b"1") == {"bank": held(b"of another model")}
    (damaged,) = (tmp_path / "keys").glob("m-*.shares")
    damaged.write_text("00")
    with pytest.raises(DataError, match="cannot be read; order new keys"):
        book.load(b"2")
    KeyStore(tmp_path / "keys").erase("m")
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["another-31.shares"]
