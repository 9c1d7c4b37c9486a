"""The complete model is the coordinator's only where every party that splits a node agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import woodlot as wl
from companies import ALL, FEATURES, N, classifier, federation
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.protocols.vertical.forest_messages import RevealSplits, SplitTable
from woodlot.protocols.vertical.reveal import reveal_splits


@pytest.fixture(scope="module")
def fitted() -> wl.FederatedForestClassifier:
    return classifier().fit(federation(), y="bank.default")


def test_without_consent_nobody_hands_out_the_model(fitted: wl.FederatedForestClassifier, tmp_path: Any) -> None:
    words = r"\['bank', 'shop'\] did not agree to share the model.*\['bank', 'shop'\] stay.*combine\(folders\)"
    for ask in (fitted.combine, lambda: fitted.apply(ALL[FEATURES]), lambda: fitted.predict(ALL[FEATURES])):
        with pytest.raises(PolicyError, match=words):
            ask()
    assert not hasattr(fitted, "estimators_")
    assert fitted.forest_.shared == {}
    assert not any(row.kind in ("RevealSplits", "SplitTable") for row in fitted.disclosure_)
    assert fitted.predict(federation()).shape == (N,)
    fitted.save(tmp_path / "model")
    folders = [tmp_path / "model" / "party-bank", tmp_path / "model" / "party-shop"]
    complete = fitted.combine(folders)
    np.testing.assert_array_equal(complete.predict_proba(ALL[FEATURES]), fitted.predict_proba(federation()))
    with pytest.raises(PolicyError, match=r"so the parts of \['shop'\] stay"):
        fitted.combine(folders[:1])
    with pytest.raises(PolicyError):
        fitted.combine()  # what was handed over once is not kept


def test_one_who_does_not_agree_is_enough() -> None:
    model = classifier().fit(federation(shares_model=["bank"]), y="bank.default")
    with pytest.raises(
        PolicyError, match=r"\['shop'\] did not agree to share the model, so the parts of \['bank', 'shop'\]"
    ):
        model.combine()
    assert not any(row.kind == "SplitTable" for row in model.disclosure_)


@pytest.mark.parametrize("shares", [True, ["bank", "shop"]])
def test_with_consent_of_all_the_coordinator_has_the_model(shares: Any, fitted: wl.FederatedForestClassifier) -> None:
    model = classifier().fit(federation(shares_model=shares), y="bank.default")
    proba = model.predict_proba(ALL[FEATURES])
    np.testing.assert_array_equal(proba, fitted.predict_proba(federation()))
    np.testing.assert_array_equal(model.predict_proba(federation()), proba)
    assert model.combine().feature_names == ("age", "income", "visits", "colour")
    revealed = [row for row in model.disclosure_ if row.kind == "SplitTable"]
    assert {(row.sender, row.receiver) for row in revealed} == {("bank", "coordinator"), ("shop", "coordinator")}
    assert "reveal" in model.cost_.seconds
    assert model.forest_.shared["shop"] is not model.forest_.parts["shop"]  # it came over the wire
    assert "complete model" in repr(model.forest_)
    assert "parts stay with the parties" in repr(fitted.forest_)


def test_who_splits_nothing_need_not_agree() -> None:
    rows = ALL.assign(visits=1.0, colour="red")
    model = classifier(n_estimators=3).fit(federation(rows, shares_model=["bank"]), y="bank.default")
    assert model.forest_.unwilling == ()
    assert set(model.forest_.shared) == {"bank"}
    exported = model.combine().to_sklearn()
    assert exported.predict(rows[["age", "income"]]).tolist() == model.predict(federation(rows)).tolist()


def test_a_party_that_reveals_nonsense_is_refused(fitted: wl.FederatedForestClassifier) -> None:
    forest = fitted.forest_

    def reveal(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        protocol = reveal_splits(forest.coordinator)
        step = next(protocol)
        assert all(isinstance(request, RevealSplits) for request in step.requests.values())
        replies = {}
        for party in step.requests:
            part = forest.parts[party]
            told = {
                "node": part.splits.node.astype(np.uint32), "feature": part.splits.feature.astype(np.uint32),
                "threshold": part.splits.threshold, "missing_left": part.splits.missing_left.astype(np.uint8),
                "set_start": part.splits.set_start, "sets": part.splits.sets, "names": part.names,
                "categories": tuple(getattr(c, "categories", None) for c in part.codings),
            }  # fmt: skip
            replies[party] = SplitTable(**(change(told) if party == "shop" else told))
        with pytest.raises(StopIteration) as end:
            protocol.send(replies)
        return end.value.value

    parts = reveal(lambda told: told)
    np.testing.assert_array_equal(parts["shop"].splits.node, forest.parts["shop"].splits.node)
    for change in (
        lambda told: told | {"node": told["node"] + np.uint32(1)},
        lambda told: told | {"node": told["node"][:-1]},
        lambda told: told | {"feature": told["feature"] + np.uint32(2)},
        lambda told: told | {"feature": np.uint32(1) - told["feature"]},
        lambda told: told | {"threshold": told["threshold"] * np.nan},
        lambda told: told | {"set_start": told["set_start"] + 1},
        lambda told: told | {"sets": told["sets"][:-1]},
        lambda told: told | {"names": (*told["names"], "more")},
        lambda told: told | {"names": ("same", "same")},
        lambda told: told | {"categories": (None, None)},
        lambda told: told | {"categories": told["categories"][::-1]},
    ):
        with pytest.raises(RemoteProtocolError, match="shop revealed"):
            reveal(change)
