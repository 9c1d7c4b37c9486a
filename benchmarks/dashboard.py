"""How fast the dashboard shows a tree of a very large forest.

Makes a forest of 500 trees with 10,000 nodes each, stores it as a coordinator does, and opens trees over HTTP. The
first is the last of the forest, before which all others stand in the file; then some others, and one of them again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

from woodlot.dashboard.app import Pages
from woodlot.dashboard.server import Server
from woodlot.dashboard.views import CoordinatorView
from woodlot.identity.authority import Authority
from woodlot.identity.identity import install, request
from woodlot.jobs.job_messages import ModelFacts
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.vertical.files import StoredForest, forest_id_of
from woodlot.service.config import CoordinatorConfig
from woodlot.trees.forest import Leaves, Structure

MODEL = "0" * 32


def random_tree(n_leaves: int, rng: np.random.Generator) -> list[int]:
    """Right children, in preorder, of a tree whose leaves are shared out at random."""
    right: list[int] = []
    stack = [(n_leaves, -1)]
    while stack:
        leaves, parent = stack.pop()
        if parent >= 0:
            right[parent] = len(right)
        node = len(right)
        right.append(-1)
        if leaves > 1:
            left = int(np.clip(rng.binomial(leaves, rng.beta(2, 2)), 1, leaves - 1))
            stack += [(leaves - left, node), (left, -1)]
    return right


def make_forest(n_trees: int, n_nodes: int) -> CoordinatorForest:
    """A forest of the right size; what it answers does not matter."""
    rng = np.random.default_rng(0)
    shapes = [np.array(random_tree((n_nodes + 1) // 2, rng)) for _ in range(min(n_trees, 20))]
    trees = [shapes[t % len(shapes)] for t in range(n_trees)]
    offset = np.concatenate([[0], np.cumsum([len(t) for t in trees])]).astype(np.int64)
    right = np.concatenate([np.where(t >= 0, t + start, -1) for t, start in zip(trees, offset, strict=False)])
    structure = Structure(offset, right.astype(np.int32))
    inner, n_leaves = structure.right >= 0, structure.n_leaves
    feature = np.where(inner, rng.integers(0, 40, structure.n_nodes), -1).astype(np.int32)
    leaves = Leaves(
        rng.integers(1, 50, n_leaves).astype(np.float64),
        np.arange(n_leaves + 1),
        rng.integers(0, 2, n_leaves).astype(np.int32),
        np.ones(n_leaves),
        2,
    )
    return CoordinatorForest(
        structure=structure,
        owner=np.where(inner, feature // 20, -1).astype(np.int16),
        feature=feature,
        gain=np.where(inner, rng.random(structure.n_nodes), 0.0),
        leaves=leaves,
        parties=("bank", "shop"),
        feature_keys=rng.integers(0, 2**63, 40).astype(np.uint64),
        feature_party=(np.arange(40) // 20).astype(np.int64),
        classes=("no", "yes"),
        n_rows=100_000,
        sampling=None,
    )


def main() -> None:
    """Make the forest, open its trees, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        authority = Authority.create(root / "authority", "benchmark", days=2)
        (root / "bundle.pem").write_bytes(authority.sign(request(root / "identity", "coordinator", "c"), days=1))
        install(root / "identity", root / "bundle.pem")
        view = CoordinatorView(CoordinatorConfig.parse({}, folder=root, origin="benchmark"))
        forest = make_forest(options.trees, options.nodes)
        facts = ModelFacts(
            model=MODEL, name="large", user="alice", created=time.time(), forest=forest_id_of(forest),
            parties=forest.parties, holder="bank", n_rows=forest.n_rows, n_trees=forest.structure.n_trees,
            n_nodes=forest.structure.n_nodes, splits={}, classes=forest.classes, complete=False,
            unwilling=forest.parties, oob_score=None, settings='{"estimator": "", "params": {}}', disclosure="[]",
            cost='{"total_seconds": 0, "rounds": 0, "bytes_sent": 0, "bytes_received": 0, "seconds": {}}',
        )  # fmt: skip
        view.store.keep_model(facts, StoredForest(forest, {}, {}, {}))
        with Server(Pages(view, []).app, "127.0.0.1", 0) as server:
            server.start()
            with httpx.Client(base_url=server.address, follow_redirects=True, timeout=60) as browser:
                browser.get(server.url.removeprefix(server.address))
                trees = [options.trees - 1, *range(0, options.trees - 1, max(1, options.trees // 20))]
                seconds = [_open(browser, tree) for tree in trees]
                again = _open(browser, trees[-1])
        view.store.close()
    print(f"{options.trees:,} trees of {options.nodes:,} nodes\n")
    print("| opening a tree | s | CPU s |\n|---|---|---|")
    for name, (wall, cpu) in (
        ("the first, with the check of the file's digest", seconds[0]),
        ("others, median", (statistics.median(one) for one in zip(*seconds[1:], strict=True))),
        ("others, slowest", (max(one) for one in zip(*seconds[1:], strict=True))),
        ("one that was open before", again),
    ):
        print(f"| {name} | {wall:.2f} | {cpu:.2f} |")


def _open(browser: httpx.Client, tree: int) -> tuple[float, float]:
    """Seconds, and CPU seconds, for the page, its first levels, and four more below its deepest shown node."""
    start, cpu = time.perf_counter(), time.process_time()
    browser.get(f"/models/{MODEL}/trees/{tree}").raise_for_status()
    found = browser.get(f"/models/{MODEL}/trees/{tree}/nodes?role=coordinator&levels=4").raise_for_status().json()
    deeper = [node["id"] for node in found["nodes"] if "more" in node]
    browser.get(f"/models/{MODEL}/trees/{tree}/nodes?role=coordinator&root={deeper[-1]}&levels=4").raise_for_status()
    return time.perf_counter() - start, time.process_time() - cpu


if __name__ == "__main__":
    main()
