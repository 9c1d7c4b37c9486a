"""Deleting a model: who may, what is erased, what stays, and that nothing is erased by half."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hospitals import HOSPITALS, LABEL, ROW_POLICY, extra_trees, hospitals, rows_of
from party_bench import Bench, play
from party_bench import train_order as bench_order
from processes import small_tables, wait_until
from small_jobs import COORDINATOR, PARTIES, train_order, user_of
from typer.testing import CliRunner
from world import POLICY, World, running

import woodlot as wl
from woodlot.cli import app
from woodlot.exceptions import DataError, JobFailed, PolicyError, RemoteProtocolError
from woodlot.jobs.delete.delete_jobs import DeleteOrder
from woodlot.jobs.delete.delete_messages import EraseModel
from woodlot.jobs.orders import Part
from woodlot.jobs.party_job import PartyJob


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running(World(tmp_path, small_tables())) as made:
        yield made


def trained(world: World, **options: object) -> str:
    """A model of Alice's."""
    with user_of(world, **options) as alice:
        return alice.client.finish(alice.client.submit(train_order(alice)).job).job


def folders(world: World, model: str) -> dict[str, list[str]]:
    """By member, the folders that have the model's name."""
    return {
        name: sorted(
            path.relative_to(world.root / name / "state").as_posix()
            for path in (world.root / name / "state").rglob(model)
        )
        for name in (COORDINATOR, *PARTIES)
    }


NOWHERE: dict[str, list[str]] = {COORDINATOR: [], **{party: [] for party in PARTIES}}


def test_every_part_is_erased_and_the_record_stays(world: World) -> None:
    model, other = trained(world), trained(world)
    before = folders(world, model)
    assert before == {
        COORDINATOR: [f"models/{model}"],
        **{party: [f"alignments/{model}", f"models/{model}"] for party in PARTIES},
    }
    with user_of(world) as alice:
        done = alice.client.delete_model(model)
        assert folders(world, model) == NOWHERE
        assert all(folders(world, other).values())
        assert [facts.model for facts in alice.client.models()] == [other]
        latest = alice.client.jobs()[0]
        assert (latest.kind, latest.model, latest.state) == ("delete", model, "done")
        sent = {(row["sender"], row["receiver"], row["kind"]) for row in json.loads(alice.client.audit(done.job).rows)}
        assert {(COORDINATOR, party, "EraseModel") for party in PARTIES} <= sent
        assert {(party, COORDINATOR, "ModelErased") for party in PARTIES} <= sent
        with pytest.raises(DataError, match="no model"):
            alice.client.delete_model(model)
        with pytest.raises(DataError, match="no model"):
            alice.client.submit(alice.predict_order(model))
        alice.client.finish(alice.client.submit(alice.predict_order(other)).job)


def test_a_model_that_a_party_leads_is_erased_there_too(world: World) -> None:
    model = trained(world, lead=None)
    assert f"led/models/{model}" in folders(world, model)["bank"]
    with user_of(world, lead=None) as alice:
        alice.client.delete_model(model)
        assert folders(world, model) == NOWHERE
        assert list(alice.client.models()) == []


def test_a_forest_over_rows_is_deleted_where_privacy_is_required(tmp_path: Path) -> None:
    """A deletion tells nothing, so parties that take differentially private jobs only take it, too."""
    policy = ROW_POLICY | {"protocols": ["train-rows", "delete"]}
    world = hospitals(tmp_path, policy=policy, privacy={"epsilon": 50.0, "required": True})
    with running(world), rows_of(world) as alice:
        forest = extra_trees(privacy=wl.GlobalDP(epsilon=2.0)).fit(alice, y=LABEL)
        (model,) = alice.client.models()
        assert len(forest.classes_) == 2
        alice.client.delete_model(model.model)
        assert list(alice.client.models()) == []
        for name in (COORDINATOR, *HOSPITALS):
            assert not list((tmp_path / name / "state").rglob(model.model))


def test_only_the_user_who_has_ordered_a_model_deletes_it(world: World) -> None:
    for name in PARTIES:  # bob may train, but this model is alice's
        world.stop_party(name)
        world.settings[name]["policy"] = POLICY | {"train": ["alice", "bob"]}
        world.start_party(name)
        world.wait_connected(name)
    model = trained(world)
    before = folders(world, model)
    with user_of(world, "bob") as bob, pytest.raises(PolicyError, match="only alice may delete it"):
        bob.client.delete_model(model)
    assert folders(world, model) == before


def test_where_one_party_does_not_allow_it_none_erases_anything(world: World) -> None:
    world.stop_party("shop")
    world.settings["shop"]["policy"] = POLICY | {"protocols": ["align", "train", "predict"]}
    world.start_party("shop")
    world.wait_connected("shop")
    model = trained(world)
    before = folders(world, model)
    with user_of(world) as alice, pytest.raises(JobFailed, match="does not list 'delete'"):
        alice.client.delete_model(model)
    assert folders(world, model) == before


def test_a_model_in_use_is_not_deleted_and_a_deletion_outlasts_a_restart(world: World) -> None:
    model = trained(world)
    with user_of(world) as alice:
        world.stop_party("shop")
        waiting = alice.client.submit(alice.predict_order(model)).job
        with pytest.raises(DataError, match=f"job {waiting} with model {model}"):
            alice.client.delete_model(model)
        alice.client.cancel(waiting)
        wait_until(lambda: alice.client.job(waiting).state == "cancelled", "the prediction to end")
        parts = {party: Part() for party in PARTIES}
        order = DeleteOrder(**alice.client.order_fields(parts), model=model)
        alice.client.submit(order)
        world.stop_coordinator()
        world.start_coordinator()
        world.start_party("shop")
        alice.client.finish(order.job)
    assert folders(world, model) == NOWHERE


def test_all_parties_of_the_model_must_be_named(world: World) -> None:
    model = trained(world)
    with user_of(world) as alice:
        order = DeleteOrder(**alice.client.order_fields({"bank": Part()}), model=model)
        with pytest.raises(DataError, match="all parties of the model"):
            alice.client.submit(order)


def test_a_party_erases_the_ordered_model_and_no_other(tmp_path: Path) -> None:
    with closing(Bench(tmp_path)) as bench:
        first, second = play(bench, bench_order(bench)).job, play(bench, bench_order(bench)).job
        order = DeleteOrder(**bench.fields(), model=first)
        job = PartyJob(bench.homes["bank"], order.job)
        job.handle(bench.opening(order))
        with pytest.raises(RemoteProtocolError, match="another model"):
            job.handle(EraseModel(model=second))
        again = DeleteOrder(**bench.fields(), model=first)
        with pytest.raises(PolicyError, match="does not let 'bob'"):
            PartyJob(bench.homes["bank"], again.job).handle(bench.opening(again, "bob"))
        assert (bench.homes["bank"].store.folder / "models" / first).is_dir()
        job.handle(EraseModel(model=first))
        assert not (bench.homes["bank"].store.folder / "models" / first).exists()
        assert (bench.homes["bank"].store.folder / "models" / second).is_dir()


def test_the_command_asks_first(world: World) -> None:
    model = trained(world)
    access = ["--coordinator", world.address, "--identity", str(world.root / "alice" / "identity")]
    refused = CliRunner().invoke(app, ["models", "delete", model, *access], input="n\n")
    assert refused.exit_code != 0
    assert "Delete model" in refused.output
    assert all(folders(world, model).values())
    done = CliRunner().invoke(app, ["models", "delete", model[:8], "--yes", "--json", *access])
    assert done.exit_code == 0, done.output
    assert {"model": model, "deleted": True}.items() <= json.loads(done.stdout).items()
    assert not any(folders(world, model).values())
