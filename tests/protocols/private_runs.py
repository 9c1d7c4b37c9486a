"""Private forests without drivers: clients with fixed secrets, and all that they send."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import read_table
from woodlot.privacy.client_budget import LocalBudget
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.private import PrivateClient, PrivatePlan, private_forest
from woodlot.protocols.rows.row_client import Holdings

NAMES = ("anna", "bern", "chur")
COMMON = bytes(range(32))


def plan_of(**changes: Any) -> PrivatePlan:
    """A small plan on two columns and two classes."""
    fields: dict[str, Any] = {
        "task": "classes", "n_estimators": 3, "criterion": "entropy", "max_depth": 2, "min_samples_split": 2,
        "min_samples_leaf": 1, "max_features": None, "bootstrap": False, "max_samples": None, "max_bins": None,
        "seed": 7, "epsilon": 1.0, "delta": 1e-6, "knots": {"a": (0.0, 1.0), "b": (-5.0, 5.0)}, "classes": (0, 1),
        "columns_per_tree": 1,
    }  # fmt: skip
    return PrivatePlan(**fields | changes)


def entropy_of(name: str, trial: int) -> Callable[[str], bytes]:
    return lambda purpose: hashlib.sha256(f"{trial} {name} {purpose}".encode()).digest()


def holdings(name: str, X: NDArray[Any], y: NDArray[Any], trial: int = 0) -> Holdings:
    """What a client with columns a and b brings."""
    import pandas as pd

    return Holdings(
        name=name,
        table=read_table(pd.DataFrame(np.asarray(X, np.float32).reshape(-1, 2), columns=["a", "b"])),
        target=Target((0, 1), np.asarray(y, np.int64), np.empty(0)),
        entropy=entropy_of(name, trial),
        lasting=entropy_of(name, trial),
        client_budget=LocalBudget(name),
        job="job",
        shared_secret=COMMON,
    )


def rows(n: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(0, 1, n), rng.uniform(-5, 5, n)])
    return X, (X[:, 0] + X[:, 1] / 10 + 0.2 * rng.normal(size=n) > 0.5).astype(np.int64)


def play(
    plan: PrivatePlan, clients: Mapping[str, PrivateClient]
) -> tuple[Any, list[dict[str, tuple[Message, Message]]]]:
    """Run a training; returns the model's parts, and what every client was asked and has answered."""
    protocol, log = private_forest(plan, tuple(clients)), []
    step = next(protocol)
    while True:
        replies = {name: clients[name].handle(message) for name, message in step.requests.items()}
        log.append({name: (step.requests[name], reply) for name, reply in replies.items()})
        try:
            step = protocol.send(replies)
        except StopIteration as end:
            return end.value, log


def clients_of(
    plan: PrivatePlan,
    trial: int = 0,
    n: int = 40,
    names: Sequence[str] = NAMES,
    kind: type[PrivateClient] = PrivateClient,
) -> dict[str, PrivateClient]:
    return {name: kind(holdings(name, *rows(n, k), trial), plan) for k, name in enumerate(names)}
