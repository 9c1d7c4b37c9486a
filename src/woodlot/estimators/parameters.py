"""The one table of what constructor parameters may be; every estimator is checked against it before anything is done.

Read it by estimator, from the bottom: each names its family's table, and what is different for it. A test compares the
tables with the constructors, so a parameter without a line here cannot be added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np

from woodlot.crypto.dtpkc import DEFAULT_BITS, SETTING_BITS
from woodlot.federation.local_revocable import Encryption
from woodlot.privacy.settings import GlobalDP, LocalDP
from woodlot.protocols.revocable.participant import MAX_ZETA
from woodlot.protocols.rows.lossless import MOST_BINS
from woodlot.protocols.rows.private.private_plan import MOST_DEPTH, MOST_EPSILON
from woodlot.trees.encoding import MAX_COARSE, MIN_BINS
from woodlot.trees.sampling import WEIGHT_BITS

LONGEST_KEY = 16_384
"""Bits of the longest key of a revocable forest; longer ones take hours to make."""
MOST_TREES = 1_000_000
MOST_PARTIES = 10_000
MOST = 2**WEIGHT_BITS - 1
"""The largest whole number of all others: rows, draws and depths travel and are counted in 32 bits with a sign."""
LARGEST_FRACTION = 1_000
"""``max_samples`` as a fraction may be above 1: rows are drawn with replacement."""
_SHOWN = 200


@dataclass(frozen=True)
class Rule:
    """What one parameter may be: in words, and as a test that takes any object.

    Attributes
    ----------
    kinds : tuple of str
        What an error offers.
    holds : callable
        Whether a value is allowed. It must take anything: arrays, NaN, texts.
    """

    kinds: tuple[str, ...]
    holds: Callable[[Any], bool]

    def __or__(self, other: Rule) -> Rule:
        return Rule((*self.kinds, *other.kinds), lambda value: self.holds(value) or other.holds(value))

    @property
    def words(self) -> str:
        """Everything that is allowed, as it stands in an error."""
        return " or ".join(filter(None, [", ".join(self.kinds[:-1]), self.kinds[-1]]))


# --- single values ---


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise scikit-learn's kind of error unless the condition holds."""
    if not condition:
        raise ValueError(f"The {name!r} parameter must be {allowed}. Got {value!r} instead.")


def is_int(value: object) -> bool:
    """A whole number that is not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool | np.bool_)


def is_real(value: object) -> bool:
    """A real number that is not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


# --- kinds of values ---


def whole(least: int, most: int = MOST) -> Rule:
    """A whole number that is no truth value."""
    words = f"a whole number from {least:,} to {most:,}"
    return Rule((words,), lambda value: is_int(value) and least <= value <= most)


def number(words: str, holds: Callable[[float], bool]) -> Rule:
    """A real number that is neither a truth value nor, where ``holds`` compares it, NaN."""
    return Rule((words,), lambda value: is_real(value) and holds(_as_float(value)))


def fraction(words: str, holds: Callable[[float], bool]) -> Rule:
    """A real number that is not whole by its type: 1 is one row, 1.0 all of them."""
    return Rule((words,), lambda value: is_real(value) and not is_int(value) and holds(_as_float(value)))


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond what a float holds compares with nothing
        return float("nan")


def one_of(*texts: str) -> Rule:
    """One of some texts."""
    return Rule(tuple(map(repr, texts)), lambda value: isinstance(value, str) and value in texts)


def said(words: str, rule: Rule) -> Rule:
    """A rule in words of its own."""
    return Rule((words,), rule.holds)


def instance(words: str, *kinds: type) -> Rule:
    """An object of some classes."""
    return Rule((words,), lambda value: isinstance(value, kinds))


NONE = Rule(("None",), lambda value: value is None)
FLAG = Rule(("True", "False"), lambda value: isinstance(value, bool | np.bool_))
POSITIVE = number("a positive number", lambda value: 0 < value < np.inf)
NOT_NEGATIVE = number("a finite number of at least 0", lambda value: 0 <= value < np.inf)
COLUMNS_BY_PARTY = instance("a mapping of party name to its columns", Mapping)
ROWS_BY_CLIENT = Rule(("the client of each row",), lambda value: _is_line(value, "iuUTO"))
CLASSES = Rule(("a list of classes",), lambda value: _is_line(value, "biufUTO") and len(value) > 0)
BY_COLUMN = instance("a mapping from columns to ranges, such as {'age': (0, 120)}", Mapping)
RANDOM = Rule(("a RandomState",), lambda value: value is np.random or isinstance(value, np.random.RandomState))


def _is_line(value: Any, kinds: str) -> bool:
    """Whether a value is a sequence of numbers or texts, none of them missing."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        return False
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return False
    if array.ndim != 1 or array.dtype.kind not in kinds:
        return False
    return not any(one is None or one != one for one in array.tolist())


# --- the table, by parameter ---

_ALL: dict[str, Rule] = {
    "verbose": FLAG | whole(0),
}
_TREES: dict[str, Rule] = _ALL | {
    "n_estimators": whole(1, MOST_TREES),
    "max_depth": NONE | whole(1),
    "max_features": NONE
    | one_of("sqrt", "log2")
    | whole(1)
    | fraction("a fraction in (0, 1]", lambda value: 0 < value <= 1),
    "n_jobs": NONE | Rule(("a whole number other than 0",), lambda value: is_int(value) and 0 < abs(value) <= MOST),
    "random_state": NONE | whole(0, 2**32 - 1) | RANDOM,
}
_CLASSES = {"criterion": said("one of ['gini', 'entropy', 'log_loss']", one_of("gini", "entropy", "log_loss"))}
_TARGETS = {"criterion": said("one of ['squared_error']", one_of("squared_error"))}
_SAMPLES: dict[str, Rule] = {
    "bootstrap": FLAG,
    "max_samples": NONE
    | whole(1)
    | fraction(f"a fraction in (0, {LARGEST_FRACTION:,}]", lambda value: 0 < value <= LARGEST_FRACTION),
}
_DEALT_COLUMNS = {"parties": whole(1, MOST_PARTIES) | COLUMNS_BY_PARTY}
_DEALT_ROWS = {"parties": whole(1, MOST_PARTIES) | ROWS_BY_CLIENT}

_CLASS_WEIGHT = {
    "class_weight": NONE | one_of("balanced", "balanced_subsample") | instance("a mapping of class to weight", Mapping)
}
_VOTING = {"voting": one_of("soft", "majority")}
_COLUMNS: dict[str, Rule] = _TREES | _SAMPLES | _DEALT_COLUMNS | {
    "min_samples_split": whole(2) | fraction("a fraction in (0, 1]", lambda value: 0 < value <= 1),
    "min_samples_leaf": whole(1) | fraction("a fraction in (0, 1)", lambda value: 0 < value < 1),
    "oob_score": FLAG,
}  # fmt: skip
_FEDERATED: dict[str, Rule] = _COLUMNS | {
    "min_weight_fraction_leaf": number("a number in [0, 0.5]", lambda value: 0 <= value <= 0.5),
    "max_leaf_nodes": NONE | whole(2),
    "min_impurity_decrease": NOT_NEGATIVE,
    "ccp_alpha": NOT_NEGATIVE,
    "bootstrap_by": one_of("draw", "row"),
    "feature_sampling": one_of("node", "tree"),
    "protection": one_of("open", "hidden"),
    "max_bins": NONE | whole(MIN_BINS, MAX_COARSE),
    "min_cell": NONE | one_of("auto") | whole(0),
    "memory_limit": NONE | whole(1, 2**62),
    "device": one_of("cpu", "cuda", "auto"),
}
_REVOCABLE: dict[str, Rule] = _COLUMNS | {
    "max_depth": said(f"{whole(1).words}: an encrypted prediction costs a round per level", whole(1)),
    "rho": said(f"0 (all samples) or {whole(1).words}", whole(0)),
    "zeta": whole(1, MAX_ZETA),
    "reuse_features": FLAG,
    "scheme": one_of("auto", "shares", "paper"),
    "encryption": said(
        f"a length of keys from {SETTING_BITS['standard']} to {LONGEST_KEY} bits ({DEFAULT_BITS} is the default)",
        whole(SETTING_BITS["standard"], LONGEST_KEY),
    )
    | said("'paper' for the paper's 1024 bits", one_of("paper"))
    | said("'simulated' for none", one_of("simulated") | instance("", Encryption)),
}

_ROWS: dict[str, Rule] = _TREES | _DEALT_ROWS | {"min_samples_split": whole(2), "min_samples_leaf": whole(1)}
_SPARING: dict[str, Rule] = {
    "spare_after": NONE | POSITIVE,
    "quorum": NONE | whole(1) | fraction("a share of the clients in (0, 1)", lambda value: 0 < value < 1),
}
_SUMS: dict[str, Rule] = {"sums": one_of("secure", "plain"), "allow_two": FLAG}
_LOCAL: dict[str, Rule] = _ROWS | _SAMPLES | {"max_bins": NONE | whole(MIN_BINS, MAX_COARSE)}
_COLLABORATIVE: dict[str, Rule] = _LOCAL | _SUMS | {
    "leaf_average": one_of("plain", "rows"),
    "min_leaf_rows": NONE | whole(1),
    "grid": NONE | BY_COLUMN,
}  # fmt: skip
_LOSSLESS: dict[str, Rule] = _ROWS | _SAMPLES | _SUMS | _SPARING | {
    "max_bins": whole(MIN_BINS, MOST_BINS),
    "oob_score": FLAG,
    "device": _FEDERATED["device"],
    "bins": NONE
    | Rule(
        ("finite edges in ascending order for each of some columns",),
        lambda value: isinstance(value, Mapping) and all(_are_edges(edges) for edges in value.values()),
    ),
}  # fmt: skip
_EXTRA: dict[str, Rule] = _ROWS | _SUMS | {
    "ranges": one_of("declared", "proposals", "private-quantiles"),
    "declared": NONE | BY_COLUMN,
    "quantile_epsilon": POSITIVE,
    "min_proposal_rows": whole(2),
}  # fmt: skip

_PRIVATE: dict[str, Rule] = _TREES | _DEALT_ROWS | _SPARING | {
    "epsilon": number(f"a number above 0 and at most {MOST_EPSILON:,}", lambda value: 0 < value <= MOST_EPSILON),
    "delta": number("a number in (0, 1)", lambda value: 0 < value < 1),
    "n_estimators": NONE | whole(1, MOST_TREES),
    "max_depth": NONE | whole(1, MOST_DEPTH),
    "max_features": NONE | whole(1),
    "learning_rate": number("a number in (0, 1]", lambda value: 0 < value <= 1),
    "ranges": one_of("auto", "declared", "private-quantiles"),
    "declared": NONE | BY_COLUMN,
    "colluding": whole(0, MOST_PARTIES),
    "allow_two": FLAG,
}  # fmt: skip

_LINEAR: dict[str, Rule] = _ALL | _DEALT_COLUMNS | {
    "fit_intercept": FLAG,
    "standardize": FLAG,
    "max_iter": whole(1),
    "tol": NOT_NEGATIVE,
    "protection": _FEDERATED["protection"],
}  # fmt: skip


def _are_edges(edges: Any) -> bool:
    try:
        numbers = np.asarray(edges, np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    return numbers.ndim == 1 and bool(np.isfinite(numbers).all() and (np.diff(numbers) > 0).all())


# --- the table, by estimator ---

TABLE: Mapping[str, Mapping[str, Rule]] = {
    "FederatedForestClassifier": _FEDERATED | _CLASSES | _VOTING | _CLASS_WEIGHT,
    "FederatedForestRegressor": _FEDERATED | _TARGETS,
    "RevocableForestClassifier": _REVOCABLE | _VOTING | {"criterion": said("one of ['gini']", one_of("gini"))},
    "RevocableForestRegressor": _REVOCABLE | _TARGETS,
    "LocalForestsClassifier": _LOCAL | _CLASSES,
    "LocalForestsRegressor": _LOCAL | _TARGETS,
    "CollaborativeForestClassifier": _COLLABORATIVE | _CLASSES | {"dp_leaf_epsilon": NONE | POSITIVE},
    "CollaborativeForestRegressor": _COLLABORATIVE | _TARGETS,
    "HorizontalForestClassifier": _LOSSLESS | _CLASSES | {
        "class_weight": NONE | one_of("balanced") | instance("a mapping of class to weight", Mapping),
    },
    "HorizontalForestRegressor": _LOSSLESS | _TARGETS,
    "FederatedExtraTreesClassifier": _EXTRA | _CLASSES | {
        "classes": NONE | CLASSES,
        "min_samples_leaf": NONE | whole(1),
        "privacy": NONE | instance("a LocalDP", LocalDP) | instance("a GlobalDP", GlobalDP),
    },
    "FederatedExtraTreesRegressor": _EXTRA | _TARGETS | {
        "privacy": said("None for regression: targets are no labels", NONE)
    },
    "PrivateForestClassifier": _PRIVATE | {"classes": NONE | CLASSES},
    "PrivateForestRegressor": _PRIVATE | {
        "target_range": NONE
        | Rule(
            ("two finite numbers, the smaller first",),
            lambda value: _are_edges(value) and np.size(value) == 2,
        ),
    },
    "FederatedLogisticRegression": _LINEAR | {
        "C": number("a positive number", lambda value: value > 0),  # infinite: no penalty
        "class_weight": NONE | one_of("balanced") | instance("a mapping of class to weight", Mapping),
    },
    "FederatedLinearRegression": _LINEAR | {"alpha": NOT_NEGATIVE},
}  # fmt: skip


class Estimator(Protocol):
    """What has parameters."""

    def get_params(self, deep: bool = ...) -> dict[str, Any]:
        """Return the constructor's parameters."""


def check_parameters(estimator: Estimator) -> None:
    """Refuse a parameter of the wrong kind or size; each error names it, what it is, and what it may be."""
    params = estimator.get_params(deep=False)
    rules = next(TABLE[kind.__name__] for kind in type(estimator).__mro__ if kind.__name__ in TABLE)
    for name, rule in rules.items():
        if not rule.holds(params[name]):
            shown = repr(params[name])
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
            raise ValueError(f"The {name!r} parameter must be {rule.words}. Got {shown} instead.")
    for label, weight in params["class_weight"].items() if isinstance(params.get("class_weight"), Mapping) else ():
        if not NOT_NEGATIVE.holds(weight):
            raise ValueError(f"class_weight[{label!r}] must be a number of at least 0. Got {weight!r} instead.")
    if params.get("oob_score") and not params["bootstrap"]:
        raise ValueError("Out of bag estimation only available if bootstrap=True")
    if params.get("max_samples") is not None and not params["bootstrap"]:
        raise ValueError(
            "`max_samples` cannot be set if `bootstrap=False`. Either switch to `bootstrap=True` or set "
            "`max_samples=None`."
        )
