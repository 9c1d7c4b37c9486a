"""Figures of models, and what notebooks show."""

from __future__ import annotations

import sys
from copy import copy
from typing import Any

import matplotlib
import pandas as pd
import pytest

import woodlot as wl
from companies import classifier, federation
from woodlot.exceptions import DataError, MissingExtraError
from woodlot.runtime.audit import Cost

matplotlib.use("agg")


@pytest.fixture(scope="module")
def model() -> Any:
    return classifier(n_estimators=3, max_depth=5).fit(federation(), y="bank.default")


def texts(ax: Any) -> str:
    return "\n".join(text.get_text() for text in ax.texts)


def test_a_tree_shows_what_the_role_knows_and_no_more(model: Any) -> None:
    bank, shop = texts(wl.plot_tree(model, 0, "bank")), texts(wl.plot_tree(model, 0, "shop"))
    coordinator = texts(wl.plot_tree(model, 0))
    assert "≤" in bank
    assert "visits" not in bank
    assert "colour" not in bank
    assert "age" not in shop
    assert "income" not in shop
    assert "≤" not in coordinator
    assert "bank" in coordinator
    with pytest.raises(DataError, match="mallory"):
        wl.plot_tree(model, 0, "mallory")
    with pytest.raises(DataError, match="no tree 9"):
        wl.plot_tree(model, 9)


def test_importances_have_names_where_the_party_is_at_hand(model: Any) -> None:
    ax = wl.plot_importance(model)
    assert {label.get_text() for label in ax.get_yticklabels()} == {"age", "income", "visits", "colour"}
    widths = sorted(bar.get_width() for bar in ax.patches)
    assert widths == pytest.approx(sorted(model.feature_importances_))


def test_scores_by_number_of_trees(model: Any) -> None:
    with pytest.raises(DataError, match="oob_score=True"):
        wl.plot_oob_curve(model)
    scored = classifier(n_estimators=20, oob_score=True).fit(federation(), y="bank.default")
    ax = wl.plot_oob_curve(scored)
    assert ax.lines[0].get_xydata().tolist() == [list(point) for point in scored.oob_curve_.points()]
    assert ax.get_ylabel() == "accuracy, out of bag"


def test_cost_has_every_phase(model: Any) -> None:
    ax = wl.plot_cost(model)
    assert {label.get_text() for label in ax.get_yticklabels()} == set(model.cost_.seconds)


def test_cost_has_the_networks_share(model: Any) -> None:
    networked = copy(model)
    networked.cost_ = Cost(rounds=2, seconds={"grow": 3.0}, network_seconds=1.0, wire_bytes=5)
    ax = wl.plot_cost(networked)
    widths = [bar.get_width() for bar in ax.patches]
    assert dict(zip([label.get_text() for label in ax.get_yticklabels()], widths, strict=True)) == {
        "grow": 3.0,
        "of which network": 1.0,
    }


def test_notebooks_show_tables_and_no_markup_of_others(model: Any) -> None:
    shown = federation()._repr_html_()
    assert "<td>bank</td><td>3 columns</td>" in shown
    assert "<td>bank</td>" in model.forest_._repr_html_()
    assert "rounds" in model.cost_._repr_html_()
    assert "GrowLevel" in model.disclosure_._repr_html_()
    evil = wl.Federation.local({"a<b": pd.DataFrame({"x": [1.0]})})
    assert "a<b" not in evil._repr_html_()


def test_without_matplotlib_the_extra_is_named(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib is not installed.*woodlot\[plot\]"):
        wl.plot_importance(model)
