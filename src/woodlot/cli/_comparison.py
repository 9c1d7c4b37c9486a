"""What the demonstration measures: forests alone, in one place, and federated. No output of its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score, roc_auc_score

from woodlot import CompleteForest, FederatedForestClassifier, Federation
from woodlot.cli._companies import ID, LABEL, Companies, make_companies
from woodlot.runtime.audit import Cost, Disclosures

Y = f"bank.{LABEL}"
WARM_UP_TREES = 2
N_JOBS = -1


@dataclass(frozen=True)
class Result:
    """One model on the test customers."""

    name: str
    accuracy: float
    auc: float
    fit_seconds: float
    predict_seconds: float
    rounds: int | None = None
    bytes: int | None = None
    """Rounds and bytes of the training; None where nothing travels."""


@dataclass(frozen=True)
class Identity:
    """What was compared bit by bit, and whether it was the same."""

    same_forest: bool
    n_trees: int
    n_nodes: int
    same_answers: bool
    n_answers: int

    @property
    def holds(self) -> bool:
        """Whether nothing differed."""
        return self.same_forest and self.same_answers


@dataclass(frozen=True)
class Comparison:
    """Everything that the demonstration shows."""

    companies: Companies
    n_train: int
    n_test: int
    results: tuple[Result, ...]
    identity: Identity
    prediction_cost: Cost
    disclosure: Disclosures


@dataclass(frozen=True)
class _Joined:
    """All columns in one place, which in reality nobody has: rows in the order of the federation."""

    table: pa.Table
    labels: NDArray[Any]


def compare(n_common: int, n_trees: int, seed: int, begin: Callable[[str], None]) -> Comparison:
    """Make the tables, then grow and test every forest; ``begin`` is told of each step."""
    begin("making the tables of a bank and a shop")
    companies = make_companies(n_common, seed)
    bank, shop = (
        [f"{p}.{c}" for c in cs] for p, cs in (("bank", companies.bank_columns), ("shop", companies.shop_columns))
    )
    train = Federation.local({"bank": companies.bank_train, "shop": companies.shop}, id=ID)
    test = Federation.local({"bank": companies.bank_test, "shop": companies.shop}, id=ID)
    joined, asked = _join(train, companies.bank_train, companies), _join(test, companies.bank_test, companies)

    def forest(trees: int = n_trees, **options: Any) -> FederatedForestClassifier:
        return FederatedForestClassifier(trees, random_state=seed, n_jobs=N_JOBS, **options)

    begin("getting ready (the first run compiles its kernels)")
    # on the real tables, for kernels are compiled for the types of their columns
    forest(WARM_UP_TREES, parties=1).fit(joined.table, joined.labels).predict_proba(asked.table)
    forest(WARM_UP_TREES).fit(train, y=Y).predict_proba(test)

    results = []
    for name, columns in (("bank alone", bank), ("shop alone", shop), ("one place", bank + shop)):
        begin(f"growing {n_trees} trees: {name}")
        model = forest(parties=1)
        X, X_test = joined.table.select(columns), asked.table.select(columns)
        results.append(_measure(name, model, X, joined.labels, X_test, asked.labels))
    in_one_place = model

    begin(f"growing {n_trees} trees: one place, scikit-learn")
    results.append(_measure_sklearn(n_trees, seed, joined, asked))

    begin(f"growing {n_trees} trees: federated")
    federated = forest()
    results.append(_measure("federated", federated, train, Y, test, asked.labels))

    begin("comparing bit by bit")
    answers = federated.predict_proba(test)
    structure = in_one_place.forest_.coordinator.structure
    identity = Identity(
        same_forest=_same_forest(_put_together(federated), in_one_place.combine()),
        n_trees=structure.n_trees,
        n_nodes=structure.n_nodes,
        same_answers=np.array_equal(answers, in_one_place.predict_proba(asked.table)),
        n_answers=answers.size,
    )
    return Comparison(
        companies=companies,
        n_train=train.n_rows,
        n_test=test.n_rows,
        results=tuple(results),
        identity=identity,
        prediction_cost=federated.prediction_cost_,
        disclosure=federated.disclosure_,
    )


def _join(federation: Federation, bank: pa.Table, companies: Companies) -> _Joined:
    """Join the tables; a column's name says whose it was, as in the federation."""
    labelled, shop = _rows(bank, federation.ids), _rows(companies.shop, federation.ids)
    columns = {f"bank.{name}": labelled[name] for name in companies.bank_columns}
    columns |= {f"shop.{name}": shop[name] for name in companies.shop_columns}
    return _Joined(pa.table(columns), labelled[LABEL].to_numpy())


def _rows(table: pa.Table, ids: Any) -> pa.Table:
    """The rows of these ids, in their order."""
    own = table[ID].to_numpy()
    order = np.argsort(own)
    return table.take(order[np.searchsorted(own[order], ids)])


def _measure(name: str, model: FederatedForestClassifier, X: Any, y: Any, X_test: Any, truth: NDArray[Any]) -> Result:
    start = time.perf_counter()
    model.fit(X, y)
    fitted = time.perf_counter()
    probabilities = model.predict_proba(X_test)
    done = time.perf_counter()
    travels = isinstance(X, Federation)
    return Result(
        name,
        *_quality(probabilities, model.classes_, truth),
        fit_seconds=fitted - start,
        predict_seconds=done - fitted,
        rounds=model.cost_.rounds if travels else None,
        bytes=model.cost_.bytes_sent + model.cost_.bytes_received if travels else None,
    )


def _measure_sklearn(n_trees: int, seed: int, joined: _Joined, asked: _Joined) -> Result:
    both = pa.concat_tables([joined.table, asked.table])
    X = np.column_stack([feature for column in both.columns for feature in _features(column)])
    n = joined.table.num_rows
    model = RandomForestClassifier(n_trees, random_state=seed, n_jobs=N_JOBS)
    start = time.perf_counter()
    model.fit(X[:n], joined.labels)
    fitted = time.perf_counter()
    probabilities = model.predict_proba(X[n:])
    done = time.perf_counter()
    quality = _quality(probabilities, model.classes_, asked.labels)
    return Result("one place, scikit-learn", *quality, fit_seconds=fitted - start, predict_seconds=done - fitted)


def _features(column: pa.ChunkedArray) -> list[NDArray[np.float32]]:
    """A column as scikit-learn's forest takes it: categories one-hot, which serves it best."""
    if not pa.types.is_string(column.type):
        return [column.cast(pa.float32(), safe=False).to_numpy()]
    values = column.to_numpy()
    return [(values == category).astype(np.float32) for category in sorted({v for v in values if v is not None})]


def _quality(probabilities: NDArray[np.float64], classes: NDArray[Any], truth: NDArray[Any]) -> tuple[float, float]:
    chosen = classes[probabilities.argmax(axis=1)]
    positive = int(np.flatnonzero(classes == "yes")[0])
    return float(accuracy_score(truth, chosen)), float(roc_auc_score(truth == "yes", probabilities[:, positive]))


def _put_together(model: FederatedForestClassifier) -> CompleteForest:
    """The complete model from the folders that the parties would hand over: they share it with nobody by default."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        model.save(folder)
        return model.combine(sorted(folder.glob("party-*")))


def _same_forest(one: CompleteForest, other: CompleteForest) -> bool:
    """Whether shape, questions and answers of all trees are equal, array by array and bit by bit."""
    mine, yours = one.coordinator, other.coordinator
    pairs: list[tuple[Any, Any]] = [
        (one.splits, other.splits),
        (mine.structure, yours.structure),
        (mine.leaves, yours.leaves),
    ]
    return all(
        np.array_equal(getattr(a, f.name), getattr(b, f.name), equal_nan=f.name == "threshold")
        for a, b in pairs
        for f in fields(a)
    )
