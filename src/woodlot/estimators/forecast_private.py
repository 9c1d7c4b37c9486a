"""What a private training will cost, and what it may be worth: epsilon and delta, noise beside rows, and a simulation.

Trees are complete and their depth follows from the number of rows, so bytes and rounds grow evenly with the number of
trees: two small trainings tell both. Seconds are found by the same trials. How well the forest answers depends on data
that nobody has looked at. What public shape alone tells is how much noise a leaf has beside its rows, and how well the
same training answers on made-up rows, with its noise and nearly without.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from woodlot.estimators.forecast_parts import (
    DataShape,
    Forecast,
    Network,
    Outlook,
    fit_made_up,
    made_up_table,
    priced,
    quickest,
)
from woodlot.estimators.private_forest import PrivateForestClassifier, PrivateForestRegressor
from woodlot.exceptions import DataError
from woodlot.protocols.rows.private.private_plan import MOST_EPSILON, PrivatePlan, Terms

PRIVATE = (PrivateForestClassifier, PrivateForestRegressor)
TRIAL_ROWS, TRIAL_TREES = (4_000, 32_000), (4, 20)
SIMULATED_ROWS = 50_000
"""The most rows that are simulated: with more there is less noise beside them."""
FRESH_ROWS = 10_000
"""Made-up rows beyond these, on which the forest is scored."""
SIMULATIONS = 3


def forecast_private(estimator: Any, shape: DataShape, network: Network) -> Forecast:
    """What fitting a private forest will cost; parameters as for `woodlot.estimators.forecast.forecast`."""
    f = max(shape.columns.values())
    if set(shape.columns.values()) != {f}:
        raise DataError("parties of a forest over rows have the same columns: give each the same number")
    clients = len(shape.columns)
    public = {"target_range": (0.0, 1.0)} if shape.classes == 0 else {"classes": list(range(shape.classes))}
    plan = clone(estimator).set_params(declared=None, **public).make_plan()
    try:
        terms = Terms(plan, f if plan.private_knots else 0, clients)
    except ValueError as error:
        raise DataError(str(error)) from None
    depth, trees = plan.depth(shape.rows), plan.n_estimators
    found_here = dict.fromkeys(("declared", *public))
    grown = clone(estimator).set_params(max_depth=depth, **found_here)
    sizes = [(min(shape.rows, n), min(trees, t)) for n in TRIAL_ROWS for t in TRIAL_TREES]
    costs = [model.cost_ for model in quickest(grown, shape, sizes)]
    (_, few), (_, more) = sizes[:2]
    beyond = (trees - more) / max(1, more - few)
    rounds = costs[1].rounds + round(beyond * (costs[1].rounds - costs[0].rounds))
    last, before = costs[1].bytes_by_party, costs[0].bytes_by_party
    by_party = {party: int(last[party] + beyond * (last[party] - before[party])) for party in shape.columns}
    per_row = 4 * f + 8 * (plan.n_scores + 2)
    return Forecast(
        rounds=rounds,
        bytes_by_party=by_party,
        memory_by_party=dict.fromkeys(shape.columns, int(shape.rows / clients * per_row)),
        compute_seconds=priced(
            [[n * f, n * t, t] for n, t in sizes],
            [cost.total_seconds for cost in costs],
            [shape.rows * f, shape.rows * trees, trees],
        ),
        network_seconds=network.seconds(rounds, max(by_party.values())),
        details={"depth": float(depth)},
        outlook=_outlook(grown, shape, plan, terms, depth),
    )


def _outlook(grown: Any, shape: DataShape, plan: PrivatePlan, terms: Terms, depth: int) -> Outlook:
    """What the training costs a row, and what is known of its answers before any row is seen."""
    rows = min(shape.rows, SIMULATED_ROWS)
    fresh, y = made_up_table(shape, rows + FRESH_ROWS)
    fresh, y = fresh[rows:], y[rows:]

    def scores(**params: Any) -> list[float]:
        seeds = range(1, 1 + SIMULATIONS)
        models = (clone(grown).set_params(verbose=0, random_state=seed, **params) for seed in seeds)
        return [float(fit_made_up(model, shape, rows, FRESH_ROWS).score(fresh, y)) for model in models]

    found = scores()
    constant = 0.0 if shape.classes == 0 else float(np.unique(y, return_counts=True)[1].max() / len(y))
    return Outlook(
        epsilon=plan.epsilon,
        delta=plan.delta,
        epsilon_outside=terms.epsilon_against(0),
        rows_per_leaf=shape.rows / 2**depth,
        noise_per_leaf=terms.deviation(terms.n_clients) / terms.gradient_steps,
        measure="R2" if shape.classes == 0 else "accuracy",
        simulated_rows=rows,
        score=float(np.mean(found)),
        spread=float(np.std(found, ddof=1)),
        without_noise=float(np.mean(scores(epsilon=float(MOST_EPSILON)))),
        constant=constant,
    )
