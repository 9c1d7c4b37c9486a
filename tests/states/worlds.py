"""Runs of every protocol over parties in this process, recorded: what each party was asked, and what it answered.

A party is kept as it was before its first message, so that it can be played to again and again.
"""

from __future__ import annotations

import copy
import copyreg
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "crypto"))

from alignments import party as align_party
from alignments import run_alignment
from revocable_world import ready_master

import woodlot as wl
from woodlot.federation.local_revocable import Encryption
from woodlot.jobs import every_message  # noqa: F401 - all of them are thrown
from woodlot.protocols.core.message import Message
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers.inprocess import InProcessDriver

BITS = 512
N = 36
SMALL: dict[str, Any] = {"n_estimators": 2, "max_depth": 3, "random_state": 1}


@dataclass
class Part:
    """One party's side of a run."""

    party: Any
    asked: list[bytes] = field(default_factory=list)
    answered: list[bytes] = field(default_factory=list)

    def fresh(self, done: int = 0) -> Any:
        """The party as it was after some messages."""
        party = copied(self.party)
        for data in self.asked[:done]:
            party.handle(decode(data))
        return party


class _Tap:
    """Stands before a party and records."""

    def __init__(self, part: Part, party: Any) -> None:
        self._part, self._party = part, party

    def handle(self, message: Message) -> Message:
        self._part.asked.append(encode(message))
        reply: Message = self._party.handle(message)
        self._part.answered.append(encode(reply))
        return reply


def copied(party: Any) -> Any:
    """A party with a state of its own: locks become free ones, ledgers in memory others of the same rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(copyreg.dispatch_table, type(threading.Lock()), lambda lock: (threading.Lock, ()))
        patch.setitem(copyreg.dispatch_table, sqlite3.Connection, lambda db: (_database, (list(db.iterdump()),)))
        return copy.deepcopy(party)


def _database(content: list[str]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.executescript("\n".join(content))
    return db


@contextmanager
def recorded() -> Iterator[list[Part]]:
    """Every party of every driver that is made meanwhile."""
    parts: list[Part] = []
    original = InProcessDriver.__init__

    def tapped(self: InProcessDriver, handlers: Any, **options: Any) -> None:
        taps = {}
        for name, handler in handlers.items():
            part = Part(copied(handler))
            parts.append(part)
            taps[name] = _Tap(part, handler)
        original(self, taps, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcessDriver, "__init__", tapped)
        yield parts


def frame() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.normal(size=(N, 4)).round(2), columns=["age", "income", "visits", "basket"])
    return X, np.where(X["age"] + X["visits"] + rng.normal(size=N) > 0, "yes", "no")


DEALING = {"bank": ["age", "income"], "shop": ["visits", "basket"]}


def _vertical(**params: Any) -> None:
    X, y = frame()
    model = wl.FederatedForestClassifier(parties=DEALING, **SMALL, **params).fit(X, y)
    for method in ("one-round", "classical"):
        model.predict(X, method=method)


def _sealed() -> None:
    X, y = frame()
    wl.FederatedForestClassifier(parties=DEALING, **SMALL).fit(X, y).predict(X, method="one-round", sealed=True)


def _explained() -> None:
    X, y = frame()
    tables = {party: X[columns] for party, columns in DEALING.items()}
    tables["bank"] = tables["bank"].assign(late=y)
    fed = wl.Federation.local(tables, explains={"bank": "values", "shop": "party"})
    wl.FederatedForestClassifier(**SMALL).fit(fed, y="bank.late").explain(fed)


def _regrown() -> None:
    X, y = frame()
    wl.FederatedForestClassifier(parties={**DEALING, "club": []}, **SMALL).fit(X, y).revoke("shop")


def _hidden(kind: Any, **params: Any) -> None:
    X, y = frame()
    X, y = pd.concat([X] * 3, ignore_index=True), np.tile(y == "yes", 3)  # leaves have at least 20 rows
    kind(parties={**DEALING, "club": []}, protection="hidden", max_bins=4, **SMALL, **params).fit(X, y)


def _revocable() -> None:
    X, y = frame()
    keys = Encryption(BITS, "test", ready_master)
    model = wl.RevocableForestClassifier(parties=DEALING, scheme="paper", encryption=keys, **SMALL)
    model.fit(X, y).predict(X[:3])
    model.score(X, y, encrypted_splits=True)


def _shares() -> None:
    X, y = frame()
    wl.RevocableForestClassifier(parties=DEALING, **SMALL).fit(X, y).predict_encrypted(X[:3])


def _rows(kind: Any, **params: Any) -> None:
    X, y = frame()
    kind(parties=3, **SMALL, **params).fit(X, y)


def _weighed_rows(**params: Any) -> None:
    X, y = frame()
    model = wl.HorizontalForestClassifier(parties=3, **SMALL, **params)
    model.fit(X, y, sample_weight=np.linspace(0.5, 2.0, len(y)))


def _linear(**params: Any) -> None:
    X, y = frame()
    wl.FederatedLogisticRegression(parties=DEALING, max_iter=4, tol=1.0, **params).fit(X, y)


def _align(method: Any) -> None:
    run_alignment({"bank": align_party("bank", [1, 2, 3, 5]), "shop": align_party("shop", [2, 3, 4])}, method)


WORLDS: dict[str, Callable[[], None]] = {
    "vertical": _vertical,
    "vertical, sealed": _sealed,
    "vertical, explained": _explained,
    "vertical, regrown": _regrown,
    "hidden": lambda: _hidden(wl.FederatedForestClassifier),
    "hidden, regression": lambda: _hidden(wl.FederatedForestRegressor, bootstrap=False, feature_sampling="tree"),
    "revocable": _revocable,
    "revocable, shares": _shares,
    "rows, extra trees": lambda: _rows(wl.FederatedExtraTreesClassifier),
    "rows, collaborative": lambda: _rows(wl.CollaborativeForestClassifier),
    "rows, lossless": lambda: _rows(wl.HorizontalForestClassifier, oob_score=True),
    "rows, lossless, weighted": lambda: _rows(wl.HorizontalForestClassifier, class_weight="balanced"),
    "rows, private": lambda: _rows(wl.PrivateForestClassifier),
    "rows, lossless, weights of rows": lambda: _weighed_rows(oob_score=True),
    "linear": _linear,
    "linear, hidden": lambda: _linear(protection="hidden"),
    "align, keyed hash": lambda: _align("keyed-hash"),
    "align, intersection": lambda: _align("psi"),
}


@cache
def world(name: str) -> list[Part]:
    """The parties of one run that were asked anything."""
    with recorded() as parts:
        WORLDS[name]()
    return [part for part in parts if part.asked]
