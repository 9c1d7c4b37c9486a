"""Compile the kernels that most tests use, in two processes: else every worker would compile them for itself.

What is in the cache already is only loaded.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS = ("rows, extra trees", "rows, lossless", "rows, regression")
COLUMNS = ("vertical", "vertical, regrown", "vertical, regression", "revocable")


def fit(names: list[str]) -> None:
    """Fit one small model after the other."""
    sys.path[:0] = [str(HERE / "states"), str(HERE / "service")]
    import worlds

    import woodlot as wl

    def regression(kind: type, parties: object) -> None:
        X, _ = worlds.frame()
        kind(parties=parties, **worlds.SMALL).fit(X, X["age"] + X["visits"]).predict(X)

    fits = worlds.WORLDS | {
        "vertical, regression": lambda: regression(wl.FederatedForestRegressor, worlds.DEALING),
        "rows, regression": lambda: regression(wl.HorizontalForestRegressor, 3),
    }
    with worlds.short_keys():
        for name in names:
            fits[name]()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        warnings.simplefilter("ignore")
        fit(sys.argv[1:])
    else:
        halves = [subprocess.Popen([sys.executable, __file__, *names]) for names in (COLUMNS, ROWS)]
        sys.exit(max(half.wait() for half in halves))
