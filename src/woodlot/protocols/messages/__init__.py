"""Every wire message of every protocol: what is not declared here does not travel."""

from __future__ import annotations

from woodlot.protocols.messages import (
    align,
    base,
    blind,
    extra_trees,
    horizontal,
    jobs,
    linear,
    linear_encrypted,
    lossless,
    revocable,
    revocable_keys,
    row_jobs,
    scores,
    sealed,
    secure_sum,
    vertical,
)

__all__ = [
    "align",
    "base",
    "blind",
    "extra_trees",
    "horizontal",
    "jobs",
    "linear",
    "linear_encrypted",
    "lossless",
    "revocable",
    "revocable_keys",
    "row_jobs",
    "scores",
    "sealed",
    "secure_sum",
    "vertical",
]
