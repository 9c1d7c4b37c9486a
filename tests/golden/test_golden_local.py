"""Golden digests of every protocol with all parties in this process: journals, model files and answers.

``golden.json`` has a line for each setting, and one for each of its messages. It changes only in a commit that says
why. To write it::

    WOODLOT_WRITE_GOLDEN=names pytest -n 0 tests/golden      # only names may have changed, no contents
    WOODLOT_WRITE_GOLDEN=secrets pytest -n 0 tests/golden    # only what follows from secrets may have changed
    WOODLOT_WRITE_GOLDEN=all pytest -n 0 tests/golden        # anything may have changed

It refuses to write where ``CI`` is set or in several processes, and the tests are skipped, never passed, while it does.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from canonical import rounded
from golden_data import companies, everything, hospitals
from goldens import (
    Golden,
    as_arrays,
    check,
    difference,
    files_of,
    given_secrets,
    golden_of,
    recorded,
    stored,
    without_secrets,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))

import alignments
import numpy as np
import pyarrow as pa
import revocable_world
import secure_sums

import woodlot as wl
from woodlot.federation.local_revocable import Encryption
from woodlot.protocols.revocable.row_test import RowTester, walk_own_rows
from woodlot.protocols.vertical.answers import match_columns

BITS = 512
"""Keys are short here: what is done with them is the same."""
SMALL: dict[str, Any] = {"n_estimators": 3, "max_depth": 3, "random_state": 5, "n_jobs": 1}

Results = dict[str, Any]
Setting = Callable[[Path], Results]
SETTINGS: dict[str, Setting] = {}


def setting(name: str) -> Callable[[Setting], Setting]:
    """Add a setting; its docstring says what it digests."""

    def add(run: Setting) -> Setting:
        SETTINGS[name] = run
        return run

    return add


def run(name: str, folder: Path, secret: str) -> Golden:
    """Run a setting with secrets that follow from one."""
    with warnings.catch_warnings(), given_secrets(secret), recorded() as said:
        warnings.simplefilter("ignore", UserWarning)  # small forests leave rows without out-of-bag answers
        results = SETTINGS[name](folder)
    return golden_of(said, results, whole=True)


@pytest.mark.parametrize("name", SETTINGS)
def test_local(name: str, tmp_path: Path) -> None:
    check(name, str(SETTINGS[name].__doc__), run(name, tmp_path, "golden"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_other_secrets_change_nothing_else(name: str, tmp_path: Path) -> None:
    """The table in `fields` is complete: all that follows from secrets is in it."""
    problem = difference(without_secrets(stored(name)), without_secrets(run(name, tmp_path, "another")))
    assert problem is None, f"{name}: {problem}"


def saved(model: Any, folder: Path, *, exact: bool = True, **answers: Any) -> Results:
    """A fitted model: its files, and what it answers; see `files_of`."""
    model.save(folder / "model")
    given = as_arrays(**answers)
    return {"files": files_of(folder / "model", exact=exact), "answers": given if exact else rounded(given)}


# --- vertical forests ---


def classify(folder: Path, label: str = "late", weight: str | None = None, **params: Any) -> Results:
    federation = wl.Federation.local(companies(label, weight=weight is not None), id="id")
    model = wl.FederatedForestClassifier(**SMALL | params).fit(federation, y=f"bank.{label}", sample_weight=weight)
    answers = {"proba": model.predict_proba(federation), "importances": model.feature_importances_}
    return saved(
        model, folder, exact=model.criterion != "entropy", **answers
    )  # gains of entropy are made of logarithms


def regress(folder: Path, **params: Any) -> Results:
    federation = wl.Federation.local(companies("amount"), id="id")
    model = wl.FederatedForestRegressor(**SMALL | params).fit(federation, y="bank.amount")
    return saved(model, folder, values=model.predict(federation))


@setting("vertical/classifier")
def _(folder: Path) -> Results:
    """Two classes; categories and missing values; out-of-bag score."""
    return classify(folder, oob_score=True)


@setting("vertical/three-classes")
def _(folder: Path) -> Results:
    """Three classes, balanced weights, bins, majority vote."""
    return classify(folder, "risk", class_weight="balanced", max_bins=6, voting="majority")


@setting("vertical/entropy")
def _(folder: Path) -> Results:
    """Entropy, without a bootstrap, a candidate list per tree."""
    return classify(folder, criterion="entropy", bootstrap=False, feature_sampling="tree")


@setting("vertical/weights")
def _(folder: Path) -> Results:
    """Weights of the rows, trees that draw half of them."""
    return classify(folder, weight="bank.weight", max_samples=0.5, min_weight_fraction_leaf=0.05)


@setting("vertical/best-first")
def _(folder: Path) -> Results:
    """The best nodes first, at most six leaves; a least decrease of impurity."""
    return classify(folder, max_depth=None, max_leaf_nodes=6, min_impurity_decrease=0.001)


@setting("vertical/regressor")
def _(folder: Path) -> Results:
    """A target; out-of-bag score and residuals."""
    return regress(folder, oob_score=True)


@setting("vertical/regressor-best-first")
def _(folder: Path) -> Results:
    """A target, bins, the best nodes first, a least decrease of impurity."""
    return regress(folder, max_depth=None, max_leaf_nodes=5, max_bins=8, min_impurity_decrease=0.5)


@setting("vertical/shared-model")
def _(folder: Path) -> Results:
    """All parties let the coordinator keep the complete model."""
    federation = wl.Federation.local(companies("late"), id="id", shares_model=True)
    model = wl.FederatedForestClassifier(**SMALL).fit(federation, y="bank.late")
    return saved(model, folder, proba=model.predict_proba(federation))


@setting("vertical/dealt")
def _(folder: Path) -> Results:
    """One table whose columns are dealt to two parties."""
    columns = everything()
    y = columns["risk"]
    table = pa.table({name: columns[name] for name in ("age", "income", "town", "visits", "basket", "colour")})
    model = wl.FederatedForestClassifier(**SMALL, parties=2).fit(table, y)
    return saved(model, folder, proba=model.predict_proba(table))


@setting("vertical/predictions")
def _(folder: Path) -> Results:
    """One round with each wire form, node by node, and sealed; a party that lacks rows; permuted columns."""
    tables = companies("late")
    federation = wl.Federation.local(tables, id="id")
    model = wl.FederatedForestClassifier(**SMALL).fit(federation, y="bank.late")
    fewer = wl.Federation.local(tables | {"shop": tables["shop"].slice(0, 40)}, id="id", join="outer")
    proba, uncertain = model.predict_proba(fewer, return_uncertain=True)
    answers = {
        "decisions": model.predict_proba(federation),
        "leaves": model.predict_proba(federation, wire="leaves"),
        "ranks": model.predict_proba(federation, wire="ranks"),
        "classical": model.predict_proba(federation, method="classical"),
        "sealed": model.predict_proba(federation, sealed=True),
        "without some rows": proba,
        "uncertain": uncertain,
        "permuted": model.permutation_importance(federation, n_repeats=1, random_state=0).importances,
    }
    return {"answers": as_arrays(**answers)}


@setting("vertical/revoke")
def _(folder: Path) -> Results:
    """A party leaves: its nodes at level 1, then another exactly at level 3; both receipts."""
    federation = wl.Federation.local(companies("late"), id="id")
    model = wl.FederatedForestClassifier(**SMALL).fit(federation, y="bank.late")
    first = model.revoke("shop", level=1)
    second = model.revoke("club", level=3)
    return saved(model, folder) | {"receipts": [first.statement, second.statement]}


# --- linear models ---


def line(model: Any, label: str, folder: Path, **params: Any) -> Results:
    federation = wl.Federation.local(companies(label, numeric=True), id="id")
    model.set_params(**{"max_iter": 12, "tol": 1e-4} | params).fit(federation, y=f"bank.{label}")
    return saved(model, folder, exact=False, answers=model.predict(federation))


@setting("linear/logistic")
def _(folder: Path) -> Results:
    """Logistic regression of two classes."""
    return line(wl.FederatedLogisticRegression(), "late", folder)


@setting("linear/three-classes")
def _(folder: Path) -> Results:
    """Logistic regression of three classes, balanced."""
    return line(wl.FederatedLogisticRegression(), "risk", folder, class_weight="balanced")


@setting("linear/regression")
def _(folder: Path) -> Results:
    """Linear regression."""
    return line(wl.FederatedLinearRegression(alpha=0.1), "amount", folder)


@setting("linear/hidden-logistic")
def _(folder: Path) -> Results:
    """Logistic regression with residuals by dealt products."""
    return line(wl.FederatedLogisticRegression(), "late", folder, protection="hidden", max_iter=2)


@setting("linear/hidden-regression")
def _(folder: Path) -> Results:
    """Linear regression with residuals by dealt products."""
    return line(wl.FederatedLinearRegression(alpha=0.1), "amount", folder, protection="hidden", max_iter=2)


# --- revocable forests ---


def revocable(model: Any, label: str, folder: Path, **params: Any) -> Results:
    federation = wl.Federation.local(companies(label, numeric=True), id="id")
    keys: dict[str, Any] = {"scheme": "paper", "encryption": Encryption(BITS, "test", revocable_world.ready_master)}
    model.set_params(**SMALL | keys | params, oob_score=True)
    model.fit(federation, y=f"bank.{label}")
    tables = companies(label, numeric=True)
    first = wl.Federation.local({name: tables[name].slice(0, 48) for name in tables}, id="id")
    before = model.predict_encrypted(first)
    receipts = [model.revoke("shop", level=1), model.revoke("club", level=2)]
    rest = first.without("shop").without("club")
    after = model.predict_encrypted(rest)
    return saved(model, folder, before=before, after=after) | {"receipts": [r.statement for r in receipts]}


@setting("revocable/classifier")
def _(folder: Path) -> Results:
    """Train, predict under encryption, revoke at level 1, rotate all keys (level 2), predict again."""
    return revocable(wl.RevocableForestClassifier(), "risk", folder)


@setting("revocable/regressor")
def _(folder: Path) -> Results:
    """A target; the same steps."""
    return revocable(wl.RevocableForestRegressor(), "amount", folder, rho=5, zeta=3)


@setting("revocable/shares")
def _(folder: Path) -> Results:
    """Splits and requests split between helper and key service; the same steps."""
    return revocable(wl.RevocableForestClassifier(), "risk", folder, scheme="shares")


@setting("revocable/exact")
def _(folder: Path) -> Results:
    """Two participants leave together, exactly (level 3); nothing is encrypted."""
    federation = wl.Federation.local(companies("late", numeric=True), id="id")
    model = wl.RevocableForestClassifier(**SMALL, encryption="simulated").fit(federation, y="bank.late")
    receipts = model.revoke_together(["shop", "club"], level=3)
    return saved(model, folder) | {"receipts": [receipt.statement for receipt in receipts]}


@setting("revocable/test-rows")
def _(folder: Path) -> Results:
    """FRF-Test: every party says which way its own rows go at its own encrypted splits."""
    federation = wl.Federation.local(companies("late", numeric=True), id="id")
    grown = wl.RevocableForestClassifier(**SMALL, encryption="simulated").fit(federation, y="bank.late").forest_
    splits = {name: part.splits for name, part in grown.parts.items()}
    planted = revocable_world.Planted(grown.coordinator, splits, np.empty(0, np.int32), np.empty(0))
    world = revocable_world.World(planted)
    keys, forest = world.begin()
    world.members = {
        name: RowTester(
            part,
            match_columns(part.names, part.codings, federation.members[name].table),
            world.providers[name].keys,
            fingerprint=revocable_world.FOREST,
        )
        for name, part in grown.parts.items()
    }
    return {"leaves": world.run(walk_own_rows(forest, keys, world.parties, federation.n_rows))}


# --- horizontal forests ---


DECLARED = {"age": (0, 80), "basket": (0, 25, 50), "years": (0, 30), "visits": (0, 12)}
TOWNS = {"town": ["Aarau", "Brugg", "Chur", "Davos"]}


def pooled(label: str) -> tuple[pa.Table, list[Any], list[str]]:
    """The hospitals' rows in one table, their labels, and whose they are."""
    tables = hospitals(label)
    table = pa.concat_tables(tables.values())
    whose = [name for name, own in tables.items() for _ in range(own.num_rows)]
    return table.drop_columns(["id", label]), table[label].to_pylist(), whose


def rows(model: Any, label: str, folder: Path, **params: Any) -> Results:
    """Fit on one table that is dealt to simulated clients, whose secrets follow from the seed."""
    X, y, whose = pooled(label)
    model.set_params(**SMALL | {"min_samples_leaf": 2, "parties": whose} | params).fit(X, y)
    return saved(model, folder, answers=model.predict(X))


def members(model: Any, label: str, folder: Path, **params: Any) -> Results:
    """Fit on a federation of clients."""
    federation = wl.Federation.local(hospitals(label), id="id", layout="rows")
    model.set_params(**SMALL | {"min_samples_leaf": 2} | params).fit(federation, y=label)
    return saved(model, folder, answers=model.predict(pooled(label)[0]))


@setting("rows/local-classifier")
def _(folder: Path) -> Results:
    """Local forests, put together."""
    return rows(wl.LocalForestsClassifier(criterion="gini"), "risk", folder)


@setting("rows/local-regressor")
def _(folder: Path) -> Results:
    """Local forests of a target, with bins."""
    return rows(wl.LocalForestsRegressor(), "amount", folder, max_bins=8)


@setting("rows/collaborative-classifier")
def _(folder: Path) -> Results:
    """Collaborative forest: grow, and adjust by secure sums."""
    return rows(wl.CollaborativeForestClassifier(criterion="gini"), "risk", folder)


@setting("rows/collaborative-regressor")
def _(folder: Path) -> Results:
    """Collaborative forest of a target, leaves averaged by rows, plain sums."""
    return rows(wl.CollaborativeForestRegressor(), "amount", folder, leaf_average="rows", sums="plain")


@setting("rows/collaborative-federation")
def _(folder: Path) -> Results:
    """Collaborative forest on a federation, every row once; a client leaves it."""
    X, y, whose = pooled("late")
    model = wl.CollaborativeForestClassifier(criterion="gini", parties=whose, allow_two=True, min_samples_leaf=2)
    model.set_params(**SMALL).fit(X, y)
    receipt = model.revoke("chur", level=1)
    grown = members(wl.CollaborativeForestClassifier(criterion="gini"), "late", folder, bootstrap=False)
    return grown | {"receipts": [receipt.statement]}


@setting("rows/collaborative-noise")
def _(folder: Path) -> Results:
    """Leaf counts under differential privacy, with an epsilon so large that no noise is left; thresholds on a grid."""
    grid = {name: (float(ends[0]), float(ends[-1])) for name, ends in DECLARED.items()}
    model = wl.CollaborativeForestClassifier(criterion="gini", grid=grid, dp_leaf_epsilon=1e5, leaf_average="rows")
    return rows(model, "late", folder)


@setting("rows/extra-trees-classifier")
def _(folder: Path) -> Results:
    """Extra-trees in declared ranges."""
    model = wl.FederatedExtraTreesClassifier(declared=DECLARED | TOWNS, classes=["high", "low", "middle"])
    return members(model, "risk", folder)


@setting("rows/extra-trees-regressor")
def _(folder: Path) -> Results:
    """Extra-trees of a target, thresholds that clients propose."""
    return members(wl.FederatedExtraTreesRegressor(ranges="proposals", min_proposal_rows=3), "amount", folder)


@setting("rows/extra-trees-ldp")
def _(folder: Path) -> Results:
    """Extra-trees, labels under local differential privacy."""
    declared: dict[str, Any] = DECLARED | TOWNS
    model = wl.FederatedExtraTreesClassifier(declared=declared, classes=["no", "yes"], privacy=wl.LocalDP())
    return rows(model, "late", folder)


@setting("rows/extra-trees-gdp")
def _(folder: Path) -> Results:
    """Extra-trees, counts under global differential privacy, with an epsilon so large that no noise is left."""
    declared: dict[str, Any] = DECLARED | TOWNS
    private = wl.GlobalDP(query_epsilon=50.0)
    return rows(
        wl.FederatedExtraTreesClassifier(declared=declared, classes=["no", "yes"], privacy=private), "late", folder
    )


@setting("rows/lossless-classifier")
def _(folder: Path) -> Results:
    """The lossless forest by secure sums."""
    return members(wl.HorizontalForestClassifier(), "risk", folder, max_bins=8)


@setting("rows/lossless-regressor")
def _(folder: Path) -> Results:
    """The lossless forest of a target, by plain sums; every row once."""
    return members(wl.HorizontalForestRegressor(), "amount", folder, max_bins=8, sums="plain", bootstrap=False)


# --- secure sums and alignment ---


@setting("sums/masked")
def _(folder: Path) -> Results:
    """Three clients add up two vectors, under masks."""
    vectors = {name: [[k * k + 3, 70 - k, -5 * k], [k + 1, 1 << 40]] for k, name in enumerate(secure_sums.NAMES[:3])}
    return {"sums": secure_sums.total(secure_sums.clients_of(vectors), [3, 2], bound=1 << 41)}


@setting("sums/spared")
def _(folder: Path) -> Results:
    """Four clients add up two vectors under masks, the second without one of them."""
    vectors = {name: [[k + 3, 70 - k], [k, 1 << 20]] for k, name in enumerate(secure_sums.NAMES[:4])}
    clients: dict[str, Any] = dict(secure_sums.clients_of(vectors, quorum=3))
    clients["cedar"] = secure_sums.Dropping(clients["cedar"], secure_sums.AddUp, 2)
    return {"sums": secure_sums.total(clients, [2, 2], bound=1 << 21, spare_after=1.0, quorum=3)}


@setting("sums/plain")
def _(folder: Path) -> Results:
    """Two clients add up a vector in the open."""
    vectors = {name: [[k + 3, 70 - k]] for k, name in enumerate(secure_sums.NAMES[:2])}
    clients = secure_sums.clients_of(vectors, mode="plain")
    return {"sums": secure_sums.total(clients, [2], mode="plain")}


IDS = {"bank": [3, 14, 15, 92, 65], "shop": [15, 92, 6, 3], "club": [92, 3, 15, 88]}


def aligned(method: Any, join: Any = "inner", secret: bytes | None = None) -> Results:
    parties = {name: alignments.party(name, ids, secret=secret) for name, ids in IDS.items()}
    found = alignments.run_alignment(parties, method, join)
    return {"alignment": found, "rows": {name: party.rows for name, party in parties.items()}}


@setting("align/keyed-hash")
def _(folder: Path) -> Results:
    """Keyed hashes; inner and outer join; a secret that is drawn, and one that is configured."""
    drawn = {f"drawn {join}": aligned("keyed-hash", join) for join in ("inner", "outer")}
    return drawn | {"configured": aligned("keyed-hash", secret=alignments.SECRET)}


@setting("align/psi")
def _(folder: Path) -> Results:
    """Private set intersection."""
    return aligned("psi")
