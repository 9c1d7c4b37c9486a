"""Runs a setting, digests all that it says and gives, and compares it with ``golden.json``."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from canonical import Hashed, Named, of_file, rounded
from fields import VARIABLE

from woodlot.protocols.core.message import Message, Role
from woodlot.runtime.audit import Ledger

PATH = Path(__file__).with_name("golden.json")
WRITE = "WOODLOT_WRITE_GOLDEN"
MODES = ("all", "names", "secrets")
SHORT = 8
"""Hexadecimal digits of each message's own digests."""


class Said(NamedTuple):
    """One message of a journal."""

    sender: str
    receiver: str
    message: Message


class Golden(NamedTuple):
    """The digests of one setting.

    Attributes
    ----------
    named, contents, whole : str
        Of the journal: with names, without, and without but with secrets ("" where secrets cannot be given).
    results : dict
        Of the model's files, forests and answers: ``name: "named contents"``.
    messages : list of str
        Of each message: sender, receiver, type, and the beginnings of its three digests.
    """

    named: str
    contents: str
    whole: str
    results: dict[str, str]
    messages: list[str]


# --- recording ---


@contextmanager
def recorded() -> Iterator[list[Said]]:
    """Every message that a driver of this process accounts for meanwhile."""
    said: list[Said] = []
    record = Ledger.record

    def listen(self: Ledger, sender: str, receiver: str, message: Message, n_bytes: int) -> None:
        said.append(Said(str(sender), str(receiver), message))
        record(self, sender, receiver, message, n_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "record", listen)
        yield said


@contextmanager
def given_secrets(secret: str) -> Iterator[None]:
    """Secrets that depend on their length alone, in place of the operating system's: the order of draws is nobody's."""

    def drawn(count: int | None = None) -> bytes:
        return hashlib.shake_256(secret.encode()).digest(32 if count is None else count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", drawn)
        patch.setattr(secrets, "token_hex", lambda count=None: drawn(count).hex())
        patch.setattr(os, "urandom", drawn)
        yield


def in_order(said: Sequence[Said]) -> list[Said]:
    """The journal, requests and replies of a round by party: replies come in any order."""
    ordered: list[Said] = []
    for _, turn in groupby(said, lambda one: one.sender == Role.coordinator):
        ordered += sorted(turn, key=lambda one: (one.receiver, one.sender))
    return ordered


# --- digesting ---


def digests(value: Any) -> tuple[str, str, str]:
    """With names, contents alone, and contents with secrets."""
    return tuple(  # type: ignore[return-value]
        Hashed(VARIABLE, names=names, whole=whole).digest(value)
        for names, whole in ((True, False), (False, False), (False, True))
    )


def golden_of(said: Sequence[Said], results: Mapping[str, Any], *, whole: bool) -> Golden:
    """Digest a journal and its results."""
    lines, parts = [], []
    for one in in_order(said):
        part = digests(one.message)
        parts.append(part)
        shown = " ".join(digest[:SHORT] for digest in (part if whole else part[:2]))
        lines.append(f"{one.sender} > {one.receiver} | {type(one.message).__name__} | {shown}")
    totals = [hashlib.sha256("\n".join(column).encode()).hexdigest() for column in zip(*parts, strict=True)]
    found = {name: " ".join(digests(value)[:2]) for name, value in results.items()}
    return Golden(totals[0], totals[1], totals[2] if whole else "", found, lines)


def files_of(folder: Path, *, exact: bool = True) -> Named:
    """All files below a folder, by their path in it.

    Parameters
    ----------
    folder : Path
        A saved model.
    exact : bool
        Without it, floats are rounded and the hashes of their bits are left out: they depend on BLAS or libm.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {str(path.relative_to(folder)): of_file(path.name, path.read_bytes()) for path in paths}
    if not exact:
        files = {path: _without_ids(rounded(file)) for path, file in files.items()}
    return Named("files", files)


def _without_ids(file: Any) -> Any:
    return Named(file.of, {key: item for key, item in file.items.items() if key != "forest"})


# --- comparing ---


def check(setting: str, what: str, found: Golden) -> None:
    """Fail unless a setting gives what it gave, or write it down where that was asked for."""
    mode = os.environ.get(WRITE)
    if mode is not None:
        _write(setting, what, found, mode)
        pytest.skip(f"{setting}: written to {PATH.name}, not compared")
    problem = difference(stored(setting), found)
    assert problem is None, f"{setting} ({what}): {problem}"


def stored(setting: str) -> Golden:
    """What a setting gave when it was written down."""
    known = _read()
    assert setting in known, f"{setting} is not in {PATH.name}; {WRITE}=all adds it"
    return Golden(**{name: known[setting][name] for name in Golden._fields})


def _read() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return known


def difference(old: Golden, new: Golden) -> str | None:
    """What differs first, in words; None if nothing does."""
    if old == new:
        return None
    for number, (was, now) in enumerate(zip(old.messages, new.messages, strict=False), 1):
        if was != now:
            return f"message {number} is {_differs(was, now)}"
    if len(old.messages) != len(new.messages):
        more = (old.messages if len(old.messages) > len(new.messages) else new.messages)[
            min(len(old.messages), len(new.messages))
        ]
        return f"{len(new.messages)} messages instead of {len(old.messages)}; the first that is not in both is {more!r}"
    for name in {**old.results, **new.results}:
        was, now = old.results.get(name, "- -").split(), new.results.get(name, "- -").split()
        if was != now:
            return f"the {name} differ" + ("" if was[1] != now[1] else ", but in names only")
    return "the digests of the journal differ, and those of its messages do not: golden.json was edited"


def _differs(was: str, now: str) -> str:
    """In words, how two lines of a journal differ."""
    (way, kind, before), (new_way, new_kind, after) = was.split(" | "), now.split(" | ")
    changed = [a != b for a, b in zip(before.split(), after.split(), strict=True)]
    if way != new_way or (kind != new_kind and changed[1]):
        return f"{new_kind} ({new_way}), and was {kind} ({way})"
    if not changed[1]:
        what = "names differ, and its contents do not" if changed[0] else "part that follows from secrets differs"
        return f"{new_kind} ({way}), and was {kind}: its {what}"
    return f"{kind} ({way}): its contents differ"


def _write(setting: str, what: str, found: Golden, mode: str) -> None:
    """Write one setting down, refusing what the mode does not allow to change."""
    if os.environ.get("CI") or os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.fail(f"{WRITE} is set: {PATH.name} is written by hand only, not in CI and in one process (-n 0)")
    assert mode in MODES, f"{WRITE} must be one of {MODES}, not {mode!r}"
    if mode != "all":
        old = stored(setting)
        kept: Callable[[Golden], Any] = _contents if mode == "names" else without_secrets
        assert kept(old) == kept(found), (
            f"{WRITE}={mode} allows no other change, but in {setting} {difference(old, found)}"
        )
    PATH.write_text(_text(_read() | {setting: {"digests": what} | found._asdict()}))


def without_secrets(golden: Golden) -> Golden:
    """The digests that do not depend on secrets."""
    lines = [line.rsplit(" ", 1)[0] for line in golden.messages] if golden.whole else golden.messages
    return golden._replace(whole="", messages=lines)


def _contents(golden: Golden) -> Any:
    """All that a change of names leaves as it is."""
    results = [value.split()[1] for value in golden.results.values()]
    lines = [line.split(" | ") for line in golden.messages]
    return golden.contents, golden.whole, results, [(way, digests.split()[1:]) for way, _, digests in lines]


def _text(known: Mapping[str, Any]) -> str:
    """JSON with one line for each setting's digests, and one for each message."""
    blocks = []
    for setting, one in sorted(known.items()):
        head = {name: value for name, value in one.items() if name != "messages"}
        messages = ",\n".join(f"  {json.dumps(line)}" for line in one["messages"])
        blocks.append(f'{json.dumps(setting)}: {json.dumps(head)[:-1]}, "messages": [\n{messages}\n]}}')
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def as_arrays(**values: Any) -> Named:
    """Results that are arrays or numbers, by name."""
    return Named("results", {name: np.asarray(value) for name, value in values.items()})
