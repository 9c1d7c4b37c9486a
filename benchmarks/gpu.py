"""Forests on a graphics card: the same to the bit as on the CPU, how fast, where the time goes, and how much memory.

Needs a card and the extra ``gpu``. ``python benchmarks/gpu.py --write`` writes docs/results/gpu.md. Two parties in one
process share the card; times are from NumPy arrays to a fitted model, medians of repeated fits after one that compiles.

``python benchmarks/gpu.py --host`` needs no card: with NumPy in its place it counts the CPU time of all that is not the
card's work, and writes docs/results/gpu-host.md.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import os
import platform
import pstats
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import woodlot as wl
from woodlot.protocols.vertical import growing_place
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.trees.arrays import array_grow, array_search
from woodlot.trees.arrays.array_module import HOST, card

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "gpu.md"
HOST_RESULTS = RESULTS.with_name("gpu-host.md")
HOST_CASE = (50_000, 10, 40)
"""Rows, columns and trees of unlimited depth: few columns, since NumPy does the card's work."""
HOST_MEMORY = 140 << 30
"""So that all trees grow together, as on a card."""
SHOWN = 12
CASES = {
    "50k x 40, 100 trees, depth 10": (50_000, 40, 100, 10),
    "50k x 40, 100 trees, unlimited": (50_000, 40, 100, None),
    "500k x 50, 20 trees, depth 12": (500_000, 50, 20, 12),
    "2M x 50, 20 trees, depth 12": (2_000_000, 50, 20, 12),
    "5M x 50, 20 trees, depth 12": (5_000_000, 50, 20, 12),
    "20M x 50, 20 trees, depth 12": (20_000_000, 50, 20, 12),
}
PHASES = {
    "pairs": [(array_search, "list_pairs"), (array_search, "turn_pairs")],
    "keys": [(array_search, "make_keys")],
    "sort": [],
    "sums": [(array_search, "run_sums")],
    "scores and best": [(array_search, "best_cuts"), (array_search, "choose_pairs")],
    "sides": [(array_grow, "side_bits")],
    "partition": [(array_grow, "join_bits"), (array_grow, "move")],
    "gather": [(array_search, "gather")],
    "draw": [(array_grow, "draw")],
}


def table(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that depend on four of p columns, with noise."""
    rng = np.random.default_rng(0)
    X = np.empty((n, p), np.float32, order="F")
    for f in range(p):
        X[:, f] = rng.standard_normal(n, np.float32)
    signal = X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * X[:, 3] ** 2 - 0.5
    return X, (signal + rng.standard_normal(n, np.float32) > 0).astype(np.int64)


def model(trees: int, depth: int | None, device: str) -> wl.FederatedForestClassifier:
    """Two parties in this process."""
    return wl.FederatedForestClassifier(trees, max_depth=depth, random_state=0, n_jobs=-1, device=device)


def timed(fit: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median seconds of some calls, and what the last gave."""
    seconds, made = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        made = fit()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), made


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Seconds of each phase on the card; the card is waited for at the end of each, which costs some time."""
    xp, spent = card().xp, dict.fromkeys([*PHASES, "searched keys"], 0.0)
    kept = []

    def wrapped(phase: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            xp.cuda.Device().synchronize()
            began = time.perf_counter()
            given = step(*args, **options)
            xp.cuda.Device().synchronize()
            spent[phase] += time.perf_counter() - began
            if step.__name__ == "make_keys":
                spent["searched keys"] += len(given)
            return given

        return run

    for phase, steps in PHASES.items():
        for module, name in steps:
            kept.append((module, name, getattr(module, name)))
            setattr(module, name, wrapped(phase, getattr(module, name)))
    keys = array_search.ArraySearch._sorted_keys
    array_search.ArraySearch._sorted_keys = wrapped("sort", keys)  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        spent["sort"] -= spent["keys"]
        array_search.ArraySearch._sorted_keys = keys  # type: ignore[method-assign]
        for module, name, step in kept:
            setattr(module, name, step)


def digest(made: wl.FederatedForestClassifier) -> bytes:
    """All splits and leaves of a forest, as bytes."""
    forest = made.forest_
    parts = [forest.parts[name].splits for name in sorted(forest.parts)]
    arrays = [forest.coordinator.structure.right, forest.coordinator.structure.offset]
    arrays += [getattr(s, name) for s in parts for name in ("node", "feature", "threshold", "missing_left", "sets")]
    return b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)


def copy_speed() -> float:
    """Bytes per second that the card reads and writes in a plain copy, median of ten."""
    xp, n = card().xp, 1 << 29
    source, target = xp.zeros(n, xp.uint64), xp.empty(n, xp.uint64)
    seconds = []
    for _ in range(11):
        xp.cuda.Device().synchronize()
        began = time.perf_counter()
        target[:] = source
        xp.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * 8 * n / statistics.median(seconds[1:])


def rest_of_the_work() -> list[tuple[str, float, float, bool]]:
    """What else runs on the card: seconds there, on the CPU with all cores, and whether both are the same."""
    X, y = table(500_000, 50)
    found = []
    fitted = model(20, 12, "cuda").fit(X, y)
    deep = model(100, None, "cuda").fit(X[:50_000], y[:50_000])
    for name, one in (("20 trees of depth 12", fitted), ("100 trees, unlimited", deep)):
        answers, seconds = {}, {}
        for device in ("cuda", "cpu"):
            one.set_params(device=device).predict_proba(X[:30_000])
            seconds[device], answers[device] = timed(lambda one=one: one.predict_proba(X), 3)
        same = np.array_equal(answers["cuda"], answers["cpu"])
        found.append((f"predict 500k x 50, {name}", seconds["cuda"], seconds["cpu"], same))

    def grown(kind: Any, name: str, repeats: int, **options: Any) -> None:
        seconds, forests = {}, {}
        for device in ("cuda", "cpu"):
            made = {"random_state": 0, "n_jobs": -1, "device": device} | options
            kind(2, **made).fit(X, y)
            seconds[device], forests[device] = timed(lambda made=made: kind(20, **made).fit(X, y), repeats)
        same = digest(forests["cuda"]) == digest(forests["cpu"])
        found.append((name, seconds["cuda"], seconds["cpu"], same))

    grown(wl.FederatedForestClassifier, "500k x 50, 20 trees, depth 12, 255 bins", 3, max_depth=12, max_bins=255)
    name = "HorizontalForestClassifier, 500k x 50, three clients, 20 trees, depth 10"
    grown(wl.HorizontalForestClassifier, name, 1, max_depth=10)
    return found


def others(X: np.ndarray, y: np.ndarray, trees: int, depth: int | None) -> dict[str, float]:
    """Seconds of other libraries that are installed, with all cores or on the card."""
    seconds: dict[str, float] = {}

    def note(name: str, fit: Callable[[], Any]) -> None:
        try:
            seconds[name], _ = timed(fit, 1)
        except ImportError:
            return

    def sklearn() -> Any:
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(trees, max_depth=depth, n_jobs=-1, random_state=0).fit(X, y)

    def intelex() -> Any:
        from sklearnex.ensemble import RandomForestClassifier

        return RandomForestClassifier(trees, max_depth=depth, n_jobs=-1, random_state=0).fit(X, y)

    def xgboost() -> Any:
        from xgboost import XGBRFClassifier

        return XGBRFClassifier(n_estimators=trees, max_depth=depth or 0, device="cuda", colsample_bynode=0.15).fit(X, y)

    if len(X) <= 500_000:
        note("scikit-learn", sklearn)
    note("scikit-learn-intelex", intelex)
    note("XGBoost RF", xgboost)
    return seconds


def measure(name: str, repeats: int, compare: bool) -> dict[str, Any]:
    """One case: seconds, phases, memory, and whether the forest is that of the CPU."""
    n, p, trees, depth = CASES[name]
    X, y = table(n, p)
    pool = card().xp.get_default_memory_pool()
    model(2, 2, "cuda").fit(X[: 1 << 16], y[: 1 << 16])
    pool.free_all_blocks()
    seconds, made = timed(lambda: model(trees, depth, "cuda").fit(X, y), repeats)
    peak = pool.total_bytes()
    found: dict[str, Any] = {"name": name, "seconds": seconds, "peak": peak, "rows": n, "trees": trees}
    if n <= 10**7:
        with watched() as spent:
            found["watched"], _ = timed(lambda: model(trees, depth, "cuda").fit(X, y), 1)
        found["keys"] = spent.pop("searched keys")
        found["phases"] = dict(spent)
    found["cost"] = made.cost_
    if compare:
        if n <= 10**6:
            model(2, depth, "cpu").fit(X, y)  # kernels are compiled for the size of the table
        if n <= 10**6:
            found["cpu"], on_cpu = timed(lambda: model(trees, depth, "cpu").fit(X, y), 1)
            found["same"] = digest(on_cpu) == digest(made)
        found["others"] = others(X, y, trees, depth)
    return found


def report(found: list[dict[str, Any]], rest_found: list[tuple[str, float, float, bool]], copied: float) -> str:
    """The page of results."""
    here = card()
    lines = [
        "# Forests on a graphics card",
        "",
        f"Measured by `benchmarks/gpu.py` on one {here.name} ({here.memory / 2**30:.0f} GiB), {os.cpu_count()} cores,",
        f"Python {platform.python_version()}, NumPy {np.__version__}, CuPy {here.xp.__version__}. Two parties in one",
        "process share the card. Times are from NumPy arrays to a fitted model: reading and encoding the table,",
        "drawing, growing, messages through the codec, and leaves. Medians, after a first fit that compiles.",
        "",
        "| table | on the card | on the CPU, all cores | the same forest | other libraries | peak card memory |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        rest = ", ".join(f"{name} {s:.2f} s" for name, s in one.get("others", {}).items()) or "-"
        cpu = f"{one['cpu']:.2f} s" if "cpu" in one else "-"
        same = {True: "yes", False: "NO", None: "not compared"}[one.get("same")]
        lines.append(
            f"| {one['name']} | {one['seconds']:.3f} s | {cpu} | {same} | {rest} | {one['peak'] / 1e9:.1f} GB |"
        )
    lines += [
        "",
        "## Where the time goes",
        "",
        "| table | " + " | ".join(PHASES) + " | the rest |",
        "|---" * (len(PHASES) + 2) + "|",
    ]
    for one in found:
        if "phases" not in one:
            continue
        rest = one["watched"] - sum(one["phases"].values())
        cells = " | ".join(f"{1000 * s:.0f}" for s in (*one["phases"].values(), rest))
        lines.append(f"| {one['name']} | {cells} |")
    lines += [
        "",
        "Milliseconds, of both parties together. The card is waited for after each phase here, so that the sum is more",
        "than the time above. The rest is encoding, and the CPU's: reading the table, messages, the shape of trees.",
        "",
        "## How far from the card's bandwidth",
        "",
        f"A plain copy on this card reads and writes {copied / 1e12:.1f} TB/s. Keys are 8 bytes; reading and writing",
        "each of them once at that speed is the least that a search by sorting can take.",
        "",
        "| table | keys, millions | once at copy speed, ms | keys, sort, sums, scores and best, ms | times |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        if "phases" in one:
            least = 16 * one["keys"] / copied
            took = sum(one["phases"][name] for name in ("keys", "sort", "sums", "scores and best"))
            lines.append(
                f"| {one['name']} | {one['keys'] / 1e6:.0f} | {1000 * least:.1f} | {1000 * took:.0f} "
                f"| {took / least:.0f} |"
            )
    lines += [
        "",
        "## What else runs on the card",
        "",
        "| work | on the card | on the CPU, all cores | the same |",
        "|---|---|---|---|",
        *(f"| {name} | {a:.3f} s | {b:.3f} s | {'yes' if same else 'NO'} |" for name, a, b, same in rest_found),
        "",
        "## Memory",
        "",
        "| table | bytes of card memory per row and tree |",
        "|---|---|",
    ]
    lines += [f"| {one['name']} | {one['peak'] / one['rows'] / one['trees']:.0f} |" for one in found]
    return "\n".join(lines) + "\n"


def spent_beside_the_card() -> tuple[int, int, dict[str, Counter[str]]]:
    """Nodes, levels, and CPU seconds by role and function of a training with NumPy in the card's place."""
    n, p, trees = HOST_CASE
    X, y = table(n, p)
    arrays, handle, choose = dataclasses.replace(HOST, memory=HOST_MEMORY), VerticalParty.handle, growing_place.choose
    local, profiles = threading.local(), []

    def handled(party: VerticalParty, message: Any) -> Any:
        if not hasattr(local, "profile"):
            local.profile = cProfile.Profile(time.thread_time)
            profiles.append(local.profile)
        local.profile.enable()
        try:
            return handle(party, message)
        finally:
            local.profile.disable()

    growing_place.choose = lambda *_: arrays  # type: ignore[assignment]
    whole = wl.FederatedForestClassifier(trees, max_features=2, random_state=0, n_jobs=1, device="cuda")
    try:
        wl.FederatedForestClassifier(1, random_state=0, device="cuda").fit(X[:2_000], y[:2_000])  # kernels are loaded
        VerticalParty.handle = handled  # type: ignore[method-assign]
        coordinator = cProfile.Profile(time.thread_time)
        coordinator.enable()
        whole.fit(X, y)
        coordinator.disable()
    finally:
        VerticalParty.handle, growing_place.choose = handle, choose  # type: ignore[method-assign]
    roles = {"coordinator": _by_function([coordinator]), "each party": _by_function(profiles)}
    return len(whole.forest_.coordinator.structure.right), whole.cost_.rounds // 2, roles


def _by_function(profiles: list[cProfile.Profile]) -> Counter[str]:
    """CPU seconds of each function of Woodlot, with what it has called of libraries; not those of ``trees/arrays``."""
    seconds: Counter[str] = Counter()
    for (file, _, name), (*_, own, _, callers) in pstats.Stats(*profiles).stats.items():  # type: ignore[attr-defined]
        if "woodlot" in file:
            parts = [(file, name, own)]
        else:
            parts = [(caller[0], caller[2], spent[2]) for caller, spent in callers.items()]
        for where, function, spent in parts:
            place = where.replace(os.sep, "/").rpartition("/woodlot/")[2]
            if "/woodlot/" in where.replace(os.sep, "/") and "trees/arrays/" not in place:
                seconds[f"{place}: {function}"] += spent / len(profiles)
    return Counter({name: spent for name, spent in seconds.items() if "_wait_for" not in name})


def host_report(nodes: int, levels: int, roles: dict[str, Counter[str]]) -> str:
    """The page of what is not the card's work."""
    n, p, trees = HOST_CASE
    lines = [
        "# What the CPU does beside a card",
        "",
        f"`python benchmarks/gpu.py --host`: {n:,} x {p}, {trees} trees of unlimited depth, {nodes:,} nodes, {levels}",
        "levels, two parties in one process, one thread. NumPy stands in the card's place, and its work",
        "(`trees/arrays`) is not counted. CPU seconds of a thread, under a profiler, without waiting; load average",
        f"{os.getloadavg()[0]:.1f}.",
    ]
    for role, seconds in roles.items():
        total = sum(seconds.values())
        lines += ["", f"## {role.capitalize()}: {total:.3f} s, {1e9 * total / nodes:.0f} ns per node", ""]
        lines += ["| function | ms | share |", "|---|---|---|"]
        lines += [f"| `{name}` | {1e3 * s:.1f} | {s / total:.0%} |" for name, s in seconds.most_common(SHOWN)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/results/gpu.md")
    parser.add_argument("--cases", default="0,1,2,3,4,5", help="numbers of the cases to measure")
    parser.add_argument(
        "--compare", default="0,1,2,3,4", help="numbers of the cases to compare with the CPU and others"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the page is written")
    parser.add_argument("--host", action="store_true", help="count what is not the card's work; needs no card")
    asked = parser.parse_args()
    if asked.host:
        page = host_report(*spent_beside_the_card())
        print(page)
        HOST_RESULTS.write_text(page)
        return
    names = list(CASES)
    compared = {names[int(k)] for k in asked.compare.split(",") if k}
    found = []
    for name in (names[int(k)] for k in asked.cases.split(",")):
        repeats = 1 if CASES[name][0] > 10**7 else 3
        one = measure(name, repeats, name in compared)
        print(name, {k: v for k, v in one.items() if k != "name"}, flush=True)
        found.append(one)
    page = report(found, rest_of_the_work(), copy_speed())
    print(page)
    if asked.write:
        asked.out.write_text(page)


if __name__ == "__main__":
    main()
