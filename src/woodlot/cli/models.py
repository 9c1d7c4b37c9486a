"""``woodlot models``: the forests that the coordinator keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    SHORT,
    Access,
    AsJson,
    CoordinatorOption,
    IdentityOption,
    JobFile,
    JobFileOption,
    one_line,
    plain,
    print_json,
    reach,
    refuse_options_before,
    reporting,
)
from woodlot.cli._confirm import confirmed
from woodlot.exceptions import ModelFileError

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import ModelFacts

models = typer.Typer(
    name="models",
    invoke_without_command=True,
    help="List, show, export and delete the forests that were grown.",
    epilog="A model is known by its name, its id, or the beginning of its id.",
)

Model = Annotated[str, typer.Argument(metavar="NAME|ID", help="The model.")]


@models.callback()
def listed_by_default(
    ctx: typer.Context,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """List, show, export and delete the forests that were grown."""
    if ctx.invoked_subcommand is not None:
        refuse_options_before(ctx, "woodlot models show MODEL --json")
        return
    listed(coordinator, identity, job, as_json)


@models.command("list")
def listed(
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """List the models of the federation, newest first."""
    with reporting(as_json), reach(Access.find(coordinator, identity, JobFile.read(job))) as client:
        known = client.models()
    if as_json:
        accounts = ("disclosure", "cost")  # `show` has them: they would make up most of the list
        print_json({"models": [{k: v for k, v in plain(m).items() if k not in accounts} for m in known]})
        return
    from woodlot.cli import _show

    console = _show.stdout()
    if not known:
        console.print("There are no models yet. Grow one with: woodlot train job.toml")
        return
    rows = [
        (
            model.model[:SHORT],
            model.name,
            model.user,
            _show.moment(model.created, year=False),
            f"{model.n_trees:,}",
            f"{model.n_rows:,}",
            "" if model.oob_score is None else f"{model.oob_score:.3f}",
            ", ".join(model.parties),
        )
        for model in known
    ]
    headings = ("model", "name", "user", "ordered", ">trees", ">rows", ">score", "parties")
    console.print(_show.table(headings, rows, wrapped=("name", "parties")))


@models.command()
def show(
    model: Model,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a model: its settings, whose splits it has, what it cost, and who saw what."""
    with reporting(as_json):
        access = Access.find(coordinator, identity, JobFile.read(job))
        with reach(access) as client:
            known = client.find_model(model)
    if as_json:
        print_json(plain(known))
    else:
        _print(known, access.command("audit", known.model[:SHORT]))


def _print(model: ModelFacts, audit: str) -> None:
    from rich.text import Text

    from woodlot.cli import _show
    from woodlot.privacy.claims import claim_in_words
    from woodlot.runtime.audit import Account

    console = _show.stdout()
    account = Account.from_json(model.disclosure, model.cost)
    cost, total = account.cost, sum(model.splits.values())
    settings = json.loads(model.settings or "{}")
    keeper = model.leader or "the coordinator"
    whole = f"known to {keeper}" if model.complete else f"in parts: {', '.join(model.unwilling)} keep theirs"
    console.print(Text(f"Forest {model.name or model.model[:SHORT]}", style="bold"), end="\n\n")
    console.print(
        _show.facts_grid(
            {
                "model": model.model,
                "user": model.user,
                "ordered": _show.moment(model.created),
                "kind": str(settings.get("estimator", "")),
                "settings": ", ".join(f"{name}={value}" for name, value in _chosen(settings).items()),
                "classes": ", ".join(map(str, model.classes)),
                "labels at": model.holder or "every party",
                "kept at": _kept_at(model),
                "protection": "hidden: on secret shares; only counts by bin were opened" if model.is_hidden else "",
                "trees": f"{model.n_trees:,}, {model.n_nodes:,} nodes",
                "rows": f"{model.n_rows:,}" if model.n_rows else "not told",
                "dropped out": _dropped_out(model),
                "score": _show.out_of_bag(model),
                "whole model": whole,
                "privacy": claim_in_words(model.privacy),
            }
        )
    )
    console.print()
    if model.layout == "rows":
        sent = [(party, _show.amount(cost.bytes_by_party.get(party, 0))) for party in model.parties]
        console.print(_show.table(("party", ">sent"), sent))
    else:
        rows = [
            (party, f"{n:,}", _show.share(n, total), _show.amount(cost.bytes_by_party.get(party, 0)))
            for party, n in model.splits.items()
        ]
        console.print(_show.table(("party", ">splits", ">share", ">sent"), rows))
    phases = ", ".join(f"{phase} {_show.duration(seconds)}" for phase, seconds in cost.seconds.items())
    network = f"; the network took {_show.duration(cost.network_seconds)}" if cost.network_seconds else ""
    console.print(f"\n{cost.rounds:,} rounds, {_show.duration(cost.total_seconds)}: {phases}{network}\n", markup=False)
    console.print("[bold]Who saw what while it grew[/bold]\n")
    console.print(_show.who_saw(account.disclosure))
    console.print(f"\nMessage by message, and what each tells: {audit}", markup=False, soft_wrap=True)


def _dropped_out(model: ModelFacts) -> str:
    """Who was not there to the end, and in how much of the forest."""
    what = "trees" if "Private" in model.settings else "levels"
    return "; ".join(f"{name}, after {n} {what}" for name, n in model.dropped_out.items())


def _kept_at(model: ModelFacts) -> str:
    """Who keeps which part of a model, and who reads it."""
    keeper = f"{model.leader}, who leads its jobs" if model.leader else "the coordinator"
    if model.layout == "rows":
        return f"{keeper}: the whole forest"
    parts = "the splits of each party at that party" if not model.complete else "all splits with it"
    return f"{keeper}: structure and answers; {parts}. {model.user} may take it out"


def _chosen(settings: dict[str, Any]) -> dict[str, Any]:
    """The parameters that are not the estimator's own defaults."""
    from woodlot.estimators.estimator_settings import from_json
    from woodlot.estimators.loading import kind_of

    params = from_json(settings.get("params", {}))
    kind = kind_of(settings)
    usual = {} if kind is None else kind().get_params(deep=False)
    return {name: value for name, value in params.items() if name not in usual or usual[name] != value}


@models.command()
def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder; woodlot.load(FOLDER) reads it.")],
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Write a model of yours into a folder, for woodlot.load() in Python.

    It is the coordinator's part; the splits themselves are in it only where all parties share them. A forest over rows
    is always whole.
    """
    with reporting(as_json):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ModelFileError(f"{folder} is not an empty folder; export into a new one")
        with reach(Access.find(coordinator, identity, JobFile.read(job))) as client:
            known = client.find_model(model)
            part = client.model(known.model)
        from woodlot.connected.connected_estimators import save_part

        save_part(part, folder)
    if as_json:
        print_json({"model": known.model, "name": known.name, "folder": str(folder), "complete": known.complete})
        return
    name = one_line(known.name) or known.model[:SHORT]
    typer.echo(f"{folder} holds forest {name}: model = woodlot.load({str(folder)!r})")
    if not known.complete:
        others = one_line(", ".join(known.unwilling))
        typer.echo(f"The splits stay with {others}: predict with them, as model.predict(federation).")


@models.command()
def delete(
    model: Model,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete a model of yours: the coordinator and every party erase their parts. There is no way back.

    All parties must be connected, or become so. That the model was deleted, when and by whom, stays in the list of jobs
    and in the journals (`woodlot audit JOB`); so do predictions that were delivered.

    Example: `woodlot models delete credit-risk`
    """
    with reporting(as_json), reach(Access.find(coordinator, identity, JobFile.read(job))) as client:
        known = client.find_model(model)
        name = one_line(known.name) or known.model[:SHORT]
        if not yes:
            parties = one_line(", ".join(known.parties))
            confirmed(f"Delete model {name} ({known.model}) at the coordinator and at {parties}?")
        done = client.delete_model(known.model)
    if as_json:
        print_json({"model": known.model, "name": known.name, "job": done.job, "deleted": True})
        return
    typer.echo(f"Model {name} is deleted. The record: woodlot audit {done.job[:SHORT]}")
