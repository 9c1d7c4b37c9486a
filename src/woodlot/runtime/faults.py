"""Errors in logs: where they were raised, but no words that may quote a table."""

from __future__ import annotations

from typing import Any

from woodlot.exceptions import WoodlotError


class Fault(Exception):  # noqa: N818 - it is never raised, only shown
    """Stands in a log for an error, and has its trace."""


def wordless(error: BaseException) -> Fault:
    """What a log shows of an error, and of those that led to it.

    The words of Woodlot's own errors are written to be read. Those of any other may quote values of a table: of these
    only the type is told, and the trace, by which they can be found.
    """
    return error if isinstance(error, Fault) else _stand_in(error, set())


def _stand_in(error: BaseException, seen: set[int]) -> Fault:
    seen.add(id(error))
    kind = type(error).__qualname__
    shown = Fault(f"{kind}: {error}" if isinstance(error, WoodlotError) else kind).with_traceback(error.__traceback__)
    before: Any = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        shown.__cause__ = _stand_in(before, seen)
    return shown
