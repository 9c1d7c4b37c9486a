"""Which model a user means: whatever others call theirs, nobody gets another's in the place of the own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from woodlot.exceptions import ConfigError, DataError
from woodlot.jobs.job_messages import ModelFacts
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.model_names import check_model_name, meant
from woodlot.jobs.rows.rows_orders import TrainRowsOrder
from woodlot.service.config import JobConfig

HERS, HIS = "390631d0" + "a" * 24, "77" * 16


def model(id: str, user: str, name: str = "", created: float = 1.0) -> ModelFacts:
    return ModelFacts(
        model=id, name=name, user=user, created=created, forest="f", parties=("bank",), holder="bank", n_rows=3,
        n_trees=1, n_nodes=1, splits={}, classes=(), complete=True, unwilling=(), oob_score=None, settings="{}",
        disclosure="[]", cost="{}",
    )  # fmt: skip


def found(name: str, user: str, *models: ModelFacts) -> str | None:
    facts = meant(name, user, sorted(models, key=lambda model: -model.created))
    return None if facts is None else facts.model


def test_a_name_does_not_take_the_place_of_an_id() -> None:
    hers, named = model(HERS, "alice", "risk"), model(HIS, "mallory", HERS[:8], created=2.0)
    for user in ("alice", "mallory", "bob"):
        assert found(HERS[:5], user, hers, named) == HERS
    assert found(HERS[:8], "alice", hers, named) == found(HERS[:8], "bob", hers, named) == HERS


def test_own_models_come_before_those_of_others() -> None:
    hers, later = model(HERS, "alice", "risk"), model(HIS, "mallory", "risk", created=2.0)
    assert found("risk", "alice", hers, later) == HERS
    assert found("risk", "mallory", hers, later) == HIS
    alike = model(HERS[:8] + "b" * 24, "mallory", created=3.0)  # users draw the ids of their jobs
    assert found(HERS[:8], "alice", hers, later, alike) == HERS
    assert found(HERS, "bob", hers, alike) == HERS


def test_what_several_of_others_could_be_is_an_error_that_lists_them() -> None:
    hers, his, alike = (
        model(HERS, "alice", "risk"),
        model(HIS, "mallory", "risk"),
        model(HERS[:8] + "b" * 24, "mallory"),
    )
    with pytest.raises(DataError, match=r"2 users have a model 'risk' \((390631d0 of alice|77777777 of mallory), "):
        found("risk", "bob", hers, his)
    with pytest.raises(
        DataError, match=r"begins the ids of 2 models \(390631d0aaaa of alice, 390631d0bbbb of mallory\)"
    ):
        found(HERS[:8], "bob", hers, alike)
    with pytest.raises(DataError, match="give more of it"):  # also among the own
        found(HERS[:8], "alice", hers, model(HERS[:8] + "c" * 24, "alice"))
    many = [model(f"{k:032x}", f"user{k}", "risk") for k in range(9)]
    with pytest.raises(DataError, match=r"9 users .*of user\d, \.\.\.\); give its id"):
        found("risk", "bob", *many)


def test_of_one_users_models_of_one_name_the_youngest_is_meant() -> None:
    first, second = model(HERS, "alice", "risk"), model(HIS, "alice", "risk", created=2.0)
    for user in ("alice", "bob"):
        assert found("risk", user, first, second) == HIS
    assert found("", "alice", first) is None
    assert found("ris", "alice", first) is None


def test_the_store_knows_who_asks(tmp_path: Path) -> None:
    with closing(JobStore(tmp_path)) as store:
        for facts in (model(HERS, "alice", "risk"), model(HIS, "mallory", "risk", created=2.0)):
            folder = tmp_path / "models" / facts.model
            folder.mkdir(parents=True)
            (folder / "facts.json").write_bytes(msgspec.json.encode(facts))
        assert store.find_model("risk", "alice").model == store.find_model(HERS, "bob").model == HERS
        with pytest.raises(DataError, match="2 users have a model 'risk'"):
            store.find_model("risk", "bob")
        with pytest.raises(DataError, match="there is no model 'credit' here"):
            store.find_model("credit", "bob")


@pytest.mark.parametrize("name", [HERS[:8], HERS, "2025", "f"])
def test_names_that_look_like_ids_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="could be the beginning of an id"):
        check_model_name(name)
    with pytest.raises(DataError, match="could be the beginning of an id"):
        TrainRowsOrder(  # type: ignore[call-arg]
            job=HERS,
            created=1.0,
            federation="",
            coordinator="",
            parties=("bank",),
            sealed={},
            plan=None,
            settings="",
            name=name,
        )
    settings = {"y": "bank.late", "task": "classification", "name": name, "tables": "t"}
    with pytest.raises(ConfigError, match="could be the beginning of an id"):
        JobConfig.parse({"coordinator": "localhost:1", "job": settings}, folder=tmp_path, origin="job.toml")
    check_model_name(f"{name}-x")
