"""Linear models message by message: what is not due or cannot be is refused, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import check_grad

from woodlot.data.tables import read_table
from woodlot.exceptions import DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.linear import linear_messages as msg
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.protocols.linear.linear_party import LinearParty, whitening
from woodlot.protocols.linear.linear_train import fit_linear, predict_linear
from woodlot.protocols.linear.loss import Logistic, Loss, Multinomial, Squares
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers import Handler

N = 40
PLAN = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=30,
    tol=1e-7,
)  # fmt: skip


def parties_of(seed: int = 0) -> dict[str, LinearParty]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 4))
    target = Target.of_classes(np.where(X.sum(axis=1) + rng.normal(size=N) > 0, "yes", "no"))
    return {
        "bank": LinearParty("bank", read_table(X[:, :2]), target=target),
        "shop": LinearParty("shop", read_table(X[:, 2:])),
    }


def play(parties: Mapping[str, Handler], plan: LinearPlan = PLAN) -> list[tuple[str, Message, bytes]]:
    """Fit by hand; returns party, request and reply of every message."""
    protocol, said = fit_linear(plan, tuple(name for name in parties if name != "dealer"), "bank"), []
    step = next(protocol)
    while True:
        replies = {}
        for name, message in step.requests.items():
            data = encode(parties[name].handle(message))
            said.append((name, message, data))
            replies[name] = decode(data)
        try:
            step = protocol.send(replies)
        except StopIteration:
            return said


@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["squares", "logistic", "multinomial"]))
@settings(max_examples=15, deadline=None)
def test_residuals_and_second_derivatives_are_those_of_the_loss(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    n, k = 7, 3 if kind == "multinomial" else 1
    weights = rng.random(n) + 0.1
    weights /= weights.sum()
    losses: dict[str, Loss] = {
        "squares": Squares(rng.normal(size=n), weights),
        "logistic": Logistic(rng.integers(0, 2, n), weights),
        "multinomial": Multinomial(rng.integers(0, 3, n), 3, weights),
    }
    loss = losses[kind]
    at = rng.normal(size=n * k)
    error = check_grad(lambda s: loss.value(s.reshape(n, k)), lambda s: loss.residuals(s.reshape(n, k)).ravel(), at)
    assert error < 1e-6
    images = rng.normal(size=(2, n, k))
    along = np.concatenate([images.reshape(2, -1), np.tile(np.eye(k), n)])
    h = 1e-5
    expected = [
        (loss.residuals((at + h * d).reshape(n, k)) - loss.residuals((at - h * d).reshape(n, k))).ravel() / (2 * h)
        for d in along
    ]
    np.testing.assert_allclose(loss.hessian(at.reshape(n, k), images), np.array(expected) @ along.T, atol=1e-7)


def test_a_direction_allows_for_a_partys_own_correlations() -> None:
    X = np.random.default_rng(0).normal(size=(30, 5))
    np.testing.assert_allclose(whitening(X, 0.5, 0.25) @ (0.25 * X.T @ X / 30 + 0.5 * np.eye(5)), np.eye(5), atol=1e-12)
    many = np.random.default_rng(0).normal(size=(3, 2001))
    np.testing.assert_allclose(whitening(many, 0.1, 1.0), 1 / ((many**2).mean(axis=0) + 0.1))


def test_whoever_repeats_the_messages_gets_the_same_bytes() -> None:
    said = play(parties_of())
    again = parties_of()
    for name, message, reply in said:
        assert encode(again[name].handle(message)) == reply


@pytest.mark.parametrize("weights", [np.ones(N - 1), np.zeros(N), np.full(N, np.nan), -np.ones(N)])
def test_weights_that_cannot_be_are_refused(weights: NDArray[np.float64]) -> None:
    said, shop = play(parties_of()), parties_of()["shop"]
    shop.handle(msg.OpenLinear(centred=True, standardised=True))
    first = next(m for name, m, _ in said if name == "shop" and isinstance(m, msg.Descend))
    with pytest.raises(RemoteProtocolError, match="one number per row, none negative and not all 0"):
        shop.handle(msgspec.structs.replace(first, weights=weights))
    reply = next(r for name, m, r in said if m is first and name == "shop")
    assert encode(shop.handle(first)) == reply


def test_the_label_holder_notices_weights_that_are_not_its_own() -> None:
    bank, said = parties_of()["bank"], play(parties_of())
    own = [m for name, m, _ in said if name == "bank"]
    first = next(i for i, m in enumerate(own) if isinstance(m, msg.Descend))
    for message in own[:first]:
        bank.handle(message)
    with pytest.raises(RemoteProtocolError, match="not those that this party has sent"):
        bank.handle(msgspec.structs.replace(own[first], weights=np.ones(N)))


def wrong_messages(said: list[tuple[str, Message, bytes]]) -> list[tuple[str, Message]]:
    descend = next(m for _, m, _ in said if isinstance(m, msg.Descend) and len(m.step))
    advance = next(m for _, m, _ in said if isinstance(m, msg.Advance))
    nan = np.full_like(descend.residuals, np.nan)
    changes: list[tuple[str, Message, dict[str, Any]]] = [
        ("shop", descend, {"step": np.zeros(7)}),
        ("shop", descend, {"step": np.array([np.inf])}),
        ("shop", descend, {"residuals": descend.residuals[:-1]}),
        ("shop", descend, {"residuals": nan}),
        ("shop", descend, {"residuals": np.zeros((N, 2))}),
        ("shop", descend, {"penalty": -1.0}),
        ("shop", descend, {"curvature": float("nan")}),
        ("shop", descend, {"weights": np.ones(N)}),
        ("bank", advance, {"scores": advance.scores[:-1]}),
        ("bank", advance, {"scores": np.full_like(advance.scores, np.inf)}),
        ("bank", advance, {"products": np.zeros((9, 9))}),
        ("shop", advance, {}),
        ("shop", msg.AskScores(), {}),
        ("shop", msg.OpenLinear(centred=True, standardised=True), {}),
    ]
    return [(name, msgspec.structs.replace(message, **change)) for name, message, change in changes]


def test_what_is_wrong_is_refused_and_changes_nothing() -> None:
    said = play(parties_of())
    middle = next(i for i, (_, m, _) in enumerate(said) if isinstance(m, msg.Advance))
    parties = parties_of()
    for name, message, _ in said[:middle]:
        parties[name].handle(message)
    for name, message in wrong_messages(said):
        with pytest.raises(RemoteProtocolError):
            parties[name].handle(message)
    for name, message, reply in said[middle:]:
        assert encode(parties[name].handle(message)) == reply
    stranger = parties_of()["shop"]
    stranger.handle(msg.OpenLinear(centred=True, standardised=True))
    with pytest.raises(RemoteProtocolError, match="Unexpected FinishLinear; expected after the first Descend"):
        stranger.handle(msg.FinishLinear())
    start = msg.StartLinear(task="classes", strength=1.0, fit_intercept=True, balanced=False, class_weight=())
    with pytest.raises(DataError, match="no labels"):
        stranger.handle(start)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (msg.LinearStarted, {"residuals": np.zeros((N - 1, 1))}),
        (msg.PartialScores, {"scores": np.zeros((N, 2))}),
        (msg.PartialScores, {"scores": np.full((N, 1), np.nan)}),
        (msg.PartialScores, {"products": np.zeros((3, 3))}),
        (msg.Residuals, {"step": np.zeros(5)}),
        (msg.Residuals, {"residuals": np.full((N, 1), np.inf)}),
        (msg.LinearFit, {"intercept": np.zeros(2)}),
        (msg.LinearSummary, {"n_rows": N + 1}),
    ],
)
def test_a_party_that_answers_with_something_else_is_named(kind: type[Message], change: dict[str, Any]) -> None:
    parties, protocol = parties_of(), fit_linear(PLAN, ("bank", "shop"), "bank")
    step = next(protocol)

    def on() -> None:
        nonlocal step
        while True:
            replies = {name: parties[name].handle(message) for name, message in step.requests.items()}
            name = next(iter(replies))
            if isinstance(replies[name], kind):
                replies[name] = msgspec.structs.replace(replies[name], **change)
            step = protocol.send(replies)

    with pytest.raises((RemoteProtocolError, DataError), match=r"bank|different numbers of rows"):
        on()


def test_a_party_takes_the_residuals_of_one_loss_only() -> None:
    """What can be told without labels: residuals of all rows add up to 1, and the loss stays the same."""
    parties = parties_of()
    tried = 0
    for name, message, reply in play(parties_of()):
        if isinstance(message, msg.Descend) and name == "shop":
            one = np.zeros_like(message.residuals)
            one[3] = 1.5
            wrong = [{"residuals": one}, {"residuals": message.residuals * 1e3}]
            if tried:
                wrong += [{"penalty": message.penalty * 2}, {"curvature": message.curvature / 2}]
            for fields in wrong:
                with pytest.raises(RemoteProtocolError, match=r"no loss has|in the middle of a descent"):
                    parties[name].handle(msgspec.structs.replace(message, **fields))
            tried += 1
        assert encode(parties[name].handle(message)) == reply
    assert tried > 1


def test_shares_of_the_wrong_shape_do_not_predict() -> None:
    parties = parties_of()
    said = play(parties)
    assert isinstance(said[-1][1], msg.FinishLinear)
    protocol = fit_linear(PLAN, ("bank", "shop"), "bank")
    again = parties_of()
    step = next(protocol)
    model = None
    while model is None:
        try:
            step = protocol.send({name: again[name].handle(message) for name, message in step.requests.items()})
        except StopIteration as end:
            model = end.value
    asking = predict_linear(model, ("bank", "shop"), N)
    next(asking)
    with pytest.raises(RemoteProtocolError, match="bank sent scores of shape"):
        asking.send({p: msg.Scores(scores=np.zeros((N - 1, 1)), known=None) for p in ("bank", "shop")})
    with pytest.raises(LocalProtocolError):
        msg.Scores(scores=np.zeros(N), known=None)  # type: ignore[arg-type]
