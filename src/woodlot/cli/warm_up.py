"""``woodlot warm-up``: compile the numerical kernels ahead, so that no later command waits for it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woodlot.cli._client import AsJson, print_json, reporting
from woodlot.cli._progress import show_steps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEW_ROWS, ROWS, MANY_ROWS = 200, 2_000, 70_000
"""Rows whose columns have codes of one byte, of two and of four: the types of the codes decide what is compiled."""
TREES = 3


@dataclass(frozen=True)
class WarmUpCase:
    """A kind of table for which kernels are compiled."""

    rows: int
    n_classes: int
    """0: regression."""
    categories: bool = False
    missing: bool = False

    def __str__(self) -> str:
        labels = {0: "regression", 2: "two classes"}.get(self.n_classes, "more classes")
        columns = "numbers and categories" if self.categories else "numbers"
        return f"{labels}, {columns}{', missing values' if self.missing else ''}, {self.rows:,} rows"


def cases() -> Iterator[WarmUpCase]:
    """The tables that are met most, simple ones first."""
    for rows in (ROWS, FEW_ROWS):
        for n_classes in (2, 3, 0):
            for both in (False, True):
                yield WarmUpCase(rows, n_classes, categories=both, missing=both)
    for n_classes in (2, 3, 0):
        yield WarmUpCase(MANY_ROWS, n_classes)


def warm_up(as_json: AsJson = False) -> None:
    """Compile all kernels of forests on columns ahead of time, and keep them on disk.

    Without it, the first fit or prediction of each kind of table compiles what it needs, which takes seconds. What is
    compiled already is not compiled again. Run it once after an installation or an update, for example when a container
    image is built.

    Example: `woodlot warm-up`
    """
    todo = list(cases())
    start = time.perf_counter()
    with reporting(as_json), show_steps(1 + len(todo)) as begin:
        begin("loading")
        from woodlot.trees.kernels import _jit

        before = _jit.compilations()
        for case in todo:
            begin(str(case))
            use(case)
    compiled, seconds = _jit.compilations() - before, time.perf_counter() - start
    if as_json:
        print_json({"cases": len(todo), "compiled": compiled, "seconds": seconds})
        return
    from woodlot.cli import _show

    told = f"{compiled:,} kernels compiled and kept" if compiled else "all kernels were compiled already"
    _show.stdout().print(f"{told}; {seconds:.0f} s.", highlight=False)


def use(case: WarmUpCase) -> None:
    """Fit small forests on a table of this kind with two parties, and predict in every way."""
    from woodlot import FederatedForestClassifier, FederatedForestRegressor

    table, y = _made_up(case)
    kind = FederatedForestClassifier if case.n_classes else FederatedForestRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # so few trees leave rows without an out-of-bag score
        model = kind(TREES, parties=2, random_state=0, n_jobs=2, oob_score=True).fit(table, y)
    some = table.slice(0, FEW_ROWS)
    model.predict(some)
    model.explain(some)
    for method in ("one-round", "classical"):
        model.predict(some, method=method)


def _made_up(case: WarmUpCase) -> tuple[Any, NDArray[Any]]:
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"c{k}": _numbers(rng, case) for k in range(4)}
    if case.categories:
        for k in range(2):
            columns[f"t{k}"] = pa.array(rng.choice(["red", "green", "blue"], case.rows)).dictionary_encode()
    y = rng.integers(0, case.n_classes, case.rows) if case.n_classes else rng.normal(size=case.rows)
    return pa.table(columns), y


def _numbers(rng: np.random.Generator, case: WarmUpCase) -> NDArray[np.float32]:
    import numpy as np

    values = rng.permutation(case.rows).astype(np.float32)
    if case.missing:
        values[rng.integers(0, case.rows, case.rows // 10)] = np.nan
    return values
