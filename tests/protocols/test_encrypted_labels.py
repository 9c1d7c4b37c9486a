"""Labels that never leave: the same forest as with shared ones, and whatever goes wrong on the way is refused.

Keys are short here, so that forests grow in a moment; what is done with them is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import test_vertical_exact as exact
import test_vertical_party as plain
from alignments import OPERATOR
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot import FederatedForestClassifier, FederatedForestRegressor, Federation
from woodlot.crypto import _libraries, paillier
from woodlot.crypto.envelope import unseal
from woodlot.crypto.packing import layout, pack, unpack
from woodlot.crypto.streams import SecretStream
from woodlot.estimators import parameters
from woodlot.exceptions import ConfigError, DataError, RemoteProtocolError
from woodlot.federation import local
from woodlot.protocols.core.message import Message, registered
from woodlot.protocols.sums.sum_messages import OpenSums, StartSums
from woodlot.protocols.vertical import blind_messages as msg
from woodlot.protocols.vertical import blind_sums, forest_messages
from woodlot.protocols.vertical.blind_party import BlindParty
from woodlot.protocols.vertical.blind_proof import LabelVoucher
from woodlot.protocols.vertical.out_of_bag import score_out_of_bag
from woodlot.protocols.vertical.party import TrainingState
from woodlot.protocols.vertical.predict import predict_in_one_round, predict_node_by_node
from woodlot.protocols.vertical.sealed_messages import AskSealed
from woodlot.protocols.vertical.train import train
from woodlot.runtime.codec import decode, encode

BITS = 512


@pytest.fixture(autouse=True, scope="module")
def short_keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paillier, "SMALLEST_BITS", BITS)
        patch.setattr(parameters, "KEY_BITS", (BITS, *parameters.KEY_BITS))
        yield


# --- the same forest ---


def numbers_only(case: exact.Case) -> exact.Case:
    """Categories as numbers: other parties than the label holder take no others."""
    frame = case.frame.apply(lambda c: c if c.dtype.kind == "f" else pd.Series(pd.factorize(c)[0], dtype=float))
    return exact.Case(frame, case.y, case.weights, case.forest, case.rng)


def check_same(case: exact.Case) -> None:
    shared = case.fit()
    case.forest.set_params(labels="encrypted", key_bits=BITS)
    for _ in range(2):
        encrypted = case.fit(parties=case.dealing(), memory_limit=[None, 1][int(case.rng.integers(2))])
        exact.same_forest(encrypted, shared)


RULES = exact.RULES.map(lambda rules: {**rules, "max_bins": rules["max_bins"] or 6})
SIZES = {"seed": st.integers(0, 2**32), "n": st.integers(1, 40), "p": st.integers(1, 6), "rules": RULES}


@given(**SIZES, criterion=st.sampled_from(["gini", "entropy"]))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_classifiers(seed: int, n: int, p: int, rules: dict[str, Any], criterion: str) -> None:
    check_same(numbers_only(exact.make_case(seed, n, p, True, criterion=criterion, n_estimators=2, **rules)))


@pytest.mark.slow
@given(**SIZES)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_regressors(seed: int, n: int, p: int, rules: dict[str, Any]) -> None:
    check_same(numbers_only(exact.make_case(seed, n, p, False, n_estimators=2, **rules)))


def test_more_classes_than_fit_into_one_ciphertext() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 4)), np.arange(200) % 70
    case = exact.Case(
        pd.DataFrame(X, columns=list("abcd")), y, None, FederatedForestClassifier(1, max_depth=3, max_bins=6), rng
    )
    case.forest.set_params(random_state=3)
    check_same(case)


def test_columns_of_categories_at_the_label_holder() -> None:
    case = exact.make_case(11, 60, 5, True, max_bins=5, n_estimators=3)
    case.frame["letter"] = pd.Series(np.array([*"abcd"])[case.rng.integers(0, 4, 60)], dtype="str")
    text = [name for name in case.frame if case.frame[name].dtype.kind != "f"]
    dealing = {"holder": text, "other": [name for name in case.frame if name not in text]}
    shared = case.fit(parties=dealing)
    exact.same_forest(case.fit(parties=dealing, labels="encrypted", key_bits=BITS), shared)
    with pytest.raises(DataError, match=r"other.*columns of categories.*labels='shared'"):
        case.fit(parties={"x": dealing["other"], "other": text}, labels="encrypted", key_bits=BITS)


def test_a_federation_of_two_in_a_row_and_bins_by_default() -> None:
    case = numbers_only(exact.make_case(3, 120, 6, True))
    names = list(case.frame.columns)
    label = pd.DataFrame({"label": case.y})
    tables = {"a": case.frame[names[:2]].join(label), "b": case.frame[names[2:]]}
    model = FederatedForestClassifier(25, random_state=0, oob_score=True, key_bits=BITS)
    fed = Federation.local(tables, shares_model=True)
    shared = model.set_params(max_bins=32).fit(fed, "a.label").predict_proba(fed)
    curve = model.oob_curve_
    encrypted = model.set_params(max_bins=None, labels="encrypted").fit(fed, "a.label")
    exact.same_bits(encrypted.predict_proba(fed), shared)
    np.testing.assert_array_equal(encrypted.oob_curve_, curve)
    seen = {row.kind for row in encrypted.disclosure_ if row.receiver == "b" and row.sender == "coordinator"}
    assert seen.isdisjoint({"StartForest", "EncodedLabels", "SumScores"})
    assert {"TakeLabels", "StartBlind", "PlantBlind", "GrowBlind"} <= seen
    with pytest.raises(DataError, match="grow it again without the party that leaves"):
        encrypted.revoke("b", data=fed)


# --- what is not taken ---


@pytest.mark.parametrize("labels", ["hidden", None, 3])
def test_other_ways_to_share_labels(labels: Any) -> None:
    with pytest.raises(ValueError, match="'labels' parameter must be 'shared' or 'encrypted'"):
        FederatedForestClassifier(labels=labels).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize("bits", [256, 1000, "2048", True])
def test_other_lengths_of_keys(bits: Any) -> None:
    with pytest.raises(ValueError, match="'key_bits' parameter must be one of"):
        FederatedForestClassifier(labels="encrypted", key_bits=bits).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize("weights", ["balanced", "balanced_subsample", {0: 2.0}])
def test_weights_that_tell_the_classes(weights: Any) -> None:
    model = FederatedForestClassifier(labels="encrypted", key_bits=BITS, class_weight=weights)
    with pytest.raises(DataError, match=r"class_weight.*labels='shared'"):
        model.fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(DataError, match="needs bins"):
        plain.plan("classes", labels="encrypted", max_bins=None)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_targets_that_are_no_numbers(value: float) -> None:
    model = FederatedForestRegressor(labels="encrypted", key_bits=BITS)
    with pytest.raises(ValueError, match="Input y contains"):
        model.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, value])


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    _libraries.gmp.cache_clear()
    try:
        with pytest.raises(DataError, match=r"pip install 'woodlot\[crypto\]'"):
            FederatedForestClassifier(labels="encrypted", key_bits=BITS).fit([[0.0, 1.0], [1.0, 0.0]], [0, 1])
    finally:
        _libraries.gmp.cache_clear()


# --- every message in every state ---

N = plain.N


def tables() -> dict[str, Any]:
    return plain.tables() | {"other": plain.tables()["other"].select(["c", "e"])}


def make_party(name: str, task: str, **options: Any) -> BlindParty:
    target = plain.target(task) if name == "holder" else None
    voucher = LabelVoucher(name, "holder", "job", signer=OPERATOR.admit(name))
    options = {"job_secret": bytes(32), "shares_model": True, "voucher": voucher, **options}
    return BlindParty(name, tables()[name], target=target, **options)


def plan(task: str) -> Any:
    return plain.plan(task, labels="encrypted", max_bins=8, key_bits=BITS)


RECORDINGS: dict[str, plain.Play] = {}


def recorded(task: str) -> plain.Play:
    if task not in RECORDINGS:
        record = RECORDINGS[task] = plain.Play()
        parties = {name: make_party(name, task) for name in tables()}
        record.forest = plain.play(train(plan(task), tuple(parties), "holder"), parties, record)
        plain.play(score_out_of_bag(record.forest, "holder", "soft", 1), parties, record)
        plain.play(predict_in_one_round(record.forest, tuple(parties), N, "decisions", "soft", 1), parties, record)
        plain.play(predict_node_by_node(record.forest, tuple(parties), N, "soft"), parties, record)
        for name in ("holder", "other"):
            record.asked[name].append(forest_messages.RevealSplits())
            record.answered[name].append(encode(parties[name].handle(forest_messages.RevealSplits())))
    return RECORDINGS[task]


def malformed(message: Message) -> Iterator[tuple[str, Message]]:
    other, change = plain.other_lengths, plain.with_fields
    match message:
        case forest_messages.OpenTraining():
            yield "no bins", change(message, max_bins=None)
        case msg.EncryptLabels():
            yield "the other task", change(message, task="targets" if message.task == "classes" else "classes")
            for bits in (0, -1, BITS - 2, BITS + 1, 1 << 20):
                yield f"{bits} bits", change(message, key_bits=bits)
            for samples in (1 << 31, 1e300):
                yield f"{samples} samples", change(message, max_samples=samples)
        case msg.TakeLabels():
            for name in ("modulus", "noise", "ciphertexts"):
                yield f"longer {name}", change(message, **{name: plain.longer(getattr(message, name))})
                yield f"no {name}", change(message, **{name: np.zeros_like(getattr(message, name))})
            for name, value in (("n_parts", 0), ("n_parts", 2), ("value_bits", -1), ("value_bits", BITS)):
                yield name, change(message, **{name: value})
                yield name, vouched(change(message, **{name: value}))
            yield "another row's ciphertext", change(message, ciphertexts=np.roll(message.ciphertexts, BITS // 4))
            yield "no signature", change(message, signature=b"")
            yield "another's certificate", change(message, certificate=OPERATOR.admit("bare").certificate)
        case msg.StartBlind():
            yield "balanced", change(message, balance=True)
            for name, value in (("n_draws", 0), ("max_depth", 0), ("min_samples_leaf", 0), ("min_weight", 0)):
                yield name, change(message, **{name: value})
            yield "weights", change(message, weights=message.weights[:-1])
        case msg.PlantBlind():
            for n in (0, -1, message.n_trees + 1):
                yield f"{n} trees", change(message, n_trees=n)
            yield "candidates", change(message, candidates=message.candidates[:-1])
            for array in other(message.is_open):
                yield "open roots", change(message, is_open=array)
        case msg.GrowBlind():
            yield from plain.malformed_level(message)  # type: ignore[arg-type]
            for array in other(message.candidates):
                yield "candidates", change(message, candidates=array)
            for array in other(message.is_open):
                yield "open nodes", change(message, is_open=array)
        case msg.ResolveTies():
            yield "a split that there is not", change(message, ties=np.full(len(message.ties), 10**6, np.uint32))
            for array in other(message.ties):
                yield "ties", change(message, ties=array)
            for array in other(message.n_ties):
                yield "numbers of ties", change(message, n_ties=array)
        case msg.ScoreSums():
            for party, envelope in message.envelopes.items():
                for array in other(envelope):
                    yield "length", change(message, envelopes={party: array})
                flipped = envelope.copy()
                flipped[len(flipped) // 2] ^= 1
                yield "a flipped bit", change(message, envelopes={party: flipped})
                yield "of another party", change(message, envelopes={"bare": envelope})
        case _:
            yield from plain.malformed(message)


@pytest.mark.parametrize("name", ["holder", "other"])
@pytest.mark.parametrize("task", ["classes", "targets"])
def test_refused_messages_change_nothing_and_a_repeated_job_gives_the_same_bytes(task: str, name: str) -> None:
    record = recorded(task)
    samples = plain.all_samples(record)
    party = make_party(name, task)
    seen, thrown = set(), 0
    for message, reply in zip(record.asked[name], record.answered[name], strict=True):
        before = party.state
        seen.add(before)
        due = {kind for kind, how in BlindParty.handlers.items() if before in how.when}
        wrong = [(kind.__name__, m) for kind, m in samples.items() if kind not in due]
        for what, bad in [*wrong, *malformed(message)]:
            try:
                party.handle(decode(encode(bad)))
            except RemoteProtocolError:
                thrown += 1
            else:
                pytest.fail(f"{type(message).__name__}, {what} was taken")
        assert party.state == before
        assert encode(party.handle(decode(encode(message)))) == reply
    assert seen == set(TrainingState)
    assert thrown > 200


def test_the_recording_has_every_message() -> None:
    record = recorded("classes")
    both = {type(m) for name in ("holder", "other") for m in record.asked[name]}
    of_predictions = {AskSealed, OpenSums, StartSums}
    assert both == set(BlindParty.handlers) - of_predictions
    own = {m for m in registered().values() if m.__module__ == msg.__name__ and m.discloses.sender == "coordinator"}
    assert own == {kind for kind in BlindParty.handlers if kind.__module__ == msg.__name__}


def test_labels_under_a_code_are_not_given() -> None:
    party = make_party("holder", "classes")
    party.handle(forest_messages.OpenTraining(max_bins=8))
    share = forest_messages.ShareLabels(
        task="classes", seed=1, balanced=False, class_weight=(), reveal_unit=False, bootstrap=True, max_samples=None
    )
    with pytest.raises(
        RemoteProtocolError, match="Unexpected ShareLabels in state opened; BlindParty does not take it"
    ):
        party.handle(share)


# --- what others could do to it ---


class Meddler:
    """A party between which and the coordinator somebody changes messages."""

    def __init__(self, party: BlindParty, kind: type[Message], change: Any) -> None:
        self._party, self._kind, self._change = party, kind, change

    def handle(self, message: Message) -> Message:
        return self._party.handle(self._change(message) if isinstance(message, self._kind) else message)


def grow_meddled(name: str, kind: type[Message], change: Any, task: str = "classes") -> Any:
    parties: dict[str, Any] = {n: make_party(n, task) for n in tables()}
    parties[name] = Meddler(parties[name], kind, change)
    return plain.play(train(plan(task), tuple(parties), "holder"), parties, plain.Play())


def vouched(message: Message) -> Message:
    """Labels that the label holder itself has signed, whatever they are."""
    assert isinstance(message, msg.TakeLabels)
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return plain.with_fields(
        message, **LabelVoucher("holder", "holder", "job", signer=OPERATOR.admit("holder")).vouch(fields)
    )


def under_own_key(message: msg.TakeLabels) -> tuple[Message, paillier.PrivateKey]:
    """What a coordinator would bring to read the sums: 2^i as the label of row i, under a key of its own."""
    key = paillier.PrivateKey.generate(BITS, SecretStream.fresh())
    ciphers = key.public.pack(key.encrypt([1 << row for row in range(N)], SecretStream.fresh()))
    changed = plain.with_fields(
        message,
        modulus=np.frombuffer(paillier.to_bytes(key.public.n), np.uint8),
        noise=np.frombuffer(paillier.to_bytes(key.public.base), np.uint8),
        ciphertexts=ciphers,
        n_parts=1,
        value_bits=N,
    )
    return changed, key


@pytest.mark.parametrize("signed", [True, False])
def test_labels_under_a_key_of_the_coordinators_own_are_refused(signed: bool) -> None:
    """It could open the envelopes, and read which rows are on each side of every split."""
    name, taken = "other", next(m for m in recorded("classes").asked["other"] if isinstance(m, msg.TakeLabels))
    party = make_party(name, "classes")
    if not signed:
        party._voucher = LabelVoucher(name, "holder", "job", shared_secret=b"a secret of all parties")
    party.handle(forest_messages.OpenTraining(max_bins=8))
    false, key = under_own_key(taken)
    stolen = {"certificate": OPERATOR.admit("bare").certificate, "signature": OPERATOR.admit("bare").sign("", b"")}
    for message in (
        false,
        plain.with_fields(false, **stolen),
        plain.with_fields(false, certificate=b"", signature=b""),
    ):
        with pytest.raises(RemoteProtocolError, match="not those that 'holder' has vouched for"):
            party.handle(decode(encode(message)))
    # with a party that asked for no proof the attack is what it is said to be
    party._voucher = _Credulous("other", "holder", "job", shared_secret=bytes(32))
    party.handle(false)
    record = recorded("classes").asked[name]
    start = next(m for m in record if isinstance(m, msg.StartBlind))
    party.handle(plain.with_fields(start, weights=None, bootstrap_seed=None, n_draws=N))
    plant = next(m for m in record if isinstance(m, msg.PlantBlind))
    told = party.handle(plant)
    assert isinstance(told, msg.BlindSums)
    content = unseal(key, bytes(told.envelope), blind_sums.about(key.public, name, range(plant.n_trees), 0))
    sums = msgspec.msgpack.decode(content, type=blind_sums.Sums)
    widths = np.frombuffer(sums.widths, blind_sums.WIDTH).tolist()
    capacity = key.public.plaintext_bits
    plains = key.decrypt(key.public.unpack(sums.packed, len(layout(widths, capacity))))
    rows = unpack(plains, widths, capacity)  # of each sum, one bit for each row in it
    own, weight = np.frombuffer(sums.plus, blind_sums.INDEX), np.frombuffer(sums.weight, blind_sums.WEIGHT)
    assert [rows[at].bit_count() for at in own.tolist()] == weight.tolist()


class _Credulous(LabelVoucher):
    def check(self, message: msg.TakeLabels) -> None:
        """Anything will do."""


def test_labels_of_another_job_or_holder_are_refused() -> None:
    taken = next(m for m in recorded("classes").asked["other"] if isinstance(m, msg.TakeLabels))
    for holder, job in (("holder", "another job"), ("bare", "job")):
        party = make_party("other", "classes")
        party._voucher = LabelVoucher("other", holder, job, signer=OPERATOR.admit("other"))
        party.handle(forest_messages.OpenTraining(max_bins=8))
        with pytest.raises(RemoteProtocolError, match=f"not those that '{holder}' has vouched for"):
            party.handle(taken)


def test_who_can_neither_sign_nor_tag_takes_no_part() -> None:
    with pytest.raises(ConfigError, match="neither an identity nor a shared secret"):
        LabelVoucher("other", "holder", "job")
    assert "secret" not in repr(LabelVoucher("other", "holder", "job", shared_secret=b"a secret of all three"))


@pytest.mark.parametrize("task", ["classes", "targets"])
def test_exchanged_ciphertexts_grow_another_forest_and_tell_nobody_anything(task: str) -> None:
    """A party that changes ciphertexts without the key cannot read them; what is grown is worse, or is refused."""

    def change(message: msg.TakeLabels) -> Message:
        each = message.ciphertexts.reshape(N * message.n_parts, -1)
        return vouched(plain.with_fields(message, ciphertexts=np.roll(each, message.n_parts, axis=0).ravel()))

    if task == "classes":  # a class has more rows on one side of a split than there are
        with pytest.raises(RemoteProtocolError, match="sums that rows of the node cannot have"):
            grow_meddled("other", msg.TakeLabels, change, task)
    else:
        forest = grow_meddled("other", msg.TakeLabels, change, task)
        assert not np.array_equal(forest.gain, recorded(task).forest.gain)


def test_sums_that_no_rows_can_have_are_refused() -> None:
    def change(message: msg.TakeLabels) -> Message:
        key = paillier.PaillierPublicKey(paillier.from_bytes(message.modulus), paillier.from_bytes(message.noise))
        heavy = key.pack([key.encrypt(3, SecretStream.fresh()) for _ in range(N * message.n_parts)])
        return vouched(plain.with_fields(message, ciphertexts=heavy))

    with pytest.raises(RemoteProtocolError, match=r"cannot have|more in it"):
        grow_meddled("other", msg.TakeLabels, change)


def test_what_a_party_puts_into_its_envelope_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = blind_sums.Sums

    def lie(field: str, change: Any) -> None:
        monkeypatch.setattr(blind_sums, "Sums", lambda **told: honest(**{**told, field: change(told[field])}))
        with pytest.raises(RemoteProtocolError):
            grow_meddled("bare", forest_messages.RevealSplits, None)

    for field, change in {
        "widths": lambda raw: raw[:-2],
        "n_cuts": lambda raw: raw[:-4],
        "weight": lambda raw: np.zeros(len(raw) // 4, "<u4").tobytes(),
        "plus": lambda raw: np.full(len(raw) // 4, 10**6, "<i4").tobytes(),
        "minus": lambda raw: np.full(len(raw) // 4, -2, "<i4").tobytes(),
        "packed": lambda raw: raw[:-1],
    }.items():
        lie(field, change)
    lie("widths", lambda raw: np.zeros(len(raw) // 2, "<u2").tobytes())
    lie("n_cuts", lambda raw: raw + b"\0")


def test_sums_of_sides_that_are_too_small_are_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has the public key can add up any few labels itself, and would have them scored."""
    honest = blind_sums.Sums
    monkeypatch.setattr(
        blind_sums,
        "Sums",
        lambda **told: honest(**told | {"weight": np.full(len(told["weight"]) // 4, 4, "<u4").tobytes()}),
    )
    parties = {n: make_party(n, "classes") for n in tables()}
    small = plain.plan("classes", labels="encrypted", max_bins=8, key_bits=BITS, min_samples_leaf=5)
    with pytest.raises(RemoteProtocolError, match="leaves less than 5 on one side"):
        plain.play(train(small, tuple(parties), "holder"), parties, plain.Play())


def test_sums_are_scored_of_the_parties_that_were_ordered() -> None:
    party = make_party("holder", "classes", others={"other"})
    record = recorded("classes")
    for message, reply in zip(record.asked["holder"], record.answered["holder"], strict=True):
        if isinstance(message, msg.ScoreSums):
            ghost = {"ghost": message.envelopes["other"]}
            for envelopes in (ghost, message.envelopes | ghost):
                with pytest.raises(RemoteProtocolError, match="not another party of this training"):
                    party.handle(plain.with_fields(message, envelopes=envelopes))
        assert encode(party.handle(message)) == reply


def refused_under(rules: dict[str, int]) -> str:
    """Why a party refuses a level of a training that grows by other rules."""
    party = make_party("other", "classes")
    for message in recorded("classes").asked["other"]:
        if isinstance(message, msg.StartBlind):
            party.handle(plain.with_fields(message, **rules))
            continue
        try:
            party.handle(message)
        except RemoteProtocolError as error:
            return f"{type(message).__name__}: {error}"
    return ""


def test_nodes_that_must_be_leaves_are_not_opened() -> None:
    """At a node of a few rows every sum of a split is a few labels."""
    assert "PlantBlind: PlantBlind opens a node that" in refused_under({"min_samples_split": N})
    assert "GrowBlind opens a node that" in refused_under({"min_samples_split": N // 2})
    assert "GrowBlind opens a node that" in refused_under({"max_depth": 1})


# --- who sees what ---


def test_ciphertexts_of_equal_labels_have_nothing_in_common() -> None:
    taken = next(m for m in recorded("classes").asked["other"] if isinstance(m, msg.TakeLabels))
    each = taken.ciphertexts.reshape(N, -1)
    assert len(np.unique(each, axis=0)) == N
    assert abs(np.unpackbits(each[:, :-1]).mean() - 0.5) < 0.02


def test_parties_without_labels_get_no_scores_and_learn_of_their_own_splits_only_where_they_may_win() -> None:
    record = recorded("classes")
    kinds = {type(m) for m in record.asked["other"]}
    assert not kinds & {forest_messages.StartForest, msg.ScoreSums, msg.EncryptedLabels}
    scored = [m for m in map(decode, record.answered["holder"]) if isinstance(m, msg.SumScores)]
    resolved = [m for m in record.asked["other"] if isinstance(m, msg.ResolveTies)]
    told, known = sum(int((m.n_ties > 0).sum()) for m in resolved), sum(len(m.score["other"]) for m in scored)
    assert 0 < told < known
    # of two million bytes that are random to whoever has no key, none can be told from another
    envelopes = [m.envelopes["other"] for m in record.asked["holder"] if isinstance(m, msg.ScoreSums)]
    counts = np.bincount(np.concatenate([e[BITS // 4 :] for e in envelopes]), minlength=256)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 400


def test_the_order_of_splits_is_shuffled() -> None:
    """The places of the winners among the node's splits say nothing: they are spread over all."""
    record = recorded("targets")
    scored = [m for m in map(decode, record.answered["holder"]) if isinstance(m, msg.SumScores)]
    places = np.concatenate([m.ties["other"] for m in scored]).astype(int)
    assert len(np.unique(places)) > 5


def test_a_level_is_scored_once() -> None:
    """Nobody can have the scores of sums of their own choice beside those of the forest."""
    record = recorded("targets")
    party = make_party("holder", "targets")
    for message in record.asked["holder"]:
        party.handle(message)
        if isinstance(message, msg.ScoreSums):
            break
    with pytest.raises(RemoteProtocolError, match="scored before"):
        party.handle(message)


class _Thief(BlindParty):
    """A party that tells of a split for each row, whose sum is the row's ciphertext and a number of its own."""

    ties: Any = None

    def _sums(self, side: Any, grower: Any, candidates: Any) -> msg.BlindSums:
        key, n, whole = side.rows.key, self.table.n_rows, int(grower.weights.sum())
        weight = whole * 35 // 100  # that of no rows: whatever leaves must have, a side may be said to have it
        noise = SecretStream.derived(b"a secret of the thief")
        sums = [cipher * (1 + (weight - 1) * key.n) % key.square for cipher in side.rows._ciphers]
        widths = [blind_sums.sum_bits(side.rows.value_bits, whole)] * n
        content = blind_sums.Sums(
            widths=np.array(widths, blind_sums.WIDTH).tobytes(),
            n_cuts=np.array([n], blind_sums.COUNT).tobytes(),
            weight=np.full(n, weight, blind_sums.WEIGHT).tobytes(),
            plus=np.arange(n).astype(blind_sums.INDEX).tobytes(),
            minus=np.full(n, -1).astype(blind_sums.INDEX).tobytes(),
            packed=bytes(key.pack([key.refresh(cipher, noise) for cipher in pack(key, sums, widths)])),
        )
        about = blind_sums.about(key, self.name, self._trees, grower.skeleton.depth)
        envelope = blind_sums.seal(key, msgspec.msgpack.encode(content), about, noise)
        return msg.BlindSums(kind=np.ones(1, np.uint8), envelope=np.frombuffer(envelope, np.uint8))

    def _on_ResolveTies(self, message: msg.ResolveTies) -> msg.ResolvedTies:
        _Thief.ties = message.ties.astype(np.int64)
        raise DataError("the thief has what it wants")


def test_a_party_that_makes_up_sums_reads_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documents say so: all labels at one node, from an honest coordinator, however large leaves must be."""
    rng = np.random.default_rng(1)
    y = (rng.random(400) < 0.4).astype(int)
    tables = {
        "a": pd.DataFrame({"u": rng.normal(size=400) + 0.5 * y, "label": y}),
        "thief": pd.DataFrame({"v": rng.normal(size=400)}),
    }
    usual = local.BlindParty

    def made(name: str, *args: Any, **options: Any) -> BlindParty:
        return (_Thief if name == "thief" else usual)(name, *args, **options)

    monkeypatch.setattr(local, "BlindParty", made)
    forest = FederatedForestClassifier(
        1, min_samples_leaf=50, labels="encrypted", key_bits=BITS, max_bins=8, bootstrap=False, random_state=0
    )
    with pytest.raises(DataError, match="the thief has what it wants"):
        forest.fit(Federation.local(tables), "a.label")
    stolen = np.zeros(400, int)
    stolen[_Thief.ties] = 1
    assert (stolen == y).all() or (stolen == 1 - y).all()
