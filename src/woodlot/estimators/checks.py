"""Checks of constructor parameters: each error names the parameter, what it was, and what it may be."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from woodlot.crypto.paillier import DEFAULT_BITS, SMALLEST_BITS

KEY_BITS = (SMALLEST_BITS, DEFAULT_BITS, 4096)
"""Lengths of a key that an estimator takes."""


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


def check_parameters(params: Mapping[str, Any], criteria: tuple[str, ...]) -> None:
    """Check what both forests have in common."""
    p = params
    n = p["n_estimators"]
    require(is_int(n) and n >= 1, "n_estimators", n, "a whole number of at least 1")
    require(p["criterion"] in criteria, "criterion", p["criterion"], f"one of {list(criteria)}")
    require(
        p["max_depth"] is None or (is_int(p["max_depth"]) and p["max_depth"] >= 1),
        "max_depth", p["max_depth"], "None or a whole number of at least 1",
    )  # fmt: skip
    split = p["min_samples_split"]
    require(
        (is_int(split) and split >= 2) or (not is_int(split) and is_real(split) and 0 < split <= 1),
        "min_samples_split", split, "a whole number of at least 2 or a fraction in (0, 1]",
    )  # fmt: skip
    leaf = p["min_samples_leaf"]
    require(
        (is_int(leaf) and leaf >= 1) or (not is_int(leaf) and is_real(leaf) and 0 < leaf < 1),
        "min_samples_leaf", leaf, "a whole number of at least 1 or a fraction in (0, 1)",
    )  # fmt: skip
    fraction = p["min_weight_fraction_leaf"]
    require(is_real(fraction) and 0 <= fraction <= 0.5, "min_weight_fraction_leaf", fraction, "a number in [0, 0.5]")
    features = p["max_features"]
    require(
        features is None
        or features in ("sqrt", "log2")
        or (is_int(features) and features >= 1)
        or (not is_int(features) and is_real(features) and 0 < features <= 1),
        "max_features", features, "None, 'sqrt', 'log2', a whole number of at least 1 or a fraction in (0, 1]",
    )  # fmt: skip
    leaves = p["max_leaf_nodes"]
    require(
        leaves is None or (is_int(leaves) and leaves >= 2),
        "max_leaf_nodes", leaves, "None or a whole number of at least 2",
    )  # fmt: skip
    decrease = p["min_impurity_decrease"]
    require(is_real(decrease) and decrease >= 0, "min_impurity_decrease", decrease, "a number of at least 0")
    samples = p["max_samples"]
    require(
        samples is None
        or (is_int(samples) and samples >= 1)
        or (not is_int(samples) and is_real(samples) and samples > 0),
        "max_samples", samples, "None, a whole number of at least 1 or a positive fraction",
    )  # fmt: skip
    bins = p["max_bins"]
    require(
        bins is None or (is_int(bins) and 2 <= bins <= 256), "max_bins", bins, "None or a whole number from 2 to 256"
    )
    require(p["feature_sampling"] in ("node", "tree"), "feature_sampling", p["feature_sampling"], "'node' or 'tree'")
    require(p["labels"] in ("shared", "encrypted"), "labels", p["labels"], "'shared' or 'encrypted'")
    check_key_length(p["key_bits"])
    voting = p.get("voting", "soft")
    require(voting in ("soft", "majority"), "voting", voting, "'soft' or 'majority'")
    for name in ("bootstrap", "oob_score"):
        require(isinstance(p[name], bool | np.bool_), name, p[name], "True or False")
    verbose = p["verbose"]
    known = isinstance(verbose, bool | np.bool_) or (is_int(verbose) and verbose >= 0)
    require(known, "verbose", verbose, "a whole number of at least 0")
    memory = p["memory_limit"]
    require(memory is None or (is_int(memory) and memory > 0), "memory_limit", memory, "None or a number of bytes")
    jobs = p["n_jobs"]
    require(jobs is None or (is_int(jobs) and jobs != 0), "n_jobs", jobs, "None or a whole number other than 0")
    parties = p["parties"]
    require(
        isinstance(parties, Mapping) or (is_int(parties) and parties >= 1),
        "parties", parties, "a whole number of at least 1 or a mapping of party name to its columns",
    )  # fmt: skip
    if p["oob_score"] and not p["bootstrap"]:
        raise ValueError("Out of bag estimation only available if bootstrap=True")
    if not p["bootstrap"] and samples is not None:
        raise ValueError(
            "`max_samples` cannot be set if `bootstrap=False`. Either switch to `bootstrap=True` or set "
            "`max_samples=None`."
        )


def check_key_length(bits: Any) -> None:
    """Check how long a key is to be."""
    require(is_int(bits) and bits in KEY_BITS, "key_bits", bits, f"one of {list(KEY_BITS)}")


def check_class_weight(class_weight: Any) -> None:
    """Check the classifier's own parameter."""
    named = class_weight in ("balanced", "balanced_subsample") if isinstance(class_weight, str) else False
    require(
        class_weight is None or named or isinstance(class_weight, Mapping),
        "class_weight", class_weight, "None, 'balanced', 'balanced_subsample' or a mapping of class to weight",
    )  # fmt: skip
