"""Lists for users, page by page: however much there is, no page is longer than a message may be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from woodlot.jobs.job_messages import JobFacts, ModelFacts
from woodlot.runtime.codec import MAX_HEADER

F = TypeVar("F", JobFacts, ModelFacts)

PAGE_BYTES = MAX_HEADER // 2
"""What one page has at most."""

_LONG = 1 << 16
_ERROR = 1_000  # characters of an error that makes an entry too long for a list


def page_of(found: Iterable[F], limit: int) -> tuple[tuple[F, ...], bool]:
    """The first of these that make a page, up to so many, and whether there are more."""
    page: list[F] = []
    room = PAGE_BYTES
    for facts in found:
        room -= len(msgspec.msgpack.encode(facts))
        if len(page) == limit or (page and room < 0):
            return tuple(page), True
        page.append(facts)
    return tuple(page), False


def brief_job(facts: JobFacts) -> JobFacts:
    """A job as it is listed: what others have written into it does not make the list fail."""
    if len(msgspec.msgpack.encode(facts)) <= _LONG:
        return facts
    return msgspec.structs.replace(facts, name=facts.name[:64], error=facts.error[:_ERROR], note=facts.note[:_ERROR])


def brief_model(facts: ModelFacts) -> ModelFacts:
    """A model as it is listed: without its account, and without what would be too long; `FindModel` tells all."""
    brief = msgspec.structs.replace(facts, disclosure="[]", cost="{}")
    if len(msgspec.msgpack.encode(brief)) <= 4 * _LONG:
        return brief
    return msgspec.structs.replace(brief, name=brief.name[:64], settings="{}", privacy="null", classes=(), oob_curve=())
