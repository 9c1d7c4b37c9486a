"""``woodlot bench``: scikit-learn, Woodlot in one place and Woodlot federated, side by side on this machine.

scikit-learn-intelex, a faster scikit-learn for CPUs, is measured too where it is installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import AsJson, print_json, reporting
from woodlot.cli._progress import show_steps
from woodlot.cli.train import Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from woodlot.estimators.complete import CompleteForest
    from woodlot.runtime.audit import Cost

SKLEARN, INTELEX, ONE_PLACE, FEDERATED = "scikit-learn", "scikit-learn-intelex", "one place", "federated"
TITLES = {SKLEARN: SKLEARN, INTELEX: INTELEX, ONE_PLACE: "Woodlot, one place", FEDERATED: "Woodlot, two parties"}
PARTIES = ("bank", "shop")
LABEL = "label"
NOISE = 0.05
"""Share of the labels that no column explains."""


class BenchDevice(StrEnum):
    """Where trees grow."""

    cpu = "cpu"
    cuda = "cuda"
    auto = "auto"


@dataclass(frozen=True)
class BenchShape:
    """What is grown, and on how many made-up rows."""

    rows: int
    columns: int
    trees: int
    depth: int | None
    classify: bool
    repeats: int
    seed: int
    device: str = "cpu"

    @property
    def test_rows(self) -> int:
        """Rows that are predicted."""
        return max(100, self.rows // 4)

    def params(self, trees: int) -> dict[str, Any]:
        """Parameters that all three are given; of the regressors' columns a third, or they would be slow and alike."""
        features = {} if self.classify else {"max_features": 1 / 3}
        return {"n_estimators": trees, "max_depth": self.depth, "random_state": self.seed, "n_jobs": -1, **features}

    def own_params(self, trees: int) -> dict[str, Any]:
        """Parameters of Woodlot's forests."""
        return {**self.params(trees), "device": self.device}


@dataclass(frozen=True)
class Run:
    """One forest, fitted and asked once."""

    model: Any
    answers: NDArray[np.float64]
    fit_seconds: float
    predict_seconds: float

    def better(self, other: Run | None) -> Run:
        """This run with the smaller of both times; all else is the same in every run."""
        if other is None:
            return self
        return replace(
            self,
            fit_seconds=min(self.fit_seconds, other.fit_seconds),
            predict_seconds=min(self.predict_seconds, other.predict_seconds),
        )


@dataclass(frozen=True)
class Bench:
    """What was measured."""

    shape: BenchShape
    threads: int
    runs: dict[str, Run]
    scores: dict[str, float]
    nodes: int
    same_forest: bool
    same_answers: bool

    @property
    def identical(self) -> bool:
        """Whether federated equals one place, bit for bit."""
        return self.same_forest and self.same_answers

    @property
    def costs(self) -> tuple[Cost, Cost]:
        """Of the federation: growing, and predicting."""
        model = self.runs[FEDERATED].model
        return model.cost_, model.prediction_cost_

    def ratios(self, name: str) -> tuple[float, float]:
        """How many times as fast as scikit-learn: fit and predict."""
        theirs, ours = self.runs[SKLEARN], self.runs[name]
        return theirs.fit_seconds / ours.fit_seconds, theirs.predict_seconds / ours.predict_seconds


def bench(
    rows: Annotated[int, typer.Option(min=100, help="Rows to learn from; a quarter as many are predicted.")] = 20_000,
    columns: Annotated[int, typer.Option(min=2, help="Columns, half of them at each party.")] = 20,
    trees: Annotated[int, typer.Option(min=1, help="Trees of each forest.")] = 100,
    depth: Annotated[int, typer.Option(min=0, help="Levels of the trees; 0: no limit.")] = 10,
    task: Annotated[Task, typer.Option(help="What to learn.")] = Task.classification,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each, in turn; the fastest counts.")] = 3,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Decides the data and the forests.")] = 0,
    device: Annotated[BenchDevice, typer.Option(help="Where Woodlot's trees grow; cuda is a graphics card.")] = (
        BenchDevice.cpu
    ),
    as_json: AsJson = False,
) -> None:
    """Measure this machine: the same forest by scikit-learn, by Woodlot in one place, and federated.

    On made-up numbers, all in this process and with all cores. scikit-learn-intelex is measured beside scikit-learn
    where it is installed (`pip install scikit-learn-intelex`). The federation has two parties with half of the columns
    each; every message is encoded and decoded, but no network is between them. Also tells whether the federated forest
    is the one grown in one place, bit for bit (exits with 1 if not).
    """
    shape = BenchShape(rows, columns, trees, depth or None, task is Task.classification, repeats, seed, device)
    with reporting(as_json), show_steps(2 + repeats) as begin:
        measured = _measure(shape, begin)
    if as_json:
        print_json(_plain(measured))
    else:
        _print(measured)
    if not measured.identical:
        raise typer.Exit(1)


# --- measuring ---


def _measure(shape: BenchShape, begin: Callable[[str], None]) -> Bench:
    """Kernels first; then all three in turn, so that whatever else the machine does falls on each."""
    begin("making up rows")
    import numpy as np
    import pyarrow as pa
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.metrics import accuracy_score, r2_score

    from woodlot import FederatedForestClassifier, FederatedForestRegressor, Federation
    from woodlot.estimators.complete import CompleteForest, same_forest
    from woodlot.trees.parallel import effective_jobs

    X, y = _made_up(shape)
    theirs = RandomForestClassifier if shape.classify else RandomForestRegressor
    ours = FederatedForestClassifier if shape.classify else FederatedForestRegressor
    half = (shape.columns + 1) // 2
    owners = [(PARTIES[k >= half], f"c{k}") for k in range(shape.columns)]

    def one_place(some: slice) -> Any:
        return pa.table({f"{party}.{name}": X[some, k] for k, (party, name) in enumerate(owners)})

    def federation(some: slice) -> Any:
        tables: dict[str, dict[str, Any]] = {party: {} for party in PARTIES}
        for k, (party, name) in enumerate(owners):
            tables[party][name] = X[some, k]
        tables[PARTIES[0]][LABEL] = y[some]
        return Federation.local({party: pa.table(own) for party, own in tables.items()})

    train, test = slice(shape.rows), slice(shape.rows, None)
    where = f"{PARTIES[0]}.{LABEL}"
    central, parts = [one_place(train), one_place(test)], [federation(train), federation(test)]
    ways: dict[str, Callable[[int], Run]] = {
        SKLEARN: lambda n: _run(theirs(**shape.params(n)), X[train], y[train], X[test]),
        ONE_PLACE: lambda n: _run(ours(parties=1, **shape.own_params(n)), central[0], y[train], central[1]),
        FEDERATED: lambda n: _run(ours(**shape.own_params(n)), parts[0], where, parts[1]),
    }
    if (faster := _intelex(shape.classify)) is not None:
        ways = {
            SKLEARN: ways.pop(SKLEARN),
            INTELEX: lambda n: _run(faster(**shape.params(n)), X[train], y[train], X[test]),
            **ways,
        }
    begin("getting ready (a first run compiles its kernels)")
    for name, way in ways.items():
        way(
            1 if name in (SKLEARN, INTELEX) else shape.trees
        )  # the numbers of rows and of nodes decide what is compiled
    runs: dict[str, Run] = {}
    for repeat in range(shape.repeats):
        begin(f"growing and predicting, {repeat + 1} of {shape.repeats}")
        for name, way in ways.items():
            runs[name] = way(shape.trees).better(runs.get(name))

    def whole(name: str) -> CompleteForest:
        """All parts, as nobody has them in production; a column of a party has the name that it has in one place."""
        forest = runs[name].model.forest_
        if name == ONE_PLACE:
            return CompleteForest(forest.coordinator, forest.parts)
        named = {p: replace(part, names=tuple(f"{p}.{c}" for c in part.names)) for p, part in forest.parts.items()}
        return CompleteForest(forest.coordinator, named)

    def score(run: Run) -> float:
        if not shape.classify:
            return float(r2_score(y[test], run.answers))
        return float(accuracy_score(y[test], run.model.classes_[run.answers.argmax(axis=1)]))

    return Bench(
        shape,
        threads=effective_jobs(-1),
        runs=runs,
        scores={name: score(run) for name, run in runs.items()},
        nodes=runs[ONE_PLACE].model.forest_.coordinator.structure.n_nodes,
        same_forest=same_forest(whole(ONE_PLACE), whole(FEDERATED)),
        same_answers=np.array_equal(runs[ONE_PLACE].answers, runs[FEDERATED].answers),
    )


def _intelex(classify: bool) -> Any | None:
    """The forest of scikit-learn-intelex, None where it is not installed; scikit-learn itself is not patched."""
    try:
        from sklearnex import ensemble
    except ImportError:
        return None
    return ensemble.RandomForestClassifier if classify else ensemble.RandomForestRegressor


def _made_up(shape: BenchShape) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Columns of numbers, half of which tell of the label, and labels."""
    import numpy as np
    from sklearn.datasets import make_classification, make_regression

    n_rows, informative = shape.rows + shape.test_rows, max(2, shape.columns // 2)
    if shape.classify:
        X, y = make_classification(
            n_rows, shape.columns, n_informative=informative, n_redundant=0, flip_y=NOISE, random_state=shape.seed
        )
        return X.astype(np.float32), y
    X, y = make_regression(n_rows, shape.columns, n_informative=informative, noise=20.0, random_state=shape.seed)
    return X.astype(np.float32), y + 50 * np.sin(3 * X[:, 0])


def _run(model: Any, X: Any, y: Any, unseen: Any) -> Run:
    start = time.perf_counter()
    model.fit(X, y)
    fitted = time.perf_counter()
    answers = (model.predict_proba if hasattr(model, "predict_proba") else model.predict)(unseen)
    return Run(model, answers, fitted - start, time.perf_counter() - fitted)


# --- telling ---


def _plain(bench: Bench) -> dict[str, Any]:
    shape = bench.shape
    results: dict[str, dict[str, Any]] = {}
    for name, run in bench.runs.items():
        fit, predict = bench.ratios(name)
        results[name] = {
            "fit_seconds": run.fit_seconds,
            "predict_seconds": run.predict_seconds,
            "fit_ratio": fit,
            "predict_ratio": predict,
            "score": bench.scores[name],
        }
    for what, cost in zip(("fit", "predict"), bench.costs, strict=True):
        results[FEDERATED] |= {f"{what}_rounds": cost.rounds, f"{what}_bytes": cost.bytes_sent + cost.bytes_received}
    return {
        "rows": shape.rows,
        "test_rows": shape.test_rows,
        "columns": shape.columns,
        "trees": shape.trees,
        "depth": shape.depth,
        "task": "classification" if shape.classify else "regression",
        "repeats": shape.repeats,
        "seed": shape.seed,
        "threads": bench.threads,
        "results": results,
        "nodes": bench.nodes,
        "identical": bench.identical,
    }


def _print(bench: Bench) -> None:
    from rich.text import Text

    from woodlot.cli import _show as show

    shape, console = bench.shape, show.stdout()
    growing, predicting = bench.costs
    sent = show.amount(growing.bytes_sent + growing.bytes_received)
    rows = []
    for name, run in bench.runs.items():
        fit, predict = ("", "") if name == SKLEARN else (f"{ratio:.1f}x" for ratio in bench.ratios(name))
        score = f"{100 * bench.scores[name]:.1f} %" if shape.classify else f"{bench.scores[name]:.3f}"
        cost = (f"{growing.rounds:,}", sent) if name == FEDERATED else ("", "")
        rows.append(
            (TITLES[name], f"{run.fit_seconds:.2f} s", fit, f"{run.predict_seconds:.3f} s", predict, score, *cost)
        )
    depth = "unlimited depth" if shape.depth is None else f"depth {shape.depth}"
    trees = f"{shape.trees:,} tree{'s' * (shape.trees != 1)}"
    console.print(
        f"{trees} of {depth}, {'two classes' if shape.classify else 'regression'}; {shape.rows:,} made-up rows of "
        f"{shape.columns:,} columns to learn from, {shape.test_rows:,} to predict.\n",
    )
    measure = "accuracy" if shape.classify else "R2"
    headings = ("", ">fit", ">ratio", ">predict", ">ratio", f">{measure}", ">rounds", ">sent")
    console.print(show.table(headings, rows))
    verdict = Text("yes", style="green") if bench.identical else Text("no", style="red")
    console.print()
    console.print(
        show.facts_grid({"Federated equals one place, bit for bit:": verdict + Text(f" ({_compared(bench)})")})
    )
    console.print(
        f"\n[dim]Ratio: how many times as fast as scikit-learn. {_runs(shape.repeats)}, with {bench.threads} "
        f"thread{'s' * (bench.threads != 1)}. The two parties are in this process, without a network (for one: woodlot "
        f"plan). Rounds and bytes are those of growing; predicting took {predicting.rounds} "
        f"round{'s' * (predicting.rounds != 1)} and "
        f"{show.amount(predicting.bytes_sent + predicting.bytes_received)}.[/dim]"
    )


def _runs(repeats: int) -> str:
    return "One run of each" if repeats == 1 else f"The fastest of {repeats} runs of each, in turn"


def _compared(bench: Bench) -> str:
    if bench.identical:
        return f"{bench.nodes:,} nodes, {bench.runs[FEDERATED].answers.size:,} answers"
    return "the trees differ" if not bench.same_forest else "the answers differ"
