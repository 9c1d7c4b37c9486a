"""``woodlot search``: find the best parameters of a model by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    Access,
    AsJson,
    CoordinatorOption,
    IdentityOption,
    JobFile,
    JobFileArgument,
    PartiesOption,
    TablesOption,
    connecting,
    print_json,
    quiet_logs,
    reporting,
)
from woodlot.cli._forest import parse_settings
from woodlot.cli._rows import ExcludeOption, FeaturesOption, parse_columns
from woodlot.cli.train import AlignOption, Task, estimator_of, job_settings, parse_job
from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import JobFacts

SHOWN = 10
"""Combinations that are printed, the best first."""


def search(
    grid: Annotated[
        list[str], typer.Option("--grid", metavar="NAME=VALUE,VALUE", help="Values of a parameter to try; repeat it.")
    ],
    job: JobFileArgument = None,
    y: Annotated[str | None, typer.Option("--y", metavar="PARTY.COLUMN", help="The label.")] = None,
    task: Annotated[Task | None, typer.Option(help="What to learn.")] = None,
    tables: TablesOption = None,
    party: PartiesOption = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the model; repeat it.")
    ] = None,
    folds: Annotated[int, typer.Option("--cv", metavar="NUMBER", help="Folds.")] = 5,
    scoring: Annotated[
        str | None, typer.Option(metavar="METRIC", help="What is best, such as roc_auc; more is better.")
    ] = None,
    n_iter: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Try so many combinations, drawn at random.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Decides folds and draws.")] = 0,
    refit: Annotated[bool, typer.Option(help="Train the best parameters on all rows in the end.")] = True,
    features: FeaturesOption = None,
    exclude: ExcludeOption = None,
    align: AlignOption = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    as_json: AsJson = False,
) -> None:
    """Find the best parameters of a model by cross-validation.

    Every combination is trained once for each fold and evaluated by who has the labels on the rows that were left out;
    the parties are aligned once, and not at all where they have different rows of the same columns. Parties count
    trainings and evaluations per day.

    Example: woodlot search job.toml --grid max_depth=6,10,none --grid min_samples_leaf=1,20 --scoring roc_auc
    """
    with reporting(as_json):
        values = parse_grid(grid)
        file = JobFile.read(job)
        given = {
            "y": y,
            "task": task and task.value,
            "features": parse_columns(features, "--features"),
            "exclude": parse_columns(exclude, "--exclude"),
        }
        raw = job_settings(file, given, tables=tables, parties=party, align=align)
        section = raw.get("forest", {})
        raw["forest"] = {**(section if isinstance(section, dict) else {}), **parse_settings(setting or [])}
        access = Access.find(coordinator, identity, file, positional=True)
        config = parse_job(raw, file, access)
        if config.job.split is not None:
            raise ConfigError("a search is on all rows: take split out")
        estimator = estimator_of(config, file.origin)
        known = estimator.get_params()
        for name in values:
            if name not in known:
                raise ConfigError(f"--grid {name}: {type(estimator).__name__} has no such parameter")
        from woodlot.connected import connect
        from woodlot.evaluation.validation import search as search_best

        quiet_logs()
        of = config.job
        with connecting(access):
            federation = connect(
                access.address, access.identity, tables=of.tables, parties=of.parties, align=config.align.method,
                layout=of.layout, lead=of.lead, server=of.server, dealer=of.dealer,
            )  # fmt: skip
        with federation, _progress() as federation.watch:
            try:
                found = search_best(
                    estimator, values, federation, of.y, cv=folds, scoring=scoring, n_iter=n_iter, seed=seed,
                    refit=refit, n_jobs=1, **of.choice,
                )  # fmt: skip
            except (ValueError, TypeError) as error:
                raise ConfigError(str(error)) from None
        _say(found, as_json=as_json)


def parse_grid(given: list[str]) -> dict[str, list[Any]]:
    """``--grid max_depth=6,10,none``."""
    found: dict[str, list[Any]] = {}
    for one in given:
        name, equals, texts = one.partition("=")
        values = [text.strip() for text in texts.split(",") if text.strip()]
        if not (name and equals and values) or name in found:
            raise ConfigError(f"--grid {one}: write --grid NAME=VALUE,VALUE once for each parameter")
        found[name] = [parse_settings([f"{name}={value}"])[name] for value in values]
    return found


@contextmanager
def _progress() -> Iterator[Callable[[JobFacts], None]]:
    """Show how many jobs are done, and what the present one does."""
    from woodlot.cli._show import watch_job

    with watch_job() as show:
        yield show


def _say(found: Any, *, as_json: bool) -> None:
    results = found.cv_results_
    order = sorted(range(len(results["params"])), key=lambda k: int(results["rank_test_score"][k]))
    model = getattr(found.best_estimator_, "forest_", None) if hasattr(found, "best_estimator_") else None
    if hasattr(found, "best_estimator_") and model is None:
        model = found.best_estimator_.linear_
    name = "" if model is None else str(model.model)
    if as_json:
        ranked = [
            {
                "params": results["params"][k],
                "mean": float(results["mean_test_score"][k]),
                "std": float(results["std_test_score"][k]),
            }
            for k in order
        ]
        print_json({"best": found.best_params_, "score": float(found.best_score_), "model": name, "results": ranked})
        return
    from woodlot.cli import _show as show

    console = show.stdout()
    rows = [
        (
            ", ".join(f"{name}={value}" for name, value in results["params"][k].items()),
            f"{results['mean_test_score'][k]:.4f}",
            f"{results['std_test_score'][k]:.4f}",
        )
        for k in order[:SHOWN]
    ]
    console.print(show.table(("parameters", ">mean score", ">deviation"), rows))
    if name:
        console.print(f"\nModel {name} was trained with the best parameters on all rows.", markup=False)
