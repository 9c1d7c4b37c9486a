"""A coordinator that has answers of an encrypted request opened a second time, once the first opening was answered.

To be run in a coordinator's process first (`processes.Processes.scripts`). What it asks for a second time is in a file,
whose path is in the environment; it is honest while the file is empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from woodlot.jobs.revocable import key_jobs
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable import share_messages as shares

SETTING = "WOODLOT_TEST_REOPENS"


def other_comparisons(message: Message) -> Message | None:
    """Another opening of a step under the same masks: the difference of both would tell of the values."""
    if not isinstance(message, msg.OpenDifferences):
        return None
    return _told(message, row=message.row[::-1].copy())


def another_step(message: Message) -> Message | None:
    """What was compared in one step, once more in another one."""
    return _told(message, step=message.step + 1) if isinstance(message, msg.OpenDifferences) else None


def opened_again(message: Message) -> Message | None:
    """The same step opened with a half that the coordinator has not sent before."""
    if not isinstance(message, msg.FinishComparisons):
        return None
    return msgspec.structs.replace(message, halves=message.halves[::-1].copy())


def taken_again(message: Message) -> Message | None:
    """A request with shares from its beginning: whatever it had used up would count anew."""
    return message if isinstance(message, shares.TakeValues) else None


def compared_again(message: Message) -> Message | None:
    """Comparisons of one row with one split over and over."""
    if not isinstance(message, shares.CompareAtHelper):
        return None
    arrays = {name: getattr(message, name)[:1].repeat(20) for name in ("owner", "place", "row", "column")}
    return msgspec.structs.replace(message, **arrays)


def _told(message: msg.OpenDifferences, **changes: Any) -> msg.OpenDifferences:
    """A step whose splits have all been told before."""
    fresh = {"splits": message.splits[:0], "column": np.empty(0, np.uint32)}
    return msgspec.structs.replace(message, **fresh, **changes)


DEVIATIONS: dict[str, Callable[[Message], Message | None]] = {
    function.__name__: function
    for function in (other_comparisons, another_step, opened_again, taken_again, compared_again)
}


def _deviating(honest: Callable[..., Any]) -> Callable[..., Any]:
    def protocol(*args: Any, **options: Any) -> Generator[Round, dict[str, Message], Any]:
        walk, replies = honest(*args, **options), None
        second = DEVIATIONS.get(Path(os.environ[SETTING]).read_text(), lambda message: None)
        while True:
            try:
                step = next(walk) if replies is None else walk.send(replies)
            except StopIteration as end:
                return end.value
            replies = yield step
            again = {name: second(message) for name, message in step.requests.items()}
            if any(again.values()):
                yield Round(step.phase, {name: message for name, message in again.items() if message is not None})

    return protocol


if __name__ == "service":
    for _name in ("predict_encrypted", "predict_shared"):
        setattr(key_jobs, _name, _deviating(getattr(key_jobs, _name)))
