"""Templates of pages and reports, and how they write numbers, sizes and times."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from woodlot.evaluation.drift import verdict
from woodlot.protocols.core.stakes import IN_WORDS, stake_of
from woodlot.runtime.audit import readable_bytes, readable_seconds

_DRIFT = {"stable": "nothing", "some shift": "numbers", "shifted": "rows"}
"""Colours of what an index of drift is called."""


def page_templates() -> Environment:
    """All templates; whatever they show is escaped."""
    templates = Environment(
        loader=PackageLoader("woodlot.dashboard"), autoescape=select_autoescape(), undefined=StrictUndefined
    )
    templates.filters |= {
        "bytes": readable_bytes, "seconds": readable_seconds, "when": _when, "ago": _ago, "lasting": _lasting,
        "percent": _percent, "count": lambda n: "" if n is None else f"{n:,}", "short": lambda name: name[:8],
        "stake": stake_of, "stake_words": IN_WORDS.__getitem__, "sentence": _sentence,
        "moment": lambda written: _when(datetime.fromisoformat(written).timestamp()), "since": _since,
        "drift_verdict": verdict, "drift_stake": lambda index: _DRIFT[verdict(index)],
    }  # fmt: skip
    return templates


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


def _when(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _since(seconds: float | None) -> str:
    """A moment: the time, with the date unless it is today. It does not change while one looks at it."""
    if seconds is None:
        return ""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%H:%M UTC" if moment.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M UTC")


def _lasting(since: float | None) -> str:
    return "" if since is None else readable_seconds(max(0.0, time.time() - since))


def _ago(since: float | None) -> str:
    return "" if since is None else f"{_lasting(since)} ago"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
