"""Figures of a fitted model, with matplotlib: a tree as a role knows it, importances, scores, what it cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from woodlot.data.extras import need
from woodlot.exceptions import DataError
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.vertical.sight import feature_names, sight_of_tree

COORDINATOR = "coordinator"
COLOURS = ("#2f7d4f", "#3b6fb5", "#b5693b", "#7d4fa3", "#a3883b", "#3b9ca3", "#b53b6a", "#6b7d2f")
_UNKNOWN = "#e7ebe6"


def _axes(ax: Any, width: float, height: float) -> Any:
    if ax is not None:
        return ax
    return need("matplotlib.pyplot", "plot").subplots(figsize=(width, height), layout="constrained")[1]


def plot_tree(model: Any, tree: int = 0, role: str = COORDINATOR, *, max_depth: int = 3, ax: Any = None) -> Any:
    """Draw a tree as one role knows it.

    Parameters
    ----------
    model : estimator
        A fitted forest.
    tree : int, default=0
        Number of the tree.
    role : str, default="coordinator"
        The coordinator, who knows whose coded feature splits a node and the leaves' answers; or a party whose part is
        at hand, which knows its own questions and nothing of the others'.
    max_depth : int, default=3
        Levels below the root that are drawn; up to 7.
    ax : matplotlib axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0).fit(X, y)
    >>> ax = wl.plot_tree(model, tree=0, max_depth=2)
    >>> ax.figure.savefig("tree.png")
    """
    check_is_fitted(model, "forest_")
    forest = model.forest_
    held = {**forest.shared, **forest.parts}
    if role != COORDINATOR and role not in held:
        raise DataError(f"role must be 'coordinator' or a party whose part is at hand: {sorted(held)}, not {role!r}")
    part = forest.coordinator if role == COORDINATOR else held[role]
    # a forest over rows is whole: no role knows only a part of it
    shared = forest.shared if forest.coordinator.parties == (HOLDER,) else {}
    seen = sight_of_tree(part, tree, levels=max_depth + 1, shared=shared)
    nodes = {node["id"]: node for node in seen["nodes"]}
    places: dict[int, tuple[float, int]] = {}
    n_across = _place(nodes, seen["root"], 0, 0, places)
    depth = max(level for _, level in places.values())
    ax = _axes(ax, max(5.0, 1.35 * n_across), 1.1 * (depth + 1) + 0.5)
    parties = forest.coordinator.parties
    for number, node in nodes.items():
        x, level = places[number]
        for child in (node.get("left"), node.get("right")):
            if child is not None:
                cx, below = places[child]
                ax.plot([x, cx], [-level, -below], color="#9aaa9f", lw=1, zorder=1)
        owner = node.get("owner", role if "name" in node else None)
        colour = _UNKNOWN if owner is None else COLOURS[parties.index(owner) % len(COLOURS)]
        box = {"boxstyle": "round,pad=0.4", "facecolor": "white" if node["leaf"] else colour, "edgecolor": "#9aaa9f"}
        ink = "white" if owner is not None and not node["leaf"] else "#1c2620"
        ax.text(x, -level, _words(node), ha="center", va="center", fontsize=8, color=ink, bbox=box, zorder=2)
    ax.set_title(f"Tree {tree} as {role} sees it", fontsize=10)
    ax.set_xlim(-0.8, n_across - 0.2)
    ax.set_ylim(-depth - 0.6, 0.6)
    ax.axis("off")
    return ax


def _place(
    nodes: dict[int, dict[str, Any]], node: int, level: int, left: int, places: dict[int, tuple[float, int]]
) -> int:
    """Put the leaves side by side and each inner node over its children; returns the first place that is free."""
    fact = nodes[node]
    if "left" not in fact:
        places[node] = (left, level)
        return left + 1
    middle = _place(nodes, fact["left"], level + 1, left, places)
    end = _place(nodes, fact["right"], level + 1, middle, places)
    places[node] = ((places[fact["left"]][0] + places[fact["right"]][0]) / 2, level)
    return end


def _words(node: dict[str, Any]) -> str:
    if node["leaf"]:
        answer = node.get("answer", "?")
        if isinstance(answer, list):
            return f"{answer[0][0]}\n{100 * answer[0][1]:.0f} %" if answer else "no rows"
        return f"{answer:.4g}" if isinstance(answer, float) else str(answer)
    more = f"\n(+{node['more']})" if "more" in node else ""
    if "code" in node:
        return f"{node['owner']}\n{node['code']}{more}"
    return (f"{node['name']}\n{node['test']}" if "name" in node else "somebody\nelse's") + more


def plot_importance(model: Any, *, max_features: int = 20, ax: Any = None) -> Any:
    """Draw the impurity importances, coloured by party.

    Columns whose party is at hand have their names; others the code by which the coordinator knows them.

    Parameters
    ----------
    model : estimator
        A fitted forest.
    max_features : int, default=20
        Bars that are drawn, the most important first.
    ax : matplotlib axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0).fit(X, y)
    >>> ax = wl.plot_importance(model, max_features=3)
    >>> len(ax.patches)
    3
    """
    check_is_fitted(model, "forest_")
    forest = model.forest_
    coordinator, held = forest.coordinator, {**forest.shared, **forest.parts}
    names = feature_names(coordinator, {party: part.names for party, part in held.items()})
    values = coordinator.importances()
    order = np.argsort(-values, kind="stable")[:max_features][::-1]
    ax = _axes(ax, 6.4, 0.6 + 0.28 * len(order))
    for number, party in enumerate(coordinator.parties):
        mine = [place for place, feature in enumerate(order) if coordinator.feature_party[feature] == number]
        bars = [values[order[place]] for place in mine]
        ax.barh(mine, bars, color=COLOURS[number % len(COLOURS)], label=party)
    ax.set_yticks(range(len(order)), [names[feature] for feature in order])
    ax.set_xlabel("share of the decrease of impurity")
    if len(coordinator.parties) > 1:
        ax.legend(frameon=False)
    return ax


def plot_oob_curve(model: Any, *, ax: Any = None) -> Any:
    """Draw the out-of-bag score by number of trees: where it is flat, more trees would not help.

    Parameters
    ----------
    model : estimator
        A forest that was fitted with ``oob_score=True``.
    ax : matplotlib axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.FederatedForestClassifier(n_estimators=20, oob_score=True, random_state=0).fit(X, y)
    >>> ax = wl.plot_oob_curve(model)
    >>> ax.get_ylabel()
    'accuracy, out of bag'
    """
    check_is_fitted(model, "forest_")
    if not hasattr(model, "oob_curve_"):
        raise DataError("this model was not scored out of bag; fit it with oob_score=True")
    ax = _axes(ax, 6.4, 3.6)
    ax.plot(model.oob_curve_.n_trees, model.oob_curve_.score, color=COLOURS[0], marker="o", markersize=4)
    ax.set_xlabel("trees")
    ax.set_ylabel(f"{'accuracy' if hasattr(model, 'classes_') else 'R²'}, out of bag")
    ax.set_xlim(left=0)
    return ax


def plot_cost(model: Any, *, ax: Any = None) -> Any:
    """Draw the seconds of a fit by phase and, of all of them, the network's; with rounds and bytes in the title.

    Parameters
    ----------
    model : estimator
        A fitted model.
    ax : matplotlib axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0).fit(X, y)
    >>> ax = wl.plot_cost(model)
    >>> ax.get_xlabel()
    'seconds'
    """
    check_is_fitted(model, "cost_")
    cost = model.cost_
    bars = [(phase, seconds, COLOURS[0]) for phase, seconds in cost.seconds.items()]
    if cost.network_seconds:
        bars.append(("of which network", cost.network_seconds, COLOURS[1]))
    ax = _axes(ax, 6.4, 0.9 + 0.35 * len(bars))
    names, seconds, colours = zip(*bars[::-1], strict=True)
    ax.barh(names, seconds, color=colours)
    ax.set_xlabel("seconds")
    ax.set_title(repr(cost).partition("\n")[0], fontsize=10)
    return ax
