"""The coordinator's records where the disk or the process gives way in the middle, or files are not what they were."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from woodlot.exceptions import DataError, JournalError
from woodlot.jobs import job_store
from woodlot.jobs.columns.revoke_jobs import keep_revocation, keep_rows_revocation
from woodlot.jobs.job_messages import JobFacts, ModelFacts
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.kind import Kept
from woodlot.jobs.revocable.stored_epochs import told_keys

MODEL, NEXT, OTHER = "1" * 32, "2" * 32, "3" * 32
FACTS = ModelFacts(
    model=MODEL, name="", user="alice", created=0.0, forest="f", parties=("bank", "shop"), holder="bank", n_rows=3,
    n_trees=1, n_nodes=1, splits={}, classes=(), complete=True, unwilling=(), oob_score=None, settings="{}",
    disclosure="[]", cost="{}",
)  # fmt: skip


def put_model(folder: Path, facts: ModelFacts) -> Path:
    """What is known of a model, as the store has it."""
    path = folder / "models" / facts.model / "facts.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(facts))
    return path


def test_a_model_is_replaced_after_its_keys_are_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it names its successor nobody comes back: what is to be erased with it must be gone by then."""

    def gives_way(*_: object) -> None:
        raise OSError("no room")

    with closing(JobStore(tmp_path)) as store:
        put_model(tmp_path, FACTS)
        store.keep_keys(MODEL, b"a share of a strong key")
        with monkeypatch.context() as patch:
            patch.setattr(job_store, "replace_folder", gives_way)
            with pytest.raises(JournalError, match="no room"):
                store.retire_model(MODEL, NEXT)
        assert store.keys(MODEL) is None
        assert store.model_facts(MODEL) == FACTS  # so that the revocation that goes on finds it, and ends this
        store.retire_model(MODEL, NEXT)
        assert store.model_facts(MODEL).replaced_by == NEXT
        assert store.models() == []


@pytest.mark.parametrize("outcome", [None, object()])
def test_a_model_that_another_job_has_replaced_is_not_replaced_again(tmp_path: Path, outcome: Any) -> None:
    """The leaver of that job would be in the model that this one leaves."""
    order: Any = SimpleNamespace(job=OTHER, model=MODEL, leaver="shop")
    facts = JobFacts(job=OTHER, kind="revoke", user="alice", state="running", version=1, created=0.0, parties=("bank",))
    nobody: Any = None
    with closing(JobStore(tmp_path)) as store:
        replaced = msgspec.structs.replace(FACTS, replaced_by=NEXT)
        put_model(tmp_path, replaced)
        store.add(b"", b"", b"", facts)
        with pytest.raises(DataError, match=f"replaced by {NEXT} while this job ran"):
            keep_revocation(Kept(store, order, facts, {}, nobody), outcome)
        with pytest.raises(DataError, match=f"replaced by {NEXT} while this job ran"):
            keep_rows_revocation(Kept(store, order, facts, {}, nobody), outcome)
        assert store.model_facts(MODEL) == replaced
        stored = store.job(OTHER)
        assert stored is not None
        assert stored.untold == ("bank",)  # nor is the leaver told that it has left


# --- files that are not what they were ---


@pytest.mark.parametrize("data", [b"", b"{", b'{"model":', b"[]", msgspec.json.encode({"from": "a newer version"})])
def test_a_damaged_model_is_named_and_hides_no_other(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    good = msgspec.structs.replace(FACTS, model=NEXT, name="churn")
    put_model(tmp_path, good)
    damaged = put_model(tmp_path, FACTS)
    damaged.write_bytes(data)
    with closing(JobStore(tmp_path)) as store:
        with caplog.at_level(logging.WARNING):
            assert store.models() == [good]
        assert f"{damaged} is not as it was written" in caplog.text
        assert store.find_model("churn", "alice") == store.find_model(NEXT[:8], "alice") == good
        for look in (store.model_facts, lambda model: store.find_model(model, "alice"), store.forest, store.is_linear):
            with pytest.raises(JournalError, match=f"{damaged} is not as it was written .* restore the state folder"):
                look(MODEL)


@pytest.mark.parametrize("facts", [b"{", b'{"job":"\xff"}', b'{"job":"1","of":"a newer version"}'])
def test_a_job_that_cannot_be_read_is_named(tmp_path: Path, facts: bytes) -> None:
    job = JobFacts(job=OTHER, kind="align", user="alice", state="queued", version=1, created=0.0, parties=("bank",))
    looks: list[Callable[[JobStore], object]] = [
        lambda store: store.job(OTHER),
        lambda store: store.latest(10),
        lambda store: store.of_user("alice", 10),
        lambda store: store.open_jobs_of(MODEL),
    ]
    with closing(JobStore(tmp_path)) as store:
        store.add(b"", b"", b"", job)
        with store._db.connection() as db:
            db.execute("UPDATE jobs SET facts = ?", (facts,))
        for look in looks:
            with pytest.raises(JournalError, match=f"record of job {OTHER} cannot be read .* use the version"):
                look(store)


@pytest.mark.parametrize("secret", ["a secret", b"a secret \xff"])
def test_keys_that_cannot_be_read_are_not_quoted(tmp_path: Path, secret: str | bytes) -> None:
    text = bytes([0xA0 | len(secret)]) + (secret if isinstance(secret, bytes) else secret.encode())
    with closing(JobStore(tmp_path)) as store:
        put_model(tmp_path, FACTS)
        store.keep_keys(MODEL, b"\x81" + msgspec.msgpack.encode("setting") + text)
        with pytest.raises(JournalError, match=f"the keys of model {MODEL} are not as they were written") as caught:
            told_keys(store, MODEL)
        assert "a secret" not in str(caught.value)
        assert caught.value.__suppress_context__


def test_answers_that_cannot_be_read(tmp_path: Path) -> None:
    with closing(JobStore(tmp_path)) as store:
        store.keep_answers(OTHER, np.zeros((2, 1)), np.zeros(2, bool), {})
        (tmp_path / "answers" / OTHER / "notes.json").write_text("{")
        with pytest.raises(JournalError, match="restore the state folder"):
            store.answers(OTHER)


def test_a_receipt_that_is_no_text(tmp_path: Path) -> None:
    with closing(JobStore(tmp_path)) as store:
        store.keep_receipt(OTHER, "{}")
        (tmp_path / "receipts" / OTHER / "receipt.json").write_bytes(b"\xff")
        with pytest.raises(JournalError, match="restore the state folder"):
            store.receipt(OTHER)


@pytest.mark.parametrize("words", [b"TABLE jobs", b"jobs_untold", b"CREATE INDEX"])
def test_a_database_that_is_damaged(tmp_path: Path, words: bytes) -> None:
    """SQLite quotes what it finds there, which may be no text."""
    with closing(JobStore(tmp_path)) as store:
        store.note_presence({"bank": 1.0})
    path = tmp_path / "jobs.sqlite"
    whole = path.read_bytes()
    assert words in whole
    path.write_bytes(whole.replace(words, b"\xff" * len(words), 1))
    with pytest.raises(JournalError, match="cannot be used"):
        JobStore(tmp_path)
    path.write_bytes(whole.replace(b'{"bank": 1.0}', b'{"bank"" 1.0}'))
    with closing(JobStore(tmp_path)) as store, pytest.raises(JournalError, match="record of connected parties"):
        store.presence()
