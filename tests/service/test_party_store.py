"""What a party keeps between jobs, where its process dies in the middle."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from woodlot.data.whole_files import finish_writing
from woodlot.exceptions import ConfigError, JournalError
from woodlot.jobs.lasting_secret import CHECK_FILE
from woodlot.jobs.party_store import DROPPED, PartyStore

MODEL, OTHER, JOB = "1" * 32, "2" * 32, "b" * 32
FILES = ("arrays.npz", "part.json")


class Death(BaseException):
    """Ends everything at once, as a signal would."""


def dying_at(number: int) -> dict[str, Callable[..., Any]]:
    """Operations on files, before one of which the process dies; nothing is done after it either."""
    left = number

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Death
            return real(*args, **options)

        return operation

    return {name: dying(getattr(os, name)) for name in ("rename", "unlink", "rmdir")}


scandir = os.scandir


@contextmanager
def mark_first(folder: Any) -> Iterator[list[os.DirEntry[str]]]:
    """The files of a folder in an order that a file system may well give them."""
    with scandir(folder) as found:
        yield sorted(found, key=lambda entry: entry.name != DROPPED)


def models(store: PartyStore) -> list[str]:
    return sorted(str(path.relative_to(store.folder)) for path in (store.folder / "models").rglob("*"))


def test_a_model_that_was_dropped_is_erased_whenever_the_party_dies_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PartyStore(tmp_path, "bank")) as store:
        number, ended = 0, False
        while not ended:
            number += 1
            for folder in ("models", "alignments"):
                (tmp_path / folder / MODEL).mkdir(parents=True)
                for name in FILES:
                    (tmp_path / folder / MODEL / name).write_bytes(b"secret")
            store.drop_model(MODEL, JOB)
            with monkeypatch.context() as patch:
                patch.setattr(os, "scandir", mark_first)
                for name, operation in dying_at(number).items():
                    patch.setattr(os, name, operation)
                try:
                    store.erase_dropped(JOB)
                    ended = True
                except Death:
                    pass
            finish_writing(tmp_path)  # as at every start
            store.erase_dropped(JOB)  # for the coordinator has got no answer, and asks again
            assert models(store) == [], number
            assert list((tmp_path / "alignments").iterdir()) == []
        assert number > 2 * len(FILES)


def test_what_another_job_has_replaced_stays(tmp_path: Path) -> None:
    with closing(PartyStore(tmp_path, "bank")) as store:
        for model, job in ((MODEL, JOB), (OTHER, JOB[::-1].replace("b", "c"))):
            (tmp_path / "models" / model).mkdir(parents=True)
            store.drop_model(model, job)
        store.erase_dropped(JOB)
        assert models(store) == [f"models/{OTHER}", f"models/{OTHER}/{DROPPED}"]


def test_the_secret_stays_the_same(tmp_path: Path) -> None:
    found = []
    for _ in range(3):
        with closing(PartyStore(tmp_path, "bank")) as store:
            found.append(store.secret_for("forest", "codes"))
        (tmp_path / CHECK_FILE).unlink()  # as a crash right after the secret leaves it
    assert len(set(found)) == 1


@pytest.mark.parametrize("damage", ["lost", "empty", "half", "bit", "another", "check"])
def test_a_damaged_secret_is_noticed(tmp_path: Path, damage: str) -> None:
    """Not replaced by a new one, and not used: with it, no model and no alignment would fit any more."""
    PartyStore(tmp_path, "bank").close()
    path = tmp_path / "secret"
    whole = path.read_bytes()
    match damage:
        case "lost":
            path.unlink()
        case "check":
            (tmp_path / CHECK_FILE).write_bytes(b"")
        case _:
            changed = {"empty": b"", "half": whole[:31], "bit": bytes([whole[0] ^ 1]) + whole[1:]}
            path.write_bytes(changed.get(damage, whole[::-1]))
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises((JournalError, ConfigError), match=re.escape(str(path))) as caught:
        PartyStore(tmp_path, "bank")
    if damage != "empty":
        assert "restore it from a copy" in str(caught.value)
        assert "Keep journal.sqlite, which has what was spent of privacy" in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left
