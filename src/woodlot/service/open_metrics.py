"""The text format of OpenMetrics 1.0, which Prometheus reads: families of samples in, text out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SUFFIXES = {"gauge": "", "counter": "_total", "info": "_info"}

Sample = tuple[Mapping[str, str], float]
"""Labels and value."""


@dataclass(frozen=True, kw_only=True)
class MetricFamily:
    """Samples of one name.

    Attributes
    ----------
    name : str
        Without the suffix of its type, such as ``_total``.
    type : {"gauge", "counter", "info"}
        How the value may change.
    help : str
        What it is.
    samples : sequence of (labels, value)
        No two with the same labels.
    unit : str
        The last word of the name, where it is a unit.

    """

    name: str
    type: Literal["gauge", "counter", "info"]
    help: str
    samples: Sequence[Sample]
    unit: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or (self.unit and not self.name.endswith(f"_{self.unit}")):
            raise ValueError(f"{self.name!r} is not the name of a metric with the unit {self.unit!r}")
        if self.name.endswith(tuple(filter(None, _SUFFIXES.values()))):
            raise ValueError(f"{self.name!r} ends as only a sample may")

    def lines(self) -> list[str]:
        """Return the family as text, a line for each sample."""
        lines = [f"# TYPE {self.name} {self.type}"]
        lines += [f"# UNIT {self.name} {self.unit}"] if self.unit else []
        lines.append(f"# HELP {self.name} {escaped(self.help)}")
        seen = set()
        for labels, value in self.samples:
            key = tuple(sorted(labels.items()))
            if key in seen:
                raise ValueError(f"{self.name} has two samples with the labels {dict(labels)}")
            seen.add(key)
            lines.append(f"{self.name}{_SUFFIXES[self.type]}{_labels(labels)} {number(value)}")
        return lines


def exposition(families: Iterable[MetricFamily]) -> str:
    """Return all families as one text; families without samples are left out."""
    lines = [line for family in families if family.samples for line in family.lines()]
    return "\n".join([*lines, "# EOF"]) + "\n"


def escaped(text: str) -> str:
    """Return a help text or the value of a label as it is written."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """Return a number as it is written: whole where it is whole."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _labels(labels: Mapping[str, str]) -> str:
    for name in labels:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a label")
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""
