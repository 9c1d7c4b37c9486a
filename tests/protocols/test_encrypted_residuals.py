"""Residuals that never leave their holder in clear: the same optimum, and nothing but slopes of one's own is seen.

Keys are short here, so that descents end in a moment; what is done with them is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_linear import play

from woodlot import FederatedLinearRegression, FederatedLogisticRegression
from woodlot.crypto import paillier
from woodlot.crypto.paillier import PrivateKey
from woodlot.crypto.streams import SecretStream
from woodlot.crypto.weighted import weighted_sums
from woodlot.data.tables import read_table
from woodlot.estimators import parameters
from woodlot.exceptions import CiphertextError, DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.linear import linear_messages
from woodlot.protocols.linear import residual_messages as msg
from woodlot.protocols.linear.encrypted_party import EncryptedLinearParty
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.protocols.linear.residuals import ResidualDesk, ResidualSlots, SlopeSide
from woodlot.runtime.codec import encode

BITS = 512
N = 12
PLAN = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=20,
    tol=1e-3, residuals="encrypted", key_bits=BITS,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def short_keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paillier, "SMALLEST_BITS", BITS)
        patch.setattr(parameters, "KEY_BITS", (BITS, *parameters.KEY_BITS))
        yield


@pytest.fixture(scope="module")
def key(short_keys: None) -> PrivateKey:
    return PrivateKey.generate(BITS, SecretStream(bytes(32)))


# --- sums ---


@given(
    weights=st.integers(1, 4).flatmap(
        lambda p: st.lists(
            st.lists(st.integers(-128, 127) | st.sampled_from([-128, 0, 127]), min_size=p, max_size=p),
            min_size=1, max_size=8,
        )
    ),
    seed=st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_weighted_sums_are_those_of_the_plaintexts(key: PrivateKey, weights: list[list[int]], seed: int) -> None:
    rng, matrix = np.random.default_rng(seed), np.array(weights)
    plains = [int(x) for x in rng.integers(-(10**6), 10**6, len(matrix))]
    ciphers = key.encrypt([x % int(key.public.n) for x in plains], SecretStream(bytes(32)))
    found = key.decrypt(weighted_sums(key.public, ciphers, matrix, 8))
    assert found == [int(x) % int(key.public.n) for x in np.array(plains) @ matrix]


@given(seed=st.integers(0, 2**32), n=st.integers(2, 6), columns=st.integers(1, 5), n_scores=st.integers(1, 7))
@settings(max_examples=15, deadline=None)
def test_slopes_are_those_of_the_residuals(key: PrivateKey, seed: int, n: int, columns: int, n_scores: int) -> None:
    """Several plaintexts per row, columns of any size, residuals as large as they can be: nothing outgrows its slot."""
    rng = np.random.default_rng(seed)
    slots = ResidualSlots(n, n_scores, key.public.plaintext_bits)
    matrix = rng.normal(size=(n, columns)) * 10.0 ** rng.integers(-30, 30, columns)
    matrix[:, rng.random(columns) < 0.2] = 0
    residuals = rng.normal(size=(n, n_scores))
    residuals /= np.abs(residuals).sum(axis=0)
    residuals[:, 0] = 0
    residuals[0, 0] = -1
    desk = ResidualDesk(key, slots, {"shop": columns}, bytes(32))
    side = SlopeSide(key.public, slots, matrix, b"1" * 32)
    assert (np.abs(side.matrix - matrix) <= 2.0**-30 * np.abs(matrix).max(axis=0)).all()
    opened = desk.open({"shop": side.slopes(desk.encrypt(residuals))})
    expected = side.matrix.T @ residuals
    error = np.abs(side.unmask(opened["shop"]) - expected)
    assert (error <= 1e-12 * np.abs(matrix).max(axis=0, initial=1e-300)[:, None]).all()


def test_what_the_label_holder_opens_is_under_a_mask(key: PrivateKey) -> None:
    """The same slopes look unrelated under another secret; over many secrets their bits are fair coins."""
    slots, matrix = ResidualSlots(4, 1, key.public.plaintext_bits), np.arange(1.0, 5.0)[:, None]
    residuals = np.array([[0.25], [-0.25], [0.5], [0.0]])
    bits = []
    for i in range(200):
        desk = ResidualDesk(key, slots, {"shop": 1}, bytes(32))
        side = SlopeSide(key.public, slots, matrix, i.to_bytes(32, "little"))
        opened = desk.open({"shop": side.slopes(desk.encrypt(residuals))})["shop"]
        bits.append(np.unpackbits(opened, bitorder="little")[: BITS - 8])
        assert side.unmask(opened)[0, 0] == 0.25 - 0.5 + 1.5
    share = np.mean(bits, axis=0)
    assert np.abs(share - 0.5).max() < 5 * 0.5 / np.sqrt(len(bits))


def test_residuals_of_a_loss_that_has_risen_do_not_fit() -> None:
    with pytest.raises(LocalProtocolError, match="outgrown"):
        ResidualSlots(2, 1, 500).numbers(np.array([[1.5], [-1.5]]))


# --- the same optimum ---


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_same_classifier(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    X = rng.normal(size=(30, 4))
    y = (X @ rng.normal(size=(4, n_classes)) + rng.normal(size=(30, n_classes))).argmax(axis=1)
    clear, encrypted = (
        FederatedLogisticRegression(parties=3, residuals=how, key_bits=BITS, tol=1e-5).fit(X, y, np.arange(30) % 3)
        for how in ("clear", "encrypted")
    )
    assert encrypted.n_iter_ == clear.n_iter_
    np.testing.assert_allclose(encrypted.coef_, clear.coef_, atol=1e-7)
    np.testing.assert_allclose(encrypted.predict_proba(X), clear.predict_proba(X), atol=1e-7)
    in_clear = "the residual of every row"
    assert any(in_clear in row.reveals for row in clear.disclosure_)
    assert not any(in_clear in row.reveals for row in encrypted.disclosure_)


def test_the_same_regression() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 4)) * [1, 1e6, 1e-6, 1]
    y = X @ [1, 1e-6, 1e6, 0] + 0.1 * rng.normal(size=25)
    clear = FederatedLinearRegression(parties=2).fit(X, y)
    encrypted = FederatedLinearRegression(parties=2, residuals="encrypted", key_bits=BITS).fit(X, y)
    np.testing.assert_allclose(encrypted.predict(X), clear.predict(X), rtol=1e-6, atol=1e-7)


def test_who_has_all_columns_needs_no_key() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    y = X[:, 0] > 0
    alone = FederatedLogisticRegression(parties={"bank": [0, 1], "shop": []}, residuals="encrypted").fit(X, y)
    np.testing.assert_allclose(alone.coef_, FederatedLogisticRegression(parties=1).fit(X, y).coef_)


# --- message by message ---


def parties_of() -> dict[str, EncryptedLinearParty]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    target = Target.of_classes(np.where(X.sum(axis=1) + rng.normal(size=N) > 0, "yes", "no"))
    secret = {"bank": b"b" * 32, "shop": b"s" * 32}
    return {
        "bank": EncryptedLinearParty("bank", read_table(X[:, :2]), target=target, job_secret=secret["bank"]),
        "shop": EncryptedLinearParty("shop", read_table(X[:, 2:]), job_secret=secret["shop"]),
    }


Said = list[tuple[str, Message, bytes]]


@pytest.fixture(scope="module")
def said(short_keys: None) -> Said:
    """Party, request and reply of every message of a descent."""
    return play(parties_of(), PLAN)


def replayed(said: Said, parties: Mapping[str, EncryptedLinearParty]) -> None:
    for name, message, reply in said:
        assert encode(parties[name].handle(message)) == reply


def test_whoever_repeats_the_messages_gets_the_same_bytes(said: Said) -> None:
    replayed(said, parties_of())


def first(said: Said, kind: type[Message], after: int = 0) -> int:
    return next(i for i, (_, m, _) in enumerate(said) if i >= after and isinstance(m, kind))


def wrong(said: Said, at: int, **change: Any) -> tuple[str, Message]:
    name, message, _ = said[at]
    return name, msgspec.structs.replace(message, **change)


def test_what_is_wrong_is_refused_and_changes_nothing(said: Said) -> None:
    """Key of another job, tampered ciphertexts, slopes that are opened twice: before each message in turn."""
    parties, n_refused = parties_of(), 0
    ask, opening = first(said, msg.AskSlopes), first(said, msg.OpenSlopes)
    descend = next(i for i, (p, m, _) in enumerate(said) if isinstance(m, msg.DescendMasked) and p == "shop")
    own = next(i for i, (p, m, _) in enumerate(said) if isinstance(m, msg.DescendMasked) and p == "bank")
    other = PrivateKey.generate(BITS, SecretStream(b"2" * 32)).public
    cipher = said[ask][1].ciphertexts  # type: ignore[attr-defined]
    zeros, ones = np.zeros_like(cipher), np.full_like(cipher, 255)
    slopes = said[opening][1].slopes  # type: ignore[attr-defined]
    start = first(said, msg.StartEncrypted)
    number = np.frombuffer(paillier.to_bytes(other.n), np.uint8)
    bad: dict[int, list[tuple[str, Message]]] = {
        start: [
            wrong(said, start, key_bits=BITS - 2),
            wrong(said, start, task="targets"),
            wrong(said, start, columns={"shop": 0}),
            wrong(said, start, strength=-1.0),
            ("bank", linear_messages.StartLinear(
                task="classes", strength=1.0, fit_intercept=True, balanced=False, class_weight=())),
        ],
        first(said, msg.OpenDescent): [
            wrong(said, first(said, msg.OpenDescent), modulus=number[:-1]),
            wrong(said, first(said, msg.OpenDescent), n_scores=0),
            wrong(said, first(said, msg.OpenDescent), penalty=float("nan")),
            ("bank", said[first(said, msg.OpenDescent)][1]),
            ("bank", said[start][1]),  # once
            ("shop", said[ask][1]),
            ("shop", said[descend][1]),
        ],
        ask: [wrong(said, ask, ciphertexts=c) for c in (cipher[:-1], zeros, ones)],
        opening: [
            wrong(said, opening, slopes={}),
            wrong(said, opening, slopes={"shop": slopes["shop"][:-1]}),
            wrong(said, opening, slopes={"shop": np.concatenate([slopes["shop"], cipher[: len(slopes["shop"])]])}),
            wrong(said, opening, slopes={**slopes, "mill": slopes["shop"]}),
            ("shop", said[opening][1]),
        ],
        max(own, descend): [
            ("bank", said[opening][1]),  # once per step
            wrong(said, descend, step=np.zeros(3)),
            wrong(said, descend, slopes=np.zeros(3, np.uint8)),
            wrong(said, own, slopes=np.zeros(64, np.uint8)),
        ] if descend >= own else [],
        first(said, linear_messages.Advance): [("shop", said[first(said, linear_messages.Advance)][1])],
    }  # fmt: skip
    for i, (name, message, reply) in enumerate(said):
        for party, refused in bad.get(i, []):
            n_refused += 1
            with pytest.raises((RemoteProtocolError, CiphertextError)):
                parties[party].handle(refused)
        assert encode(parties[name].handle(message)) == reply
    assert n_refused > 15


def test_tampered_slopes_are_noticed(said: Said) -> None:
    parties = parties_of()
    descend = next(i for i, (p, m, _) in enumerate(said) if isinstance(m, msg.DescendMasked) and p == "shop")
    replayed(said[:descend], parties)
    name, message = wrong(said, descend, slopes=said[descend][1].slopes ^ np.uint8(0x55))  # type: ignore[attr-defined]
    with pytest.raises(CiphertextError, match="more in it than was packed"):
        parties[name].handle(message)
    replayed(said[descend:], parties)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (msg.EncryptedStart, {"n_scores": 0}),
        (msg.OpenedSlopes, {"slopes": {}}),
        (msg.EncryptedResiduals, {"step": np.zeros(5)}),
    ],
)
def test_a_label_holder_that_answers_with_something_else_is_named(kind: type[Message], change: dict[str, Any]) -> None:
    parties = parties_of()

    class Changed:
        def handle(self, message: Message) -> Message:
            reply = parties["bank"].handle(message)
            return msgspec.structs.replace(reply, **change) if isinstance(reply, kind) else reply

    with pytest.raises(RemoteProtocolError, match="bank"):
        play({"bank": Changed(), "shop": parties["shop"]}, PLAN)


def test_as_many_columns_as_rows_would_tell_every_residual() -> None:
    X = np.random.default_rng(0).normal(size=(6, 8))
    model = FederatedLogisticRegression(
        residuals="encrypted", key_bits=BITS, parties={"a": [0, 1], "b": list(range(2, 8))}
    )
    with pytest.raises(DataError, match="b has 6 columns of 6 rows"):
        model.fit(X, [0, 1] * 3)


@pytest.mark.parametrize(
    ("setting", "words"), [({"residuals": "hidden"}, "residuals"), ({"key_bits": 100}, "key_bits")]
)
def test_settings_that_cannot_be(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FederatedLogisticRegression(**setting).fit(np.eye(4), [0, 1, 0, 1])
