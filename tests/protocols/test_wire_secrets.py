"""What must not travel does not: the bytes of every message of training and prediction are searched for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from wire_search import captured, floats, found, integers, texts
from woodlot import FederatedForestClassifier, FederatedForestRegressor, Federation
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical import forest_messages as msg
from woodlot.runtime import codec

N = 60
CLASSES = ["defaulted-badly", "paid-in-full", "still-running"]
Forest = FederatedForestClassifier | FederatedForestRegressor


def numbers(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Values whose bits are all in use, so that they are not found by chance."""
    return rng.uniform(low, high, N)


def tables(regression: bool) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(17)
    ids = [f"customer-{n}" for n in rng.integers(10**8, 10**9, N)]
    income, visits, basket = numbers(rng, 1e4, 1e5), numbers(rng, -1e3, 1e3), numbers(rng, 1e-3, 1e-2)
    basket[::7] = np.nan
    town = np.array(["Winterthur", "Zofingen", "Aarau-Rohr", "Bellinzona"], object)[rng.integers(0, 4, N)]
    signal = income / 1e5 + visits / 2e3 + rng.normal(size=N) * 0.3
    label: Any = signal * 12345.678 if regression else np.array(CLASSES)[np.digitize(signal, [0.3, 0.8])]
    bank = pd.DataFrame({"customer_number": ids, "annual income": income, "home town": town, "outcome": label})
    shop = pd.DataFrame({"customer_number": ids, "yearly visits": visits, "mean basket": basket})
    return {"bank": bank, "shop": shop.sample(frac=1.0, random_state=1)}


def secrets_of(frames: dict[str, pd.DataFrame]) -> dict[str, list[bytes]]:
    """What no message may hold, by kind."""
    columns = [frame[c] for frame in frames.values() for c in frame.columns if c != "outcome"]
    number_columns = [c.to_numpy() for c in columns if c.dtype.kind == "f"]
    ids = frames["bank"]["customer_number"]
    return {
        "values": list(floats(np.concatenate(number_columns))),
        "categories": list(texts(frames["bank"]["home town"].unique())),
        "names of columns": list(texts(c.name for c in columns)) + list(texts(["outcome"])),
        "ids": [*texts(ids), *integers(int(i.removeprefix("customer-")) for i in ids)],
    }


def forest_of(regression: bool) -> Forest:
    kind = FederatedForestRegressor if regression else FederatedForestClassifier
    return kind(25, random_state=3, oob_score=True, max_features=2)


def run_everything(regression: bool, shares_model: bool = False) -> tuple[Forest, list[bytes], dict[str, list[bytes]]]:
    """Train, score, and predict in every way; returns the messages and the thresholds among the secrets."""
    frames = tables(regression)
    federation = Federation.local(frames, id="customer_number", shares_model=shares_model)
    with captured() as messages:
        model = forest_of(regression).fit(federation, "bank.outcome")
        for wire in ("decisions", "leaves", "ranks"):
            model.predict(federation, method="one-round", wire=wire)  # type: ignore[arg-type]
        model.predict(federation, method="classical")
        model.permutation_importance(federation, n_repeats=1, random_state=0)
    secrets = secrets_of(frames)
    thresholds = [part.splits.threshold for part in model.forest_.parts.values()]
    assert sum(map(len, thresholds)) > 20
    secrets["thresholds"] = list(floats(np.concatenate(thresholds)))
    return model, messages, secrets


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
def test_no_secret_travels(regression: bool) -> None:
    _, messages, secrets = run_everything(regression)
    kinds = {type(codec.decode(m)) for m in messages}
    assert {msg.Offers, msg.Partition, msg.Decisions, msg.ReachableLeaves, msg.Ranks, msg.Sides} <= kinds
    assert msg.SplitTable not in kinds
    assert found(secrets, messages) == {}


def test_names_of_classes_go_to_the_coordinator_only() -> None:
    _, messages, _ = run_everything(False)
    assert found({"classes": list(texts(CLASSES))}, messages) == {"classes": {"EncodedLabels"}}


def test_targets_reach_nobody_but_as_the_models_answers() -> None:
    """Leaves of one row answer with its target: the model's own answers, between holder and coordinator."""
    _, messages, _ = run_everything(True)
    targets = {"targets": list(floats(tables(True)["bank"]["outcome"].to_numpy()))}
    assert set().union(*found(targets, messages).values()) <= {"LeafTotals", "OutOfBagAnswers", "OutOfBagScores"}


def test_labels_travel_under_a_code() -> None:
    """Class numbers in clear are not what is sent, unless the permutation happens to be none."""
    frames = tables(False)
    numbers_in_clear = np.unique(frames["bank"]["outcome"], return_inverse=True)[1]
    codes = set()
    for seed in range(8):
        with captured() as messages:
            federation = Federation.local(frames, id="customer_number")
            FederatedForestClassifier(1, random_state=seed).fit(federation, "bank.outcome")
        for message in map(codec.decode, messages):
            if isinstance(message, msg.StartForest):
                assert message.labels is not None
                pairs = set(zip(numbers_in_clear.tolist(), message.labels.tolist(), strict=True))
                assert len(pairs) == 3  # a permutation, nothing less
                codes.add(tuple(sorted(pairs)))
    assert len(codes) > 2


# --- the search itself ---


def test_consent_shows_that_the_search_finds_names_and_thresholds() -> None:
    model, messages, secrets = run_everything(False, shares_model=True)
    hits = found(secrets, messages)
    assert set().union(*hits.values()) == {"SplitTable"}
    assert {"names of columns", "thresholds", "categories"} <= set(hits)
    assert model.combine().splits.threshold.size > 20


def plant_score(value: float) -> Message:
    return msg.Offers(score=np.array([0.5, value]), feature=np.zeros(2, np.uint8))


PLANTED: dict[str, Callable[[dict[str, pd.DataFrame]], Message]] = {
    "values": lambda t: plant_score(t["bank"]["annual income"].iloc[40]),
    "values as float32": lambda t: msg.Partition(
        flags=np.frombuffer(b"xyz" + np.float32(t["shop"]["yearly visits"].iloc[3]).tobytes(), np.uint8)
    ),
    "values as text": lambda t: msg.SplitTable(
        node=np.zeros(0, np.uint32),
        feature=np.zeros(0, np.uint32),
        threshold=np.zeros(0),
        missing_left=np.zeros(0, np.uint8),
        set_start=np.zeros(1, np.int64),
        sets=np.zeros(0, np.uint8),
        names=(f"more than {t['bank']['annual income'].iloc[7]!r}".replace("np.float64(", ""),),
        categories=(None,),
    ),
    "categories": lambda t: msg.EncodedLabels(
        labels=None, targets=None, weights=None, weight_factor=1.0, classes=("from Zofingen",), unit=1.0
    ),
    "names of columns": lambda t: msg.EncodedLabels(
        labels=None, targets=None, weights=None, weight_factor=1.0, classes=("annual income",), unit=1.0
    ),
    "ids": lambda t: msg.PlantTrees(
        first_tree=int(t["bank"]["customer_number"].iloc[9].removeprefix("customer-")),
        n_trees=1,
        candidates=np.ones(1, np.uint8),
    ),
    "ids as text": lambda t: msg.Partition(
        flags=np.frombuffer(t["bank"]["customer_number"].iloc[9].encode("utf-16-le"), np.uint8)
    ),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_the_search_finds_what_is_planted(kind: str) -> None:
    frames = tables(False)
    message = PLANTED[kind](frames)
    hits = found(secrets_of(frames), [codec.encode(message)])
    assert hits == {kind.split(" as ")[0]: {type(message).__name__}}


def test_the_search_finds_nothing_in_an_innocent_message() -> None:
    innocent = codec.encode(plant_score(0.25))
    assert found(secrets_of(tables(False)), [innocent]) == {}
