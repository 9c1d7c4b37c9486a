"""An answer divided into steps, what forms offer, and ids that a person has typed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from woodlot.dashboard.actions import Contribution
from woodlot.dashboard.choices import Chosen, choices_of
from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.watching import read_ids, why_not
from woodlot.dashboard.waterfall import STEPS_SHOWN, falls
from woodlot.evaluation.explanations import Explanation
from woodlot.jobs.job_messages import ModelFacts

parts = arrays.arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 20)), elements=st.floats(-1, 1))


@given(parts, st.floats(-5, 5))
def test_steps_lead_from_the_mean_to_the_answer(values: np.ndarray[Any, Any], base: float) -> None:
    features = tuple(f"{'bank' if k % 2 else 'shop'}.{k}" for k in range(values.shape[1]))
    owners = tuple(name.split(".")[0] for name in features)
    found = falls(Explanation(values, base, base + values.sum(axis=1), features, owners), 2)
    assert len(found) == min(2, len(values))
    for row, fall in enumerate(found):
        assert fall.base + sum(step.value for step in fall.steps) == pytest.approx(fall.answer, abs=1e-9)
        assert sum(fall.by_party.values()) == pytest.approx(fall.answer - fall.base, abs=1e-9)
        assert len(fall.steps) <= STEPS_SHOWN + 1
        assert fall.steps[0].start == pytest.approx(fall.base_at)
        assert fall.steps[-1].end == pytest.approx(fall.answer_at, abs=1e-6)
        for before, after in zip(fall.steps, fall.steps[1:], strict=False):
            assert before.end == pytest.approx(after.start)
        assert all(-1e-6 <= place <= 100 + 1e-6 for step in fall.steps for place in (step.start, step.end))
        assert fall.row == str(row + 1)


def test_the_second_of_two_classes_is_explained() -> None:
    values = np.array([[[-0.2, 0.2], [0.1, -0.1]]])
    explanation = Explanation(
        values, np.array([0.5, 0.5]), np.array([[0.4, 0.6]]), ("bank.age", "shop"), ("bank", "shop"),
        np.array(["no", "yes"]), np.array([True]), {"bank.age": ("44",)}, np.array([1017]),
    )  # fmt: skip
    (fall,) = falls(explanation, 5)
    assert (fall.row, fall.output, fall.answer) == ("1017", "the probability of yes", 0.6)
    assert [(step.name, step.owner, step.text) for step in fall.steps] == [
        ("bank.age", "bank", "44"),
        ("shop", "shop", ""),
    ]
    assert fall.is_uncertain
    assert fall.amount(fall.steps[0].value) == "+0.200"
    assert "bank: age (44) raised the probability of 'yes'" in fall.reasons[0]


def test_ids_as_a_person_types_them() -> None:
    assert read_ids(" 17, 4;5\n6 ", as_text=False) == [17, 4, 5, 6]
    assert read_ids("17, 4", as_text=True) == ["17", "4"]
    assert read_ids("017, 4", as_text=False) == ["017", "4"]
    assert read_ids("", as_text=False) == []


def facts(**changes: Any) -> ModelFacts:
    plain: dict[str, Any] = {
        "model": "m", "name": "", "user": "alice", "created": 0.0, "forest": "", "parties": ("bank", "shop"),
        "holder": "bank", "n_rows": 1, "n_trees": 1, "n_nodes": 1, "splits": {}, "classes": (), "complete": False,
        "unwilling": (), "oob_score": None, "settings": "{}", "disclosure": "[]", "cost": "{}",
    }  # fmt: skip
    return ModelFacts(**(plain | changes))


def test_what_forms_offer_and_take() -> None:
    source = SimpleNamespace(labels=("late",))
    bank = cast(PartyView, SimpleNamespace(tables={"b": source, "a": source}))
    offered = choices_of(facts(), {"bank": bank})
    assert offered.tables == {"bank": ("a", "b"), "shop": ()}
    assert offered.labels == ("bank.late",)
    assert choices_of(facts(layout="rows", holder=""), {"bank": bank}).labels == ("late",)
    assert choices_of(facts(holder="shop"), {"bank": bank}).labels == ()
    assert Chosen({"bank": "a b=c", "elsewhere": "x"}).tables(facts()) == {"bank": "a b=c"}
    assert Chosen(text="bank=a shop=b").tables(facts()) == {"bank": "a", "shop": "b"}
    assert Chosen(text=" customers ").tables(facts()) == {"bank": "customers", "shop": "customers"}


def test_why_a_model_is_not_explained() -> None:
    assert why_not(facts(led_by="bank")) == ""
    reasons = [why_not(facts()), why_not(facts(layout="rows")), why_not(facts(led_by="bank", grown="hidden"))]
    reasons += [why_not(facts(led_by="bank", revocable=True))]
    assert len(set(reasons)) == 4
    assert all(reasons)


def test_alone_against_together() -> None:
    scores = {frozenset[str](): 0.5, frozenset({"a"}): 0.6, frozenset({"b"}): 0.7, frozenset({"a", "b"}): 0.9}
    found = Contribution("done", scores=scores, shares={"b": 0.25, "a": 0.15})
    assert found.alone() == {"no party": 0.5, "a alone": 0.6, "b alone": 0.7, "together": 0.9}
    assert Contribution("done", scores={frozenset({"a"}): 0.6}, shares={"a": 0.1}).alone() == {"a alone": 0.6}
