"""Parameters of an estimator as JSON and back: whole numbers stay whole, keys of mappings stay what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from woodlot.data.decoding import converted
from woodlot.exceptions import ModelFileError
from woodlot.federation.local_revocable import Encryption
from woodlot.privacy.settings import GlobalDP, LocalDP

_PAIRS, _PRIVACY = "pairs", "privacy"
_ADDED = {"bootstrap_by": "draw", "ccp_alpha": 0.0}
"""Later parameters that are written only where they are not the default: Woodlots without them read all else."""


def to_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters in plain values.

    A generator of random numbers is left out: the forest has grown, and a seed for the next one is no part of it.
    """
    written = {name: value for name, value in params.items() if name not in _ADDED or value != _ADDED[name]}
    return {name: _plain(value, name) for name, value in written.items()}


def settings_of(estimator: Any) -> dict[str, Any]:
    """What kind of estimator it is, and its parameters: enough to make it again, on any machine."""
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name != "device"}
    return {"estimator": type(estimator).__name__, "params": to_json(params)}


def from_json(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they were."""
    return {name: _restored(value) for name, value in stored.items()}


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Encryption):
        return value.setting if value.setting == "paper" else value.bits
    if isinstance(value, LocalDP | GlobalDP):
        return {_PRIVACY: msgspec.to_builtins(value)}
    if isinstance(value, Mapping):
        return {_PAIRS: [[_plain(k, name), _plain(v, name)] for k, v in value.items()]}
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    if isinstance(value, bytes | bytearray) or not hasattr(value, "__iter__"):
        raise ModelFileError(
            f"parameter {name!r} holds a {type(value).__name__}, which cannot be saved; set it to a plain value first"
        )
    return [_plain(item, name) for item in value]


def _restored(value: Any) -> Any:
    if isinstance(value, dict) and _PRIVACY in value:
        return converted(value[_PRIVACY], LocalDP | GlobalDP)
    if isinstance(value, dict):
        return {_restored(k): _restored(v) for k, v in value[_PAIRS]}
    return [_restored(item) for item in value] if isinstance(value, list) else value
