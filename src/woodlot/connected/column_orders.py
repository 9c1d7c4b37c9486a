"""Which columns of parties elsewhere a model learns from: each is told its own, sealed to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from woodlot.data.wording import quoted
from woodlot.exceptions import DataError
from woodlot.federation import Labels


def chosen_fields(
    parties: Sequence[str], features: Any, exclude: Any, labels: Labels | str | None
) -> dict[str, dict[str, tuple[str, ...]]]:
    """By party the fields of its part of the order; a party that learns from all of its columns has none.

    Parameters
    ----------
    parties : sequence of str
        Who takes part.
    features : mapping of str to sequence of str or None, or None
        By party its columns, or None for all of them. Every party must be named, so that none is forgotten.
    exclude : mapping of str to sequence of str, or None
        By party columns that are not learnt from.
    labels : Labels, str or None
        The columns that are never learnt from.
    """
    for what, given in (("features", features), ("exclude", exclude)):
        if given is not None and not isinstance(given, Mapping):
            raise DataError(f"{what} must name columns by party, such as {what}={{'bank': ['age']}}, not {given!r}")
        for party in given or ():
            if party not in parties:
                raise DataError(f"{what} names {party!r}, which is not a party; the parties are {list(parties)}")
    if features is not None and set(features) != set(parties):
        absent = [party for party in parties if party not in features]
        raise DataError(
            f"features does not name {quoted(absent)}; write {absent[0]!r}: None for all columns, or [] for none"
        )
    found: dict[str, dict[str, tuple[str, ...]]] = {party: {} for party in parties}
    for what, given in (("features", features), ("exclude", exclude)):
        for party, names in (given or {}).items():
            if names is not None:
                found[party][what] = _names(names, what)
    kept = {labels.holder: labels.hidden} if isinstance(labels, Labels) else {}
    for party, hidden in kept.items():
        told = [name for name in found[party].get("features", ()) if name in hidden]
        if told:
            raise DataError(f"features names {quoted(told)}, which has the labels or weights; leave it out")
    if features is not None and not any(found[party].get("features", ("all",)) for party in parties):
        raise DataError("features leaves no column to learn from; keep at least one")
    return found


def _names(names: Any, what: str) -> tuple[str, ...]:
    if isinstance(names, str | Mapping) or not hasattr(names, "__iter__"):
        raise DataError(f"{what} must be a list of columns, not {names!r}")
    return tuple(dict.fromkeys(str(name) for name in names))
