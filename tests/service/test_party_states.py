"""Every message in every state of a party's job: a reply or a typed refusal, and the job goes on to the same result.

Whole jobs are recorded once. Then each is played again to a party's new job, and between its messages everything else
is thrown at it. What is thrown gets a reply or a refusal that tells nothing of the party's data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
from dealer_bench import recorded_dealing
from hidden_bench import recorded_hidden
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from key_bench import recorded_keys
from led_bench import recorded_led
from party_bench import PRIVATE, REFUSALS, Recorded, recorded_jobs, recorded_others, recorded_rows
from share_bench import recorded_shares
from small_jobs import PARTIES

from woodlot.exceptions import LocalProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.job_disclosures import told_by
from woodlot.jobs.kinds import KINDS
from woodlot.jobs.order_seal import read_order
from woodlot.jobs.party_job import PartyJob
from woodlot.protocols.align.align_party import AlignParty
from woodlot.protocols.core.message import ArraySpec, Message, registered
from woodlot.protocols.core.stakes import stake_of
from woodlot.protocols.revocable.key_messages import REQUEST_BYTES
from woodlot.protocols.vertical.explain_messages import AskAllSides
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.runtime.codec import decode, encode

pytestmark = pytest.mark.slow

JOB_MESSAGES = (msg.OpenJob, msg.KeepAlignment, msg.KeepModel, msg.UseModel, msg.TakeAnswers, msg.ForgetJob)
TAKEN: list[type[Message]] = [*VerticalParty.handlers, *AlignParty.handlers, *JOB_MESSAGES]
"""Every kind of message that a job takes in some state."""
EVERY_STATE = bool(os.environ.get("WOODLOT_EVERY_STATE"))  # make fuzz
RECORDS = (
    recorded_jobs, recorded_others, recorded_rows, recorded_keys, recorded_led, recorded_hidden, recorded_dealing,
    recorded_shares,
)  # fmt: skip
LEFT = ("revoke", "revoke-revocable", "revoke-rows", "leave-shares")
JOBS = (
    "train", "align", "predict", "classical", "sealed", "train-linear", "predict-linear", "score", "train-revocable",
    "train-rows", "train-rows alone", "predict-rows", "evaluate-rows", "forget-rows", "encrypted-splits", "led train",
    "led predict", "led score", "explain", "drift", "hidden train", "evaluate", "evaluate-linear", "catalog", "delete",
    *LEFT,
)  # fmt: skip
HIDDEN_LEFT, FORGOTTEN, DEALT = "hidden leave", "forget", "dealt train"
KEYS = ("keys", "predict-encrypted", "shares", "predict-shares", "train-shares")
SIDES = [
    *((job, party) for job in (*JOBS, *KEYS) for party in PARTIES if party == "bank" or job not in LEFT),
    *((job, member) for job in (*KEYS, "leave-shares") for member in ("helper", "keys")),
    (DEALT, "helper"),
    (HIDDEN_LEFT, "shop"),
    (FORGOTTEN, "shop"),  # the bank leads, and runs no job again whose receipt it has kept
]
"""Every job with every member that takes part in it: who leaves does not."""


def blank(kind: type[Message]) -> Message | None:
    """A message of some kind, well-formed and as empty as can be, with nothing or one thing in it; None if none is."""
    for least in (0, 1):
        with suppress(LocalProtocolError, ValueError):
            return _filled(kind, least)
    return None


def _filled(kind: type[Any], least: int) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: _least(hints[name], least) for name in kind.__struct_fields__})


def _least(hint: Any, least: int) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        spec = next((note for note in hint.__metadata__ if isinstance(note, ArraySpec)), None)
        return _least(arguments[0], least) if spec is None else np.empty((0,) * spec.ndim, spec.dtypes[0])
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType):
        return None if NoneType in arguments else _least(arguments[0], least)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _filled(hint, least)
    if least:
        if origin is tuple:
            return tuple(_least(one, least) for one in arguments if one is not Ellipsis)
        if hint in (int, str, bytes):
            return {int: 1, str: "a", bytes: bytes(REQUEST_BYTES)}[hint]
    return (origin or hint)()


def any_message(kind: type[Message]) -> st.SearchStrategy[Message | None]:
    """Messages of some kind with fields of all sorts; None where they do not go together."""
    hints = get_type_hints(kind, include_extras=True)

    def build(**fields: Any) -> Message | None:
        try:
            return kind(**fields)
        except LocalProtocolError:
            return None

    return st.builds(build, **{name: _values(hints[name]) for name in kind.__struct_fields__})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.sampled_from([0, 1, 2, 3, 20, 57, -1, 2**40, -(2**63)]),
        float: st.sampled_from([0.0, 1.0, -1.0, 1e300, float("nan"), float("inf")]),
        bool: st.booleans(),
        str: st.sampled_from(["", "bank", "shop", "post", "decisions", "0" * 32]),
        bytes: st.binary(max_size=80),
        NoneType: st.none(),
        msgspec.UnsetType: st.just(msgspec.UNSET),
    }
    if hint in plain:
        return plain[hint]
    if origin is Annotated:
        spec = next((note for note in hint.__metadata__ if isinstance(note, ArraySpec)), None)
        return _values(arguments[0]) if spec is None else _arrays(spec)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*map(_values, arguments))
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(_values(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(_values, arguments))
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    hints = get_type_hints(hint, include_extras=True)

    def build(**fields: Any) -> Any:
        try:
            return hint(**fields)
        except ValueError:  # then neither does the message go together
            return None

    return st.builds(build, **{name: _values(hints[name]) for name in hint.__struct_fields__})


def _arrays(spec: ArraySpec) -> st.SearchStrategy[Any]:
    def build(dtype: str, lengths: list[int], number: int) -> Any:
        values = np.random.default_rng(number).integers(0, 4, lengths)
        return np.ascontiguousarray(values.astype(dtype) if number % 3 else np.full(lengths, 0xFF).astype(dtype))

    lengths = st.lists(st.sampled_from([0, 1, 2, 4, 8, 55]), min_size=spec.ndim, max_size=spec.ndim)
    return st.builds(build, st.sampled_from(spec.dtypes), lengths, st.integers(0, 30))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Recorded]]:
    """What was recorded, by the kind of job."""
    with ExitStack() as stack:
        made = [stack.enter_context(record(tmp_path_factory.mktemp("jobs"))) for record in RECORDS]
        yield {kind: one for one in made for kind in one.plays}


class Player:
    """Plays a recorded job to a new job of a party."""

    def __init__(self, recorded: Mapping[str, Recorded], kind: str, party: str) -> None:
        self._bench = recorded[kind].bench
        self._party = party
        self._play = recorded[kind].plays[kind]
        self._job = self._new()
        self.asked = self._play.asked[party]

    def _new(self) -> PartyJob:
        return self._bench.job(self._party, self._play.job)

    def throw(self, stray: Message, done: int) -> None:
        """Send what is not due; the job must be, or must be built again, as it was after ``done`` messages."""
        words = ""
        try:
            encode(self._job.handle(decode(encode(stray))))
        except REFUSALS as refusal:
            words = str(refusal)
        assert PRIVATE.search(words) is None, words
        if not words:  # it was due, too: the job went another way
            self._job = self._new()
            for number in range(done):
                self.go_on(number)

    def go_on(self, number: int) -> None:
        """Send what is due; the reply is as it was."""
        answer = encode(self._job.handle(decode(self.asked[number])))
        assert answer == self._play.answered[self._party][number]


def test_every_order_is_recorded(recorded: dict[str, Recorded]) -> None:
    assert set(recorded) == {*JOBS, *KEYS, HIDDEN_LEFT, FORGOTTEN, DEALT}
    orders = set()
    for one in recorded.values():
        for played in one.plays.values():
            stored = one.bench.coordinator.job(played.job)
            assert stored is not None
            orders.add(type(read_order(stored.order)))
    assert orders == {kind.order for kind in KINDS}


def test_owners_are_shown_every_message_that_a_job_sends(recorded: dict[str, Recorded]) -> None:
    """Whoever approves an order sees what its job may tell: no recorded job has sent anything else that tells data."""
    missing = {}
    for name, one in recorded.items():
        said = one.plays[name]
        requests = [decode(data) for asked in said.asked.values() for data in asked]
        replies = [decode(data) for answered in said.answered.values() for data in answered]
        order = next(read_order(message.order) for message in requests if isinstance(message, msg.OpenJob))
        shown = {line.message for line in told_by(order)} | {"OpenJob"}
        sent = {type(message).__name__ for message in (*requests, *replies)}
        missing[name] = {kind for kind in sent if stake_of(kind) != "nothing"} - shown
    assert not any(missing.values()), missing


@pytest.mark.parametrize(("kind", "party"), SIDES)
def test_every_message_in_every_state(recorded: dict[str, Recorded], kind: str, party: str) -> None:
    own = [kind for kind in registered().values() if kind.__module__.startswith("woodlot.")]  # not those of other tests
    said = {encode(message) for one in recorded.values() for message in one.said}
    sides = AskAllSides(first_row=0, n_rows=1)  # which is not made of zeros or ones alone
    strays = [*map(decode, sorted(said)), *filter(None, map(blank, own)), sides]
    assert set(TAKEN) <= set(map(type, strays))
    player = Player(recorded, kind, party)
    assert len(player.asked) > 1
    for number in range(len(player.asked)):
        for stray in strays:
            if encode(stray) != player.asked[number]:
                player.throw(stray, number)
        player.go_on(number)


@settings(
    max_examples=100 if EVERY_STATE else 10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.parametrize("kind", [*JOBS, *KEYS, HIDDEN_LEFT, FORGOTTEN, DEALT])
def test_messages_with_anything_in_them(recorded: dict[str, Recorded], kind: str, data: st.DataObject) -> None:
    player = Player(recorded, kind, data.draw(st.sampled_from([party for job, party in SIDES if job == kind])))
    kinds = sorted({*TAKEN, *(type(decode(asked)) for asked in player.asked)}, key=lambda kind: kind.__name__)
    at = data.draw(st.integers(0, len(player.asked) - 1))
    strays = data.draw(st.lists(st.sampled_from(kinds).flatmap(any_message), min_size=1, max_size=6))
    for number in range(len(player.asked)):
        for stray in strays if number == at else ():
            if stray is not None:
                player.throw(stray, number)
        player.go_on(number)
