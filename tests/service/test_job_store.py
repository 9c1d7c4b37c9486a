"""The coordinator's records where the disk or the process gives way in the middle."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from woodlot.exceptions import JournalError
from woodlot.protocols.messages.jobs import ModelFacts
from woodlot.service import job_store
from woodlot.service.job_store import JobStore

MODEL, NEXT = "1" * 32, "2" * 32
FACTS = ModelFacts(
    model=MODEL, name="", user="alice", created=0.0, forest="f", parties=("bank", "shop"), holder="bank", n_rows=3,
    n_trees=1, n_nodes=1, splits={}, classes=(), complete=True, unwilling=(), oob_score=None, settings="{}",
    disclosure="[]", cost="{}",
)  # fmt: skip


def test_a_model_is_replaced_after_its_keys_are_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it names its successor nobody comes back: what is to be erased with it must be gone by then."""

    def gives_way(*_: object) -> None:
        raise OSError("no room")

    with closing(JobStore(tmp_path)) as store:
        folder = tmp_path / "models" / MODEL
        folder.mkdir(parents=True)
        (folder / "facts.json").write_bytes(msgspec.json.encode(FACTS))
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
