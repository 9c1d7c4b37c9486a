"""A user who may train names a column as the label, and reads it from the answers.

Rows with one answer share a leaf, and the answer is the mean of the leaf's labels. Trees of several jobs cut the rows
differently: together their leaves are equations, as at the coordinator. Answers are all that the user gets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack
from scipy.sparse.linalg import lsmr

from woodlot.data.sources import TableSource
from woodlot.estimators.federated_forest import FederatedForestRegressor
from woodlot.federation import Federation
from woodlot.jobs.policy import EVERYBODY, UNLIMITED, Limit, Policy
from woodlot.leaks.case import Case, Finding, not_attacked
from woodlot.leaks.label_attacks import CLOSE, targets_recovered
from woodlot.service.config import PartyConfig

USER = "user"
JOBS_PER_ROW_OF_A_LEAF = 2
"""Jobs that a thief orders for every row that a leaf must have."""


@dataclass(frozen=True)
class PolicyGuard:
    """What a party's configuration says to an order: its tables, and its policy.

    Attributes
    ----------
    tables : tuple of TableSource
        They name the columns that may be labels.
    policy : Policy
        What users may do.

    """

    tables: tuple[TableSource, ...]
    policy: Policy = field(default_factory=Policy)

    @classmethod
    def of(cls, config: PartyConfig) -> PolicyGuard:
        """The guard of a party's file."""
        return cls(tuple(config.tables.values()), config.policy)

    def may_label(self, column: str) -> bool:
        """Whether any table lets a column be a label."""
        return any(table.may_label(column) for table in self.tables)

    def refusal(self) -> str:
        """Why no user gets answers of a training, whatever the label; empty: some do."""
        if "train" not in self.policy.protocols or not self.policy.train:
            return "nobody may train"
        if not self.policy.predict or not self.policy.receive:
            return "nobody may receive predictions"
        if self.policy.trainings_per_day == 0 or self.policy.predictions_per_day == 0:
            return "no training or prediction is allowed on any day"
        return ""

    def days(self, jobs: int, rows: int) -> int:
        """Days that so many trainings, and predictions of as many rows each, take."""

        def needed(amount: int, limit: Limit) -> int:
            return 1 if limit == UNLIMITED else ceil(amount / int(limit))

        return max(needed(jobs, self.policy.trainings_per_day), needed(jobs * rows, self.policy.predictions_per_day))


def undeclared() -> PolicyGuard:
    """A party that lets everybody train and receive answers, and whose table names no label: the default of a file."""
    policy = Policy(train=(EVERYBODY,), predict=(EVERYBODY,), receive=(EVERYBODY,))
    return PolicyGuard((TableSource("table", id="id", labels=(), weights=(), path=Path("table.parquet")),), policy)


def theft_attacks(case: Case, guards: Mapping[str, PolicyGuard], setting: str) -> list[Finding]:
    """Try to read one column of every party through answers of ordinary jobs.

    Parameters
    ----------
    guards : mapping of str to PolicyGuard
        Of each party; one without any lets everything be done, as in one process.
    setting : str
        What is attacked, in words.

    """
    found = []
    for party in case.parties:
        names = [name for name in case.columns[party] if case.is_numeric(party, name)]
        guard = guards.get(party)
        attack, measure = f"columns of {party} as labels", "values read to 1 %"
        if not names:
            found.append(not_attacked(USER, setting, "values", attack, "the party has no column of numbers"))
            continue
        open_columns = [name for name in names if guard is None or guard.may_label(name)]
        why = "no column may be a label" if not open_columns else guard.refusal() if guard else ""
        if why:
            words = f"{why}: the order is refused at {party} before any answer ({len(names)} columns asked for)"
            found.append(Finding(USER, setting, "values", attack, measure, 0.0, 0.0, "no value", words))
            continue
        start = time.perf_counter()
        leaf = 1 if guard is None else guard.policy.min_samples_leaf
        jobs = 1 if leaf == 1 else JOBS_PER_ROW_OF_A_LEAF * leaf
        days = 1 if guard is None else guard.days(jobs, case.n_rows)
        name = max(open_columns, key=lambda column: len(np.unique(case.columns[party][column])))
        truth = case.matrix(party)[:, list(case.columns[party]).index(name)]
        value = targets_recovered(stolen_values(case, party, name, jobs, leaf), truth)
        mean = float((np.abs(truth - truth.mean()) <= CLOSE * truth.std()).mean())
        words = (
            f"{len(open_columns)} of {len(names)} columns of numbers may be labels; {name} was read in {jobs} "
            f"training{'' if jobs == 1 else 's'} with leaves of {leaf} or more, {days} day{'' if days == 1 else 's'}"
        )
        seconds = time.perf_counter() - start
        found.append(
            Finding(USER, setting, "values", attack, measure, value, mean, "guessing the mean", words, seconds)
        )
    return found


def stolen_values(case: Case, party: str, column: str, jobs: int, smallest_leaf: int) -> NDArray[np.float64]:
    """What a user makes of the answers of some jobs: the value of a column at every row."""
    federation = Federation.local(_with_numbers(case, party, column))
    systems, totals = [], []
    for job in range(jobs):
        # trees that try one random column at each node differ most from job to job
        tree = FederatedForestRegressor(
            1, bootstrap=False, max_features=None if jobs == 1 else 1, min_samples_leaf=smallest_leaf, random_state=job
        )
        answers = np.asarray(tree.fit(federation, y=f"{party}.{column}").predict(federation), np.float64)
        means, leaf = np.unique(answers, return_inverse=True)
        shape = (len(means), len(answers))
        systems.append(csr_matrix((np.ones(len(answers)), (leaf, np.arange(len(answers)))), shape=shape))
        totals.append(means * np.bincount(leaf))
    start = np.full(case.n_rows, totals[0].sum() / case.n_rows)
    return np.asarray(lsmr(vstack(systems), np.concatenate(totals), atol=1e-12, btol=1e-12, maxiter=2000, x0=start)[0])


def _with_numbers(case: Case, party: str, column: str) -> Mapping[str, object]:
    """The parties' tables, with the stolen column complete: a missing value cannot be a label."""
    columns = {p: dict(own) for p, own in case.columns.items()}
    columns[party][column] = case.matrix(party)[:, list(case.columns[party]).index(column)]
    return {p: pa.table(own) for p, own in columns.items()}
