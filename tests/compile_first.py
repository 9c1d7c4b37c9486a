"""Compile what most tests use: kernels, in two processes, and the tests; else every worker would do so for itself.

What is in the cache already is only loaded.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLLECT = ("-m", "pytest", "--collect-only", "-qq", "--ignore", "tests/browser")
TABLES = 12
"""Kinds of tables over columns: all but the largest."""
ROWS = (
    "rows, extra trees",
    "rows, lossless",
    "rows, regression",
    "hidden",
    *(f"columns {k}" for k in range(1, TABLES, 2)),
)
COLUMNS = (
    "vertical",
    "vertical, explained",
    "vertical, regrown",
    "revocable",
    *(f"columns {k}" for k in range(0, TABLES, 2)),
)


def fit(names: list[str]) -> None:
    """Fit one small model after the other."""
    sys.path[:0] = [str(HERE / "states"), str(HERE / "service")]
    import worlds

    import woodlot as wl

    def regression(kind: type, parties: object) -> None:
        X, _ = worlds.frame()
        kind(parties=parties, **worlds.SMALL).fit(X, X["age"] + X["visits"]).predict(X)

    from woodlot.cli.warm_up import cases, use

    # as `woodlot warm-up`: the types of codes, labels and missing values decide what is compiled
    tables = {f"columns {k}": partial(use, case) for k, case in enumerate(cases()) if k < TABLES}
    fits = (
        worlds.WORLDS
        | tables
        | {
            "vertical, regression": lambda: regression(wl.FederatedForestRegressor, worlds.DEALING),
            "rows, regression": lambda: regression(wl.HorizontalForestRegressor, 3),
        }
    )
    for name in names:
        fits[name]()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        warnings.simplefilter("ignore")
        fit(sys.argv[1:])
    else:
        halves = [subprocess.Popen([sys.executable, __file__, *names]) for names in (COLUMNS, ROWS)]
        if not any(HERE.glob("*/__pycache__/test_*-pytest-*.pyc")):
            # pytest rewrites each module of tests; whether they can be collected is for the run itself to say
            subprocess.run([sys.executable, *COLLECT], cwd=HERE.parent, stdout=subprocess.DEVNULL, check=False)
        sys.exit(max(half.wait() for half in halves))
