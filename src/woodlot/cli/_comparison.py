"""What the demonstration measures: forests alone, in one place, and federated. No output of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score, roc_auc_score

from woodlot import FederatedForestClassifier, Federation, connect
from woodlot.cli._companies import ID, LABEL, TABLES, TEST_TABLES, Companies, make_companies, write_companies
from woodlot.cli._one_place import OnePlace
from woodlot.connected import ConnectedFederation
from woodlot.estimators.complete import same_forest
from woodlot.jobs.job_messages import JobFacts
from woodlot.runtime.audit import Cost, DisclosureRow, Disclosures
from woodlot.service.local import LocalFederation
from woodlot.trees.parallel import effective_jobs

PARTIES = ("bank", "shop")
Y = f"bank.{LABEL}"
WARM_UP_TREES = 2
SETTING_TREES = 5
"""Trees of the forests that show both settings of ``protection``: a hidden training takes many times longer."""
N_JOBS = -1

Begin = Callable[[str], None]


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
class Setting:
    """A small forest under one setting of ``protection``: how good it is, and what it took."""

    protection: str
    trees: int
    accuracy: float
    fit_seconds: float
    rounds: int
    bytes: int


@dataclass(frozen=True)
class BitComparison:
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
class AlignmentSummary:
    """How the common customers were found."""

    n_rows: int
    seconds: float
    rounds: int
    bytes: int


@dataclass(frozen=True)
class Audit:
    """The records of one job: the coordinator's, and each party's own.

    Attributes
    ----------
    what : str
        What the job did: align, train or predict.
    job : str
        Its name.
    rows : Disclosures
        Who was sent what, from the coordinator's records.
    records : dict of str to int
        Entries at the coordinator and at each party.
    problem : str
        What is wrong with a chain of records; empty: nothing is.
    agree : bool
        Whether each party's own records tell of the same messages as the coordinator's.

    """

    what: str
    job: str
    rows: Disclosures
    records: dict[str, int]
    problem: str
    agree: bool

    @property
    def holds(self) -> bool:
        """Whether every chain is whole and all of them tell the same."""
        return not self.problem and self.agree


@dataclass(frozen=True)
class Delivery:
    """What the bank found in its folder: answers beside its own ids."""

    answers: pa.Table
    score: float
    """Accuracy as the bank has computed it."""


@dataclass(frozen=True)
class Comparison:
    """Everything that the demonstration shows."""

    companies: Companies
    address: str
    n_train: int
    n_test: int
    results: tuple[Result, ...]
    settings: tuple[Setting, ...]
    identity: BitComparison
    alignment: AlignmentSummary
    prediction_cost: Cost
    audits: tuple[Audit, ...]
    delivery: Delivery

    @property
    def holds(self) -> bool:
        """Whether the federation has done what it should."""
        return self.identity.holds and all(audit.holds for audit in self.audits)


@dataclass(frozen=True)
class _Run:
    """What the federation has done, as its user knows it."""

    model: FederatedForestClassifier
    fit_seconds: float
    answers: NDArray[np.float64]
    predict_seconds: float
    train: JobFacts
    test: JobFacts
    """The alignments."""
    delivery: JobFacts
    jobs: dict[str, tuple[str, Any]]
    """Job and the coordinator's audit, by what the job did."""
    settings: tuple[tuple[FederatedForestClassifier, float, NDArray[np.float64]], ...]
    """Forests of both settings of ``protection``, seconds of their fits, and their answers."""

    def compared_settings(self, truth: NDArray[Any]) -> tuple[Setting, ...]:
        """Both settings beside each other."""
        found = []
        for model, seconds, answers in self.settings:
            cost, accuracy = model.cost_, _quality(answers, model.classes_, truth)[0]
            n_bytes = cost.bytes_sent + cost.bytes_received
            found.append(Setting(model.protection, model.n_estimators, accuracy, seconds, cost.rounds, n_bytes))
        return tuple(found)

    def result(self, truth: NDArray[Any]) -> Result:
        """How the federation did, by labels that its user does not have."""
        cost, quality = self.model.cost_, _quality(self.answers, self.model.classes_, truth)
        n_bytes = cost.bytes_sent + cost.bytes_received
        return Result("federated", *quality, self.fit_seconds, self.predict_seconds, cost.rounds, n_bytes)


def compare(
    federation: LocalFederation, n_common: int, n_trees: int, seed: int, begin: Begin, started: Callable[[], None]
) -> Comparison:
    """Run the processes of a federation of `PARTIES`, then grow and test every forest.

    Parameters
    ----------
    federation : LocalFederation
        Its folders and keys are there, and no process runs.
    n_common, n_trees, seed : int
        Common customers, trees of each forest, and what decides both.
    begin : callable
        Told of each step.
    started : callable
        Called when the processes have been started.
    """

    def forest(trees: int = n_trees, **options: Any) -> FederatedForestClassifier:
        return FederatedForestClassifier(trees, random_state=seed, n_jobs=N_JOBS, **options)

    growing = f"growing {n_trees:,} tree{'s' * (n_trees != 1)}"
    companies = make_companies(n_common, seed)
    columns = {"bank": companies.bank_columns, "shop": companies.shop_columns}
    files = write_companies(companies, federation.root / "bank", federation.root / "shop")
    begin("starting coordinator, bank and shop as processes")
    n_jobs = max(1, effective_jobs(N_JOBS) // len(columns))
    federation.start(files, ID, n_jobs=n_jobs, labels={"bank": [LABEL]})
    started()
    begin("getting ready (a first run compiles its kernels)")
    _warm_up(companies, forest)
    done = _use(federation, forest, growing, begin)
    begin("ending the processes")
    federation.stop()  # so that the others are measured on a quiet machine, and all records are closed

    place = OnePlace(federation)
    train, test = place.rows(done.train.job, TABLES), place.rows(done.test.job, TEST_TABLES)
    truth = test[LABEL].to_numpy()
    # by id: so these do not depend on the order of the common rows, which comes from the parties' secrets
    sorted_train, sorted_test = train.sort_by(ID), test.sort_by(ID)
    results = []
    for party, own in columns.items():
        begin(f"{growing}: {party} alone")
        results.append(_measure(f"{party} alone", forest(parties=1), own, sorted_train, sorted_test))
    begin(f"{growing}: all columns in one place")
    plan, start = place.ordered_plan(done.delivery.model), time.perf_counter()
    central = place.grow(plan, columns, train)
    grown = time.perf_counter()
    wanted = central.outputs(test.drop_columns([ID, LABEL]), n_jobs=effective_jobs(N_JOBS))
    times = (grown - start, time.perf_counter() - grown)
    results.append(Result("one place", *_quality(wanted, central.classes, truth), *times))
    begin(f"{growing}: one place, scikit-learn")
    results.append(_measure_sklearn(n_trees, seed, columns, sorted_train, sorted_test))
    results.append(done.result(truth))
    begin("comparing bit by bit, reading all records")
    together = place.put_together(done.delivery.model, done.model.forest_.coordinator)
    structure = central.coordinator.structure
    return Comparison(
        companies=companies,
        address=federation.address,
        n_train=train.num_rows,
        n_test=test.num_rows,
        results=tuple(results),
        settings=done.compared_settings(truth),
        identity=BitComparison(
            same_forest=same_forest(together, central),
            n_trees=structure.n_trees,
            n_nodes=structure.n_nodes,
            same_answers=np.array_equal(done.answers, wanted),
            n_answers=wanted.size,
        ),
        alignment=_alignment(done.train),
        prediction_cost=done.model.prediction_cost_,
        audits=tuple(_audit(place, what, job, report) for what, (job, report) in done.jobs.items()),
        delivery=Delivery(place.delivered("bank", done.delivery.job), done.delivery.score or 0.0),
    )


# --- the federation ---


def _use(federation: LocalFederation, forest: Callable[..., Any], growing: str, begin: Begin) -> _Run:
    """What the user does: align, grow, predict, and have the bank given its answers."""
    federation.wait_connected()
    where = (federation.address, federation.identity)
    with connect(*where, tables=TABLES) as train, connect(*where, tables=TEST_TABLES) as test:
        begin("federation: finding the common customers")
        to_learn, to_test = train.align(), test.align()
        forest(WARM_UP_TREES).fit(train, y=Y).predict(test)  # the processes load the kernels, as this one has
        begin(f"federation: {growing}")
        model, start = forest(), time.perf_counter()
        model.fit(train, y=Y)
        fitted = time.perf_counter()
        begin("federation: predicting")
        again = time.perf_counter()
        answers = model.predict_proba(test)
        predicted = time.perf_counter()
        delivery = _deliver(test, model.forest_.model or "")
        begin(f"federation: growing {min(SETTING_TREES, model.n_estimators)} trees open and hidden")
        settings = tuple(
            _fit_setting(forest(min(SETTING_TREES, model.n_estimators), protection=protection), train, test)
            for protection in ("open", "hidden")
        )
        jobs = {"align": to_learn.job, "train": delivery.model, "predict": delivery.job}
        return _Run(
            model=model,
            fit_seconds=fitted - start,
            answers=answers,
            predict_seconds=predicted - again,
            train=to_learn,
            test=to_test,
            delivery=delivery,
            jobs={what: (job, train.client.audit(job)) for what, job in jobs.items()},
            settings=settings,
        )


def _fit_setting(
    model: FederatedForestClassifier, train: ConnectedFederation, test: ConnectedFederation
) -> tuple[FederatedForestClassifier, float, NDArray[np.float64]]:
    start = time.perf_counter()
    model.fit(train, y=Y)
    seconds = time.perf_counter() - start
    return model, seconds, model.predict_proba(test)


def _deliver(test: ConnectedFederation, model: str) -> JobFacts:
    """Have the bank score the answers and keep them beside its ids; nobody else gets them."""
    order = test.predict_order(model, Y, deliver_to="bank", give_answers=False)
    return test.client.finish(test.client.submit(order).job)


def _warm_up(companies: Companies, forest: Callable[..., Any]) -> None:
    """Compile for the types of these tables, in this process alone: the others find the kernels on the disk."""
    parties = {"bank": companies.bank_train, "shop": companies.shop}
    here = Federation.local(parties, id=ID)
    for protection in ("open", "hidden"):
        forest(WARM_UP_TREES, protection=protection).fit(here, y=Y).predict_proba(here)
    alone = companies.bank_train.select(companies.bank_columns)
    forest(WARM_UP_TREES, parties=1).fit(alone, companies.bank_train[LABEL].to_numpy()).predict_proba(alone)


def _alignment(facts: JobFacts) -> AlignmentSummary:
    seconds = (facts.ended or 0.0) - (facts.started or 0.0)
    return AlignmentSummary(facts.n_rows or 0, seconds, facts.rounds, sum(facts.bytes_by_party.values()))


def _audit(place: OnePlace, what: str, job: str, report: Any) -> Audit:
    """The coordinator's records beside those of the parties, which nobody can change from outside."""
    rows = Disclosures(tuple(DisclosureRow(**row) for row in json.loads(report.rows)))
    records, agree = {"coordinator": report.records}, True
    for party in TABLES:
        records[party], own = place.own_log(party, job)
        told = {row for row in rows if party in (row.sender, row.receiver)}
        agree = agree and told == set(own)
    return Audit(what, job, rows, records, report.problem, agree)


# --- the others ---


def _measure(
    name: str, model: FederatedForestClassifier, columns: list[str], train: pa.Table, test: pa.Table
) -> Result:
    start = time.perf_counter()
    model.fit(train.select(columns), train[LABEL].to_numpy())
    fitted = time.perf_counter()
    probabilities = model.predict_proba(test.select(columns))
    done = time.perf_counter()
    quality = _quality(probabilities, model.classes_, test[LABEL].to_numpy())
    return Result(name, *quality, fit_seconds=fitted - start, predict_seconds=done - fitted)


def _measure_sklearn(n_trees: int, seed: int, columns: dict[str, list[str]], train: pa.Table, test: pa.Table) -> Result:
    both = pa.concat_tables([train, test]).select([name for own in columns.values() for name in own])
    X = np.column_stack([feature for column in both.columns for feature in _features(column)])
    n = train.num_rows
    model = RandomForestClassifier(n_trees, random_state=seed, n_jobs=N_JOBS)
    start = time.perf_counter()
    model.fit(X[:n], train[LABEL].to_numpy())
    fitted = time.perf_counter()
    probabilities = model.predict_proba(X[n:])
    done = time.perf_counter()
    quality = _quality(probabilities, model.classes_, test[LABEL].to_numpy())
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
