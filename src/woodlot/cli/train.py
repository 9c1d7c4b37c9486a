"""``woodlot train``: order a forest from the parties of a federation, and watch it grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    LEAD_ENV,
    Access,
    AsJson,
    CoordinatorOption,
    Detach,
    IdentityOption,
    JobFile,
    JobFileArgument,
    Leader,
    PartiesOption,
    TablesOption,
    connecting,
    detached,
    finish,
    follow,
    parse_tables,
    plain,
    quiet_logs,
    reporting,
)
from woodlot.cli._forest import parse_settings
from woodlot.cli._rows import ExcludeOption, FeaturesOption, SplitOption, SplitSeedOption, parse_columns
from woodlot.exceptions import ConfigError, DataError

if TYPE_CHECKING:
    from woodlot.connected import ConnectedFederation
    from woodlot.connected.connected_rows import ConnectedRowFederation
    from woodlot.jobs.job_messages import JobFacts, ModelFacts
    from woodlot.jobs.orders import Order
    from woodlot.service.client import Client
    from woodlot.service.config import JobConfig, JobSettings


class Task(StrEnum):
    """What can be learnt."""

    classification = "classification"
    regression = "regression"


class Layout(StrEnum):
    """What parties can hold of one table."""

    columns = "columns"
    rows = "rows"


class AlignMethod(StrEnum):
    """How the common rows can be found."""

    keyed_hash = "keyed-hash"
    psi = "psi"


class ProtectionKind(StrEnum):
    """What parties can learn of rows while a forest grows."""

    open = "open"
    hidden = "hidden"


AlignOption = Annotated[AlignMethod | None, typer.Option("--align", help="How the common rows are found.")]


def train(
    job: JobFileArgument = None,
    y: Annotated[
        str | None, typer.Option("--y", metavar="PARTY.COLUMN", help="The label; over rows, the column's name alone.")
    ] = None,
    task: Annotated[Task | None, typer.Option(help="What to learn.")] = None,
    layout: Annotated[
        Layout | None, typer.Option(help="Different columns of the same rows, or different rows of the same columns.")
    ] = None,
    tables: TablesOption = None,
    party: PartiesOption = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the forest; repeat it.")
    ] = None,
    align: AlignOption = None,
    sample_weight: Annotated[
        str | None,
        typer.Option(
            metavar="PARTY.COLUMN",
            help="Weights of the rows, where the label is. Every party gets them in clear. COLUMN for a forest over "
            "rows, whose parties keep them.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call the model.")] = None,
    helper: Annotated[
        str | None, typer.Option(metavar="MEMBER", help="The helper, for forests with encrypted splits.")
    ] = None,
    key_service: Annotated[str | None, typer.Option(metavar="MEMBER", help="The key service, for the same.")] = None,
    lead: Annotated[
        Leader | None,
        typer.Option(
            envvar=LEAD_ENV,
            help="Who runs the training: the label holder (default), or the coordinator, which then reads labels.",
        ),
    ] = None,
    protection: Annotated[
        ProtectionKind | None,
        typer.Option(
            help="open: all parties are sent which row goes where; hidden: on secret shares, only counts are opened."
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="PARTY", help="The second server, for --protection hidden.")
    ] = None,
    dealer: Annotated[
        str | None,
        typer.Option(metavar="MEMBER", help="The helper that deals, for --protection hidden; else the coordinator."),
    ] = None,
    split: SplitOption = None,
    split_seed: SplitSeedOption = None,
    features: FeaturesOption = None,
    exclude: ExcludeOption = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> None:
    """Grow a forest over the tables of several parties.

    Give a job.toml, options, or both: options win. Ctrl-C leaves the job running and exits with 130.

    With --split SHARE that share of the rows is held out; woodlot evaluate --split SHARE then scores the model on them.
    """
    with reporting(as_json):
        file = JobFile.read(job)
        raw = job_settings(
            file,
            {
                "y": y,
                "task": task and task.value,
                "layout": layout and layout.value,
                "sample_weight": sample_weight,
                "name": name,
                "helper": helper,
                "key_service": key_service,
                "lead": lead and lead.value,
                "server": server,
                "dealer": dealer,
                "split": split,
                "split_seed": split_seed,
                "features": parse_columns(features, "--features"),
                "exclude": parse_columns(exclude, "--exclude"),
            },
            tables=tables,
            parties=party,
            align=align,
        )
        chosen = {} if protection is None else {"protection": protection.value}
        raw["forest"] = {**_section(raw, "forest", file), **parse_settings(setting or []), **chosen}
        access = Access.find(coordinator, identity, file, positional=True)
        config = parse_job(raw, file, access)
        facts, client = _submit(config, file.origin, access)
        with client:
            if detach:
                detached(facts, access, as_json=as_json)
                return
            facts = follow(client, facts, access, as_json=as_json)
            say_trained(client, facts, access, as_json=as_json, config=config)


def job_settings(
    file: JobFile,
    job: dict[str, Any],
    *,
    tables: list[str] | None,
    parties: list[str] | None,
    align: AlignMethod | None,
) -> dict[str, Any]:
    """The settings of a job file with what the options say put over them."""
    raw = dict(file.raw)
    section = _section(raw, "job", file)
    section |= {name: value for name, value in job.items() if value is not None}
    if tables:
        section["tables"] = parse_tables(tables)
        if isinstance(section["tables"], dict):
            section.pop("parties", None)
    if parties:
        section["parties"] = list(parties)
        if isinstance(section.get("tables"), dict) and not tables:
            section["tables"] = {p: name for p, name in section["tables"].items() if p in parties}
    if file.path is None:
        for setting, advice in {
            "tables": "--tables customers, or --tables bank=customers --tables shop=visits",
            "y": "--y bank.default",
            "task": "--task classification or --task regression",
        }.items():
            if setting not in section:
                raise ConfigError(f"name a job.toml, or add {advice}")
    raw["job"] = section
    if align is not None:
        raw["align"] = {**_section(raw, "align", file), "method": align.value}
    return raw


def _section(raw: dict[str, Any], name: str, file: JobFile) -> dict[str, Any]:
    section = raw.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{file.origin}: {name} must be a section: [{name}]")
    return dict(section)


def parse_job(raw: dict[str, Any], file: JobFile, access: Access) -> JobConfig:
    """Check all settings of a job; where the coordinator is, has been found out before."""
    from woodlot.service.config import JobConfig

    JobConfig.refuse_other_role(file.raw, file.origin)  # as it was read: options add sections that are a job's
    found = {"coordinator": access.address, "identity": str(access.identity.absolute())}
    raw = {name: value for name, value in raw.items() if name != "mpi"} | found
    return JobConfig.parse(raw, folder=file.folder, origin=file.origin)


def _submit(config: JobConfig, origin: str, access: Access) -> tuple[JobFacts, Client]:
    """Check the parameters of the forest, and only then order it."""
    from woodlot.connected import connect

    quiet_logs()
    job = config.job
    order_of = order_maker(config, origin, parts=True)
    with connecting(access):
        federation = connect(
            access.address,
            access.identity,
            tables=job.tables,
            parties=job.parties,
            align=config.align.method,
            layout=job.layout,
            helper=job.helper,
            key_service=job.key_service,
            lead=job.lead,
            server=job.server,
            dealer=job.dealer,
        )
        try:
            return federation.client.submit(order_of(_rows_of(federation, job))), federation.client
        except BaseException:
            federation.close()
            raise


def _rows_of(federation: ConnectedFederation, job: JobSettings) -> ConnectedFederation:
    """The rows and columns that a job is for."""
    if job.layout == "rows":
        return federation if job.split is None else federation.split(job.split, seed=job.split_seed)[0]
    labels = federation.find_labels(job.y, job.sample_weight)
    chosen = federation.choose_columns(job.choice.get("features"), job.choice.get("exclude"), labels)
    return chosen if job.split is None else chosen.split(job.split, seed=job.split_seed)[0]


def order_maker(config: JobConfig, origin: str, *, parts: bool = False) -> Callable[[Any], Order]:
    """Check the parameters now; the order is made when the parties are known, by their federation.

    ``parts``: whether that federation can be for some rows and columns only.
    """
    if not parts and (config.job.split is not None or config.job.choice):
        raise ConfigError(f"{origin}: split, features and exclude are for woodlot train; take them out of [job]")
    return _row_order(config, origin) if config.job.layout == "rows" else _column_order(config, origin)


def _column_order(config: JobConfig, origin: str) -> Callable[[Any], Order]:
    """The order for parties with different columns."""
    from woodlot.cli._forest import (
        LINEAR_KIND,
        REVOCABLE_KIND,
        linear_plan_for,
        make_estimator,
        make_linear_estimator,
        make_revocable_estimator,
        plan_for,
        revocable_plan_for,
    )
    from woodlot.estimators.estimator_settings import settings_of

    job = config.job
    if config.forest.get("kind") == LINEAR_KIND:
        linear = make_linear_estimator(job.task, config.forest, origin)
        fit = linear_plan_for(linear, origin)
        return lambda federation: federation.train_linear_order(
            fit, federation.find_labels(job.y, job.sample_weight), settings_of(linear), job.name or ""
        )
    if config.forest.get("kind") == REVOCABLE_KIND:
        revocable = make_revocable_estimator(job.task, config.forest, origin)
        construction = revocable_plan_for(revocable, origin)
        return lambda federation: federation.train_revocable_order(
            construction,
            federation.find_labels(job.y, job.sample_weight),
            settings_of(revocable),
            revocable.key_setting(),
            job.name or "",
        )
    estimator = make_estimator(job.task, config.forest, origin)
    plan = plan_for(estimator, origin)

    def order(federation: ConnectedFederation) -> Order:
        labels = federation.find_labels(job.y, job.sample_weight)
        return federation.train_order(plan, labels, settings_of(estimator), job.name or "")

    return order


def estimator_of(config: JobConfig, origin: str) -> Any:
    """The estimator of a job, with its parameters checked."""
    from woodlot.cli._forest import (
        LINEAR_KIND,
        REVOCABLE_KIND,
        make_estimator,
        make_linear_estimator,
        make_revocable_estimator,
        make_row_estimator,
    )

    if config.job.layout == "rows":
        return make_row_estimator(config.job.task, config.forest, origin)

    makers: dict[Any, Callable[..., Any]] = {
        LINEAR_KIND: make_linear_estimator,
        REVOCABLE_KIND: make_revocable_estimator,
    }
    make: Callable[..., Any] = makers.get(config.forest.get("kind"), make_estimator)
    return make(config.job.task, config.forest, origin)


def _row_order(config: JobConfig, origin: str) -> Callable[[Any], Order]:
    """As `_column_order`, for parties with the same columns."""
    from woodlot.cli._forest import make_row_estimator, row_plan_for
    from woodlot.estimators.estimator_settings import settings_of

    job = config.job
    estimator = make_row_estimator(job.task, config.forest, origin)
    plan = row_plan_for(estimator, origin, weighted=job.sample_weight is not None)

    def order(federation: ConnectedRowFederation) -> Order:
        return federation.train_rows_order(plan, job.y, settings_of(estimator), job.name or "", job.sample_weight)

    return order


def say_trained(
    client: Client,
    facts: JobFacts,
    access: Access,
    *,
    as_json: bool,
    config: JobConfig | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """The outcome of a training, and what one may do with it; ``more`` is added to the JSON."""
    model = None
    if facts.state == "done":
        with suppress(DataError):  # a party has left it already
            model = client.find_model(facts.model)
    told = {"forest": None if model is None else plain(model), **(more or {})}
    if not finish(facts, access, as_json=as_json, more=told):
        return
    if model is not None:
        _print_forest(facts, model, access, config)


def _print_forest(facts: JobFacts, model: ModelFacts, access: Access, config: JobConfig | None) -> None:
    from rich.text import Text

    from woodlot.cli import _show as show

    name = model.name or model.model[: len(facts.job) // 4]
    console = show.stdout()
    what, done = ("Model ", " is fitted.") if model.is_linear else ("Forest ", " has grown.")
    console.print(Text.assemble((what, "bold"), (name, "bold green"), (done, "bold")), end="\n\n")
    console.print(show.facts_grid(grown_facts(facts, model)))
    tables = ["--tables", "TABLE"]
    label = "COLUMN" if model.layout == "rows" else f"{model.holder}.COLUMN"
    if config is not None:
        label, said = config.job.y, config.job.tables
        pairs = [said] * bool(said) if isinstance(said, str) else [f"{p}={table}" for p, table in said.items()]
        tables = [word for pair in pairs for word in ("--tables", pair)]
    show.next_commands(
        console,
        [
            access.command("predict", "--model", name, *tables, "--score", label),
            access.command("models", "show", name),
            access.command("models", "export", name, "FOLDER"),
            access.command("audit", facts.job[:8]),
        ],
    )


def grown_facts(facts: JobFacts, model: ModelFacts) -> dict[str, str]:
    """What is told of a forest that has grown."""
    from woodlot.cli import _show as show

    total = sum(model.splits.values())
    rows = f"{model.n_rows:,}"
    if facts.rows:
        rows += f" in common; {show.by_party(facts.rows, lambda n: f'has {n:,}')}"
    return {
        "model": model.model,
        "name": model.name,
        "trees": f"{model.n_trees:,}, {model.n_nodes:,} nodes" if model.n_trees else "",
        "rows": rows,
        "score": show.out_of_bag(model),
        "splits": show.by_party(model.splits, lambda n: f"{n:,} ({show.share(n, total)})"),
        "sent": f"{show.by_party(facts.bytes_by_party, show.amount)}; {facts.rounds:,} rounds",
        "time": show.time_taken(facts),
    }
