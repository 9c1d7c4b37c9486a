"""Every message in every state of a party: taken when due, refused otherwise, and a refusal changes nothing.

A training is recorded once. Then it is played again to a fresh party, and before each message everything that is not
due, and everything that is malformed, is thrown at the party. Its replies to the due messages must be those of the
recording, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from woodlot.data.columns import NumericColumn, category_column
from woodlot.data.tables import Table
from woodlot.exceptions import DataError, LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Message, Refusal, registered
from woodlot.protocols.core.target import Target
from woodlot.protocols.sums.sum_messages import OpenSums, StartSums
from woodlot.protocols.vertical import forest_messages as msg
from woodlot.protocols.vertical.explain_messages import AskAllSides, AskExplained, AskRowValues
from woodlot.protocols.vertical.out_of_bag import score_out_of_bag
from woodlot.protocols.vertical.party import TrainingState, VerticalParty
from woodlot.protocols.vertical.predict import predict_in_one_round, predict_node_by_node
from woodlot.protocols.vertical.regrowing import RegrowingParty
from woodlot.protocols.vertical.sealed_messages import AskSealed
from woodlot.protocols.vertical.start import check_start
from woodlot.protocols.vertical.train import train
from woodlot.runtime.codec import decode, encode

N = 90
PLAN = ForestPlan(
    task="classes",
    n_estimators=5,
    entropy=False,
    max_depth=None,
    min_samples_split=2,
    min_samples_leaf=2,
    min_weight_fraction_leaf=0.0,
    max_features="sqrt",
    max_leaf_nodes=None,
    min_impurity_decrease=0.0,
    bootstrap=True,
    max_samples=None,
    class_weight=None,
    feature_sampling="node",
    max_bins=None,
    out_of_bag="soft",
    seed=4,
    memory_limit=8 * N * 3,  # two batches: three trees, then two
)


def plan(task: str, **changes: Any) -> ForestPlan:
    return ForestPlan(**{**vars(PLAN), "task": task, **changes})


def tables() -> dict[str, Table]:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, N)).astype(np.float32)
    values[1, rng.random(N) < 0.2] = np.nan
    letters = category_column(rng.integers(-1, 5, N), list("abcde"))
    return {
        "holder": Table(("a", "b"), (NumericColumn(values[0]), NumericColumn(values[1])), N),
        "other": Table(("c", "d", "e"), (NumericColumn(values[2]), letters, NumericColumn(values[3])), N),
        "bare": Table((), (), N),
    }


def target(task: str) -> Target:
    signal = tables()["holder"].columns[0].values + np.random.default_rng(1).normal(size=N)  # type: ignore[union-attr]
    weights = np.random.default_rng(2).integers(1, 4, N).astype(float)
    if task == "classes":
        return Target.of_classes(np.array(["x", "y", "z"])[np.digitize(signal, [-0.5, 0.5])], weights)
    return Target.of_values(signal.astype(np.float64), weights)


def make_party(name: str, task: str, **options: Any) -> VerticalParty:
    options = {"job_secret": bytes(32), **options}
    return VerticalParty(name, tables()[name], target=target(task) if name == "holder" else None, **options)


@dataclass
class Play:
    """What every party was asked, and what it answered, in order."""

    asked: dict[str, list[Message]] = field(default_factory=dict)
    answered: dict[str, list[bytes]] = field(default_factory=dict)
    forest: Any = None


def play(protocol: Iterator[Any], parties: dict[str, VerticalParty], record: Play) -> Any:
    """Run a protocol by hand, through the codec."""
    replies: dict[str, Message] | None = None
    while True:
        try:
            step = next(protocol) if replies is None else protocol.send(replies)  # type: ignore[attr-defined]
        except StopIteration as end:
            return end.value
        replies = {}
        for name, message in step.requests.items():
            answer = encode(parties[name].handle(decode(encode(message))))
            record.asked.setdefault(name, []).append(decode(encode(message)))
            record.answered.setdefault(name, []).append(answer)
            replies[name] = decode(answer)


def recording(task: str, **changes: Any) -> Play:
    """A training, out-of-bag scores, both ways of predicting, and the splits revealed."""
    parties = {name: make_party(name, task, shares_model=True) for name in tables()}
    record = Play()
    forest = record.forest = play(train(plan(task, **changes), tuple(parties), "holder"), parties, record)
    if plan(task, **changes).bootstrap:
        play(score_out_of_bag(forest, "holder", "soft", 1), parties, record)
    for form in ("decisions", "leaves", "ranks"):
        play(predict_in_one_round(forest, tuple(parties), N, form, "soft", 1), parties, record)  # type: ignore[arg-type]
    play(predict_node_by_node(forest, tuple(parties), N, "soft"), parties, record)
    for name in ("holder", "other"):
        request = msg.RevealSplits()
        record.asked[name].append(request)
        record.answered[name].append(encode(parties[name].handle(request)))
    return record


RECORDINGS: dict[str, Play] = {}


def recorded(task: str) -> Play:
    if task not in RECORDINGS:
        RECORDINGS[task] = recording(task)
    return RECORDINGS[task]


def with_fields(message: Message, **changes: Any) -> Message:
    return type(message)(**{name: changes.get(name, getattr(message, name)) for name in message.__struct_fields__})


def longer(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, array[-1:] if len(array) else np.zeros(1, array.dtype)])


def other_lengths(array: np.ndarray) -> list[np.ndarray]:
    return [longer(array)] + ([array[:-1]] if len(array) else [])


def malformed(message: Message) -> Iterator[tuple[str, Message]]:
    """Versions of a due message that no coordinator following the protocol would send."""
    match message:
        case msg.OpenTraining():
            for bins in (-1, 0, 1, 257, 2**40):
                yield f"max_bins {bins}", with_fields(message, max_bins=bins)
        case msg.ShareLabels():
            other = "targets" if message.task == "classes" else "classes"
            yield "the other task", with_fields(message, task=other)
        case msg.StartForest():
            yield from malformed_start(message)
        case msg.PlantTrees():
            for n in (0, -1, message.n_trees + 1):
                yield f"{n} trees", with_fields(message, n_trees=n)
            for array in other_lengths(message.candidates):
                yield "candidates", with_fields(message, candidates=array)
            yield "first tree", with_fields(message, first_tree=-1)
        case msg.ApplySplits():
            for array in other_lengths(message.won):
                yield "won", with_fields(message, won=array)
        case msg.GrowLevel():
            yield from malformed_level(message)
            for array in other_lengths(message.candidates):
                yield "candidates", with_fields(message, candidates=array)
        case msg.FinishTrees():
            yield from malformed_level(message)
            for node in (10**6, 2**32 - 1):
                pruned = np.append(message.pruned, np.uint32(node))
                yield f"prunes {node}", with_fields(message, pruned=pruned.astype(np.uint32))
        case msg.OutOfBagAnswers():
            said = message.classes if message.targets is None else message.targets
            name, other = ("classes", "targets") if message.targets is None else ("targets", "classes")
            for array in other_lengths(said):
                yield name, with_fields(message, **{name: array})
            for array in other_lengths(message.since):
                yield "since", with_fields(message, since=array)
            for array in other_lengths(message.sizes):
                yield "sizes", with_fields(message, sizes=array)
            yield "nothing", with_fields(message, **{name: None})
            floats = said.astype(np.float64)
            yield "the other kind", with_fields(message, **{other: floats if other == "targets" else np.uint8(floats)})
            yield "counts later", with_fields(message, since=np.full_like(message.since, len(message.sizes) + 1))
            if name == "targets":
                yield "not a number", with_fields(message, targets=np.full_like(said, np.nan))
        case msg.AskDecisions():
            for feature in (-1, 3, 2**40):
                yield f"shuffle {feature}", with_fields(message, shuffled=feature)
            yield "seed", with_fields(message, shuffled=0, seed=-1)
        case msg.AskNodes():
            yield "fewer rows", with_fields(message, rows=message.rows[:-1])
            yield "fewer nodes", with_fields(message, nodes=message.nodes[:-1])
            for name in ("rows", "nodes"):
                for value in (-1, 2**31 - 1):
                    array = getattr(message, name).copy()
                    array[0] = value
                    yield f"{name} {value}", with_fields(message, **{name: array})


def malformed_start(message: msg.StartForest) -> Iterator[tuple[str, Message]]:
    name = "labels" if message.labels is not None else "targets"
    labels = getattr(message, name)
    yield "no labels", with_fields(message, **{name: None})
    for array in other_lengths(labels):
        yield name, with_fields(message, **{name: array})
    if name == "labels":
        yield "a class too many", with_fields(message, n_classes=message.n_classes - 1)
        yield "the other kind", with_fields(message, n_classes=0)
        yield "more classes than rows", with_fields(message, n_classes=2**40)
    else:
        yield "the other kind", with_fields(message, n_classes=3)
    yield "negative classes", with_fields(message, n_classes=-1)
    assert message.weights is not None
    for array in other_lengths(message.weights):
        yield "weights", with_fields(message, weights=array)
    yield "no weight at all", with_fields(message, weights=np.zeros_like(message.weights))
    yield "too heavy", with_fields(message, weights=np.full(N, 2**31, np.uint64))
    yield "wraps round", with_fields(message, weights=np.full(N, 2**63, np.uint64))
    for field_name, values in {
        "max_depth": (-1,),
        "min_samples_split": (-1, 0, 1),
        "min_samples_leaf": (-1, 0),
        "min_weight": (-1, 0),
        "n_draws": (-1, 0, 2**40),
    }.items():
        for value in values:
            yield f"{field_name} {value}", with_fields(message, **{field_name: value})


def malformed_level(message: msg.GrowLevel | msg.FinishTrees) -> Iterator[tuple[str, Message]]:
    if len(message.is_split):
        for array in other_lengths(message.is_split):
            yield "split nodes", with_fields(message, is_split=array)
        yield "no split", with_fields(message, is_split=np.zeros_like(message.is_split))
    for array in other_lengths(message.flags):
        yield "flags", with_fields(message, flags=array)


def throw_everything(party: VerticalParty, samples: dict[type[Message], Message], due: Message) -> int:
    """Whatever must be refused now; returns how much it was."""
    before = party.state
    thrown = 0
    for kind, sample in samples.items():
        if kind not in VerticalParty.handlers or before not in VerticalParty.handlers[kind].when:
            with pytest.raises(RemoteProtocolError):
                party.handle(sample)
            thrown += 1
    for what, message in malformed(due):
        received = decode(encode(message))
        try:
            party.handle(received)
        except RemoteProtocolError:  # never an internal error
            pass
        else:
            pytest.fail(f"{type(due).__name__} was taken: {what}")
        thrown += 1
    assert party.state == before
    return thrown


def all_samples(record: Play) -> dict[type[Message], Message]:
    """One of every message that occurs, and of every kind that parties send, which none of them takes."""
    asked = {type(m): m for name in ("holder", "other") for m in record.asked[name]}
    answered = {type(m): m for replies in record.answered.values() for m in map(decode, replies)}
    return {**answered, **asked, Refusal: Refusal(kind="data", reason="no")}


@pytest.mark.parametrize("name", ["holder", "other"])
@pytest.mark.parametrize("task", ["classes", "targets"])
def test_refused_messages_change_nothing(task: str, name: str) -> None:
    record = recorded(task)
    samples = all_samples(record)
    party = make_party(name, task, shares_model=True)
    seen: set[TrainingState] = set()
    thrown = 0
    for message, reply in zip(record.asked[name], record.answered[name], strict=True):
        seen.add(party.state)
        thrown += throw_everything(party, samples, message)
        assert encode(party.handle(decode(encode(message)))) == reply
    assert seen == set(TrainingState)
    assert thrown > 200
    final = record.asked[name][-1]
    assert isinstance(final, msg.RevealSplits)  # whose reply, compared above, is the party's whole forest


def test_the_recording_has_every_message() -> None:
    record = recorded("classes")
    explaining = {AskExplained, AskAllSides, AskRowValues}
    others = {
        OpenSums,
        StartSums,
        AskSealed,
    } | explaining  # which have tests of their own
    due = set(VerticalParty.handlers) - others
    assert {type(m) for m in record.asked["holder"]} == due
    assert {type(m) for m in record.asked["other"]} == due - {msg.ShareLabels, msg.OutOfBagAnswers}
    assert {type(m) for m in record.asked["bare"]} == {msg.OpenTraining}
    planted = [m for m in record.asked["other"] if isinstance(m, msg.PlantTrees)]
    assert [(m.first_tree, m.n_trees) for m in planted] == [(0, 3), (3, 2)]


def test_no_handler_is_missing_and_none_is_extra() -> None:
    vertical = [m for m in registered().values() if m.__module__ == msg.__name__]
    requests = {m for m in vertical if m.discloses.sender == "coordinator"}
    handlers = {*VerticalParty.handlers, *RegrowingParty.handlers}
    assert requests == {kind for kind in handlers if kind.__module__ == msg.__name__}


# --- what the label holder alone takes, and what policy forbids ---


def replay(name: str, task: str, until: Callable[[Message], bool], **options: Any) -> VerticalParty:
    """A party that has heard everything before the first message that ``until`` marks."""
    party = make_party(name, task, **options)
    for message in recorded(task).asked[name]:
        if until(message):
            break
        party.handle(message)
    return party


def test_a_party_without_labels_has_none_to_share() -> None:
    party = replay("other", "classes", lambda m: isinstance(m, msg.StartForest))
    share = next(m for m in recorded("classes").asked["holder"] if isinstance(m, msg.ShareLabels))
    with pytest.raises(DataError, match="no labels"):
        party.handle(share)
    assert party.state == TrainingState.opened


@pytest.mark.parametrize("weights", [(("x", -1.0),), (("x", float("nan")),), (("x", float("inf")),), (("q", 1.0),)])
def test_class_weights_that_make_no_sense(weights: tuple[tuple[str, float], ...]) -> None:
    party = replay("holder", "classes", lambda m: isinstance(m, msg.ShareLabels))
    share = next(m for m in recorded("classes").asked["holder"] if isinstance(m, msg.ShareLabels))
    with pytest.raises(DataError, match="class_weight"):
        party.handle(with_fields(share, class_weight=weights))
    assert encode(party.handle(share)) == recorded("classes").answered["holder"][1]


def test_a_refused_request_for_labels_leaves_those_that_were_shared() -> None:
    asked, answered = recorded("targets").asked["holder"], recorded("targets").answered["holder"]
    party = replay("holder", "targets", lambda m: isinstance(m, msg.StartForest))
    share = next(m for m in asked if isinstance(m, msg.ShareLabels))
    with pytest.raises(RemoteProtocolError, match="number of draws"):
        party.handle(with_fields(share, seed=share.seed + 1, max_samples=2**40))
    at = next(k for k, m in enumerate(asked) if isinstance(m, msg.StartForest))
    assert encode(party.handle(asked[at])) == answered[at]


def test_a_partys_policy_keeps_its_splits() -> None:
    party = replay("other", "classes", lambda m: isinstance(m, msg.RevealSplits), shares_model=False)
    with pytest.raises(PolicyError, match="keeps its splits"):
        party.handle(msg.RevealSplits())
    assert party.state == TrainingState.trained


def test_a_node_without_an_offer_cannot_be_won() -> None:
    """The label holder without columns offers nothing, so it can win nothing."""
    task = "classes"
    party = VerticalParty("holder", tables()["bare"], target=target(task), job_secret=bytes(32))
    for message in recorded(task).asked["holder"]:
        if isinstance(message, msg.ApplySplits):
            break
        party.handle(message)
    assert party.state == TrainingState.growing
    with pytest.raises(RemoteProtocolError, match="made no offer"):
        party.handle(msg.ApplySplits(won=np.ones(1, np.uint8)))
    assert party.state == TrainingState.growing


def test_labels_that_are_not_the_holders_own_code_are_refused() -> None:
    party = replay("holder", "classes", lambda m: isinstance(m, msg.StartForest))
    start = next(m for m in recorded("classes").asked["holder"] if isinstance(m, msg.StartForest))
    assert start.labels is not None
    with pytest.raises(RemoteProtocolError):
        party.handle(with_fields(start, n_classes=start.n_classes + 1))
    turned = np.roll(start.labels, 1)
    with pytest.raises(RemoteProtocolError):
        party.handle(with_fields(start, labels=turned))
    party.handle(start)


def test_trees_planted_after_a_prediction_belong_to_the_forest() -> None:
    """The state allows it, so the next answers must be those of all trees."""
    whole = make_party("other", "classes", shares_model=True)
    interrupted = make_party("other", "classes", shares_model=True)
    for message in recorded("classes").asked["other"]:
        if isinstance(message, msg.PlantTrees) and message.first_tree > 0:
            interrupted.handle(msg.AskDecisions(wire="decisions", shuffled=None, seed=0))
        if not isinstance(message, msg.AskNodes):
            assert encode(whole.handle(message)) == encode(interrupted.handle(message))


def test_a_new_training_forgets_the_old_one() -> None:
    party = make_party("other", "classes", shares_model=True)
    for _ in range(2):
        for message, reply in zip(
            recorded("classes").asked["other"], recorded("classes").answered["other"], strict=True
        ):
            assert encode(party.handle(message)) == reply


# --- the coordinator's side ---


def lying(
    protocol: Iterator[Any], parties: dict[str, VerticalParty], kind: type[Message], lie: Callable[[Any], Message]
) -> Any:
    """Run a protocol with one party whose replies of a kind are replaced."""
    replies: dict[str, Message] | None = None
    while True:
        try:
            step = next(protocol) if replies is None else protocol.send(replies)  # type: ignore[attr-defined]
        except StopIteration as end:
            return end.value
        replies = {name: parties[name].handle(message) for name, message in step.requests.items()}
        replies = {name: lie(reply) if isinstance(reply, kind) else reply for name, reply in replies.items()}


LIES: list[tuple[type[Message], Callable[[Any], Message]]] = [
    (msg.TableSummary, lambda m: msg.Ready()),
    (msg.EncodedLabels, lambda m: with_fields(m, labels=m.labels[:-1])),
    (msg.EncodedLabels, lambda m: with_fields(m, labels=None)),
    (msg.EncodedLabels, lambda m: with_fields(m, weights=m.weights[:-1])),
    (msg.HolderOffers, lambda m: with_fields(m, whole=m.whole[:-1])),
    (msg.HolderOffers, lambda m: with_fields(m, is_open=longer(m.is_open))),
    (msg.HolderOffers, lambda m: with_fields(m, score=m.score[:-1])),
    (msg.HolderOffers, lambda m: msg.Offers(score=m.score, feature=m.feature)),
    (msg.HolderOffers, lambda m: with_fields(m, sizes=longer(m.sizes))),
    (msg.Offers, lambda m: with_fields(m, score=longer(m.score))),
    (msg.Offers, lambda m: with_fields(m, feature=m.feature[:-1])),
    (msg.Offers, lambda m: with_fields(m, feature=np.full(len(m.feature), 200, np.uint8))),
    (msg.Partition, lambda m: with_fields(m, flags=longer(m.flags))),
    (msg.Partition, lambda m: with_fields(m, flags=m.flags[:-1])),
    (msg.Partition, lambda m: with_fields(m, late=np.zeros(1 if m.late is None else len(m.late) + 1))),
    (msg.LeafTotals, lambda m: with_fields(m, entries=m.entries[:-1])),
    (msg.LeafTotals, lambda m: with_fields(m, entries=np.zeros_like(m.entries))),
    (msg.LeafTotals, lambda m: with_fields(m, label=np.full_like(m.label, 77))),
    (msg.LeafTotals, lambda m: with_fields(m, weight=np.zeros_like(m.weight))),
    (msg.LeafTotals, lambda m: msg.TreesDone()),
]


@pytest.mark.parametrize(("kind", "lie"), LIES, ids=[f"{kind.__name__} {i}" for i, (kind, _) in enumerate(LIES)])
def test_the_coordinator_refuses_malformed_replies(kind: type[Message], lie: Callable[[Any], Message]) -> None:
    parties = {name: make_party(name, "classes") for name in tables()}
    with pytest.raises(RemoteProtocolError):
        lying(train(plan("classes"), tuple(parties), "holder"), parties, kind, lie)


def without_scores(offers: msg.Offers) -> Message:
    return with_fields(offers, score=np.full(len(offers.score), -np.inf))


def test_scores_that_are_promised_must_follow() -> None:
    """A party that offers no scores is asked for them with its partitions; these are not there."""
    parties = {name: make_party(name, "classes") for name in tables()}
    asked = plan("classes", max_features=1, min_samples_leaf=1)
    with pytest.raises(RemoteProtocolError, match="other sent 0 scores"):
        lying(train(asked, tuple(parties), "holder"), parties, msg.Offers, without_scores)


@pytest.mark.parametrize("rule", [{"max_leaf_nodes": 5}, {"min_impurity_decrease": 0.01}, {"min_samples_leaf": 3}])
def test_scores_are_not_late_under_rules_that_need_them(rule: dict[str, Any]) -> None:
    parties = {name: make_party(name, "classes") for name in tables()}
    asked = plan("classes", **{"max_features": 1, "min_samples_leaf": 1} | rule)
    with pytest.raises(RemoteProtocolError, match="other offered splits without their scores"):
        lying(train(asked, tuple(parties), "holder"), parties, msg.Offers, without_scores)
    start = parties["other"]._start
    assert isinstance(start, msg.StartForest)
    assert not start.late_scores
    with pytest.raises(RemoteProtocolError, match="under rules that need them early"):
        check_start(with_fields(start, late_scores=True), N)


def test_different_numbers_of_rows_are_the_users_to_mend() -> None:
    parties = {name: make_party(name, "classes") for name in tables()}
    short = parties["other"].table.take(np.arange(N - 1))
    parties["other"] = VerticalParty("other", short)
    with pytest.raises(DataError, match="different numbers of rows"):
        lying(train(plan("classes"), tuple(parties), "holder"), parties, Refusal, lambda m: m)


def test_a_message_is_checked_before_it_is_sent() -> None:
    with pytest.raises(LocalProtocolError):
        msg.ApplySplits(won=np.ones(3, np.int64))  # type: ignore[arg-type]
