"""``woodlot predict``: have a forest answer for the rows that parties have in common."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    SHORT,
    Access,
    AsJson,
    CoordinatorOption,
    Detach,
    IdentityOption,
    JobFile,
    JobFileOption,
    LeadOption,
    PartiesOption,
    TablesOption,
    check_place,
    detached,
    finish,
    follow,
    lead_of,
    parse_tables,
    reach,
    reporting,
)
from woodlot.cli.align import Join, JoinOption
from woodlot.cli.train import AlignMethod, AlignOption
from woodlot.exceptions import ConfigError, DataError

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import JobFacts, ModelFacts, Predictions
    from woodlot.jobs.linear.linear_orders import PredictLinearOrder
    from woodlot.jobs.orders import PredictOrder
    from woodlot.service.client import Client

ENDINGS = (".csv", ".parquet")
_SHOWN = 10
"""Rows that are printed where no file is named."""


class PredictionMethod(StrEnum):
    """How a forest can be asked."""

    one_round = "one-round"
    classical = "classical"
    sealed = "sealed"
    encrypted = "encrypted"
    encrypted_splits = "encrypted-splits"


class KeySetting(StrEnum):
    """What keys of an encrypted forest are good for."""

    standard = "standard"
    paper = "paper"
    test = "test"


class WireForm(StrEnum):
    """What parties can send in the one round."""

    decisions = "decisions"
    leaves = "leaves"
    ranks = "ranks"


OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Where your answers go: .csv or .parquet.")
]


def predict(
    model: Annotated[str, typer.Option("--model", metavar="NAME|ID", help="Which forest.")],
    tables: TablesOption = None,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own rows, with columns PARTY.COLUMN, for --method encrypted."),
    ] = None,
    out: OutOption = None,
    deliver: Annotated[
        str | None, typer.Option(metavar="PARTY", help="The party that gets the answers beside its ids.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(metavar="[PARTY.]COLUMN", help="Labels with which their party scores the answers."),
    ] = None,
    score_epsilon: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Tell scores with noise of this epsilon, charged to each party's budget."),
    ] = None,
    party: PartiesOption = None,
    method: Annotated[
        PredictionMethod,
        typer.Option(help="In one round, node by node, sealed, encrypted, or by encrypted splits."),
    ] = PredictionMethod.one_round,
    wire: Annotated[WireForm, typer.Option(help="What parties send in the one round.")] = WireForm.decisions,
    helper: Annotated[
        str | None, typer.Option(metavar="MEMBER", help="The helper, as you know it, for --method encrypted.")
    ] = None,
    key_service: Annotated[
        str | None, typer.Option(metavar="MEMBER", help="The key service, as you know it, for the same.")
    ] = None,
    setting: Annotated[
        KeySetting, typer.Option(help="How short its keys may be: others than standard are too short for use.")
    ] = KeySetting.standard,
    align: AlignOption = None,
    join: JoinOption = Join.inner,
    lead: LeadOption = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> None:
    """Have a forest answer for the rows that the parties have in common.

    Your answers have row numbers: ids stay with the parties. With --deliver PARTY that party finds the answers beside
    its ids, in its state folder under answers/JOB.parquet. With --score or --deliver you get the answers yourself
    only if you say --out.

    With a forest over rows every party predicts its own rows, and finds the answers beside its ids in the same place;
    --score COLUMN has each party score its own. You get the scores, and no answers. Parties that require differential
    privacy tell scores with --score-epsilon only.

    With --method encrypted --rows FILE a forest with keys answers for rows of yours, which nobody else can read.
    They are split between the forest's helper and key service, or with the paper's scheme encrypted under a modulus
    that the key service has signed. Say who the two are with --helper and --key-service: else it is the coordinator's
    word.

    With --method encrypted-splits a forest with the paper's scheme answers for the common rows by its encrypted
    splits: every party checks the coordinator's copy of each split that is used.
    """
    with reporting(as_json):
        check_out(out)
        file = JobFile.read(job)
        access = Access.find(coordinator, identity, file)
        from woodlot.connected import ConnectedFederation
        from woodlot.connected.scores import vote_of

        with reach(access) as client:
            forest = client.find_model(model)
            if (rows is not None) != (method is PredictionMethod.encrypted) or (rows is None) == (tables is None):
                raise ConfigError("name --tables of the parties, or --method encrypted and --rows FILE of your own")
            if rows is not None:
                keys = {"helper": helper, "key_service": key_service, "setting": setting.value}
                _predict_encrypted(client, forest, rows, keys, access, out, detach=detach, as_json=as_json)
                return
            named = tables_of(forest, parse_tables(tables or []), party)
            if forest.layout == "rows":
                if out is not None or deliver is not None:
                    raise answers_stay(forest.name or forest.model[:SHORT])
                _predict_rows(client, forest, named, access, score, score_epsilon, detach=detach, as_json=as_json)
                return
            if score_epsilon is not None:
                raise ConfigError("--score-epsilon is for forests over rows: over columns no score is private")
            rows_by = (align or AlignMethod.keyed_hash).value
            federation = ConnectedFederation(client, named, rows_by, join.value, lead=lead_of(lead, file))
            if deliver is not None and deliver not in named:
                raise DataError(f"--deliver names {deliver!r}, who takes no part; the parties are {', '.join(named)}")
            options: dict[str, Any] = {
                "deliver_to": deliver,
                "give_answers": out is not None or (score is None and deliver is None),
            }
            order: PredictOrder | PredictLinearOrder
            if forest.is_linear:
                if method is not PredictionMethod.one_round or wire is not WireForm.decisions:
                    raise ConfigError("--method and --wire are for forests; a linear model is asked in one round")
                order = federation.predict_linear_order(forest.model, score, **options)
            else:
                options |= {"how": method.value, "wire": wire.value, "vote": vote_of(forest)}
                order = federation.predict_order(forest.model, score, **options)
            facts = client.submit(order)
            if detach:
                detached(facts, access, as_json=as_json, out=out)
                return
            facts = follow(client, facts, access, as_json=as_json, out=out)
            say_predicted(client, facts, access, as_json=as_json, out=out, answers=order.give_answers, to=deliver)


def _predict_encrypted(
    client: Client,
    forest: ModelFacts,
    rows: Path,
    keys: dict[str, Any],
    access: Access,
    out: Path | None,
    *,
    detach: bool,
    as_json: bool,
) -> None:
    """A forest with keys answers for rows that only this user reads."""
    from woodlot.connected.scores import vote_of
    from woodlot.service.encrypted import encrypted_order, request_columns

    columns = request_columns(_read(rows))
    facts = client.submit(encrypted_order(client, forest.model, columns, vote_of(forest), **keys))
    if detach:
        detached(facts, access, as_json=as_json, out=out)
        return
    facts = follow(client, facts, access, as_json=as_json, out=out)
    say_predicted(client, facts, access, as_json=as_json, out=out, answers=True)


def _predict_rows(
    client: Client,
    forest: ModelFacts,
    tables: dict[str, str],
    access: Access,
    score: str | None,
    score_epsilon: float | None,
    *,
    detach: bool,
    as_json: bool,
) -> None:
    """Every party predicts its own rows."""
    from woodlot.connected.connected_rows import ConnectedRowFederation

    order = ConnectedRowFederation(client, tables).predict_rows_order(forest, score, score_epsilon)
    facts = client.submit(order)
    if detach:
        detached(facts, access, as_json=as_json)
        return
    facts = follow(client, facts, access, as_json=as_json)
    say_rows_predicted(client, facts, access, as_json=as_json)


def answers_stay(model: str) -> ConfigError:
    """What a user is told who asks for answers of a forest over rows."""
    return ConfigError(
        "--out and --deliver are for forests over columns: here every party keeps the answers for its own rows. To "
        f"predict a table of yours: woodlot models export {model} FOLDER, and "
        "woodlot.load(FOLDER).predict(table) in Python"
    )


def say_rows_predicted(client: Client, facts: JobFacts, access: Access, *, as_json: bool) -> None:
    """The outcome of a prediction in which every party has answered for its own rows."""
    if not finish(facts, access, as_json=as_json):
        return
    from woodlot.cli import _show as show

    classes = any(model.classes for model in client.models() if model.model == facts.model)
    console = show.stdout()
    console.print(
        show.facts_grid(
            {
                "job": facts.job,
                "rows": "not told"
                if facts.n_rows is None
                else f"{facts.n_rows:,}; {show.by_party(facts.rows, lambda n: f'{n:,}')}",
                "score": "" if facts.score is None else f"{show.score(facts.score, classes)}, over all rows",
                "scores": show.by_party(facts.scores, lambda value: show.score(value, classes)),
                "noise": ""
                if facts.score_epsilon is None
                else f"epsilon {facts.score_epsilon:g} on rows and scores, charged to every party",
                "answers": f"with each party, beside its ids: answers/{facts.job}.parquet in its state folder",
                "time": show.duration((facts.ended or 0) - (facts.started or 0)),
            }
        )
    )


def check_out(out: Path | None) -> None:
    """Refuse a file that cannot be written before anything is asked of the parties."""
    if out is None:
        return
    if out.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--out {out}: the file must end in {' or '.join(ENDINGS)}")
    check_place(out)


def tables_of(forest: ModelFacts, tables: str | dict[str, str], parties: list[str] | None) -> dict[str, str]:
    """The table of each party; one name is that of all parties of the forest, unless some are named."""
    if isinstance(tables, str):
        return dict.fromkeys(parties or forest.parties, tables)
    if parties and set(parties) != set(tables):
        raise ConfigError("--tables and --party name different parties; leave --party out")
    return tables


def say_predicted(
    client: Client,
    facts: JobFacts,
    access: Access,
    *,
    as_json: bool,
    out: Path | None,
    answers: bool,
    to: str | None = None,
) -> None:
    """The outcome of a prediction.

    Parameters
    ----------
    client, facts, access, as_json
        As everywhere.
    out : Path or None
        Where the answers are written.
    answers : bool
        Whether the user gets them.
    to : str or None
        The party that has got them.

    """
    reply = client.predictions(facts.job) if facts.state == "done" and answers else None
    columns = {} if reply is None else _columns(reply)
    if reply is not None and out is not None:
        _write(columns, out)
    more: dict[str, Any] = {"out": None if out is None else str(out), "delivered_to": to}
    if reply is not None and out is None and as_json:
        more["answers"] = {name: column.tolist() for name, column in columns.items()}
    if finish(facts, access, as_json=as_json, more=more):
        known = [model for model in client.models() if model.model == facts.model]
        classes = any((client.find_model(facts.model) if model.leader else model).classes for model in known)
        _print(facts, reply, columns, out, to, classes)


def _columns(reply: Predictions) -> dict[str, Any]:
    """Answers as columns, by row number."""
    import numpy as np

    from woodlot.protocols.core.bits import unpack

    n_rows = len(reply.outputs)
    columns: dict[str, Any] = {"row": np.arange(n_rows)}
    if reply.classes:
        columns["prediction"] = np.array(reply.classes)[reply.outputs.argmax(axis=1)]
        columns |= {f"probability_{c}": reply.outputs[:, k] for k, c in enumerate(reply.classes)}
    else:
        columns["prediction"] = reply.outputs[:, 0]
    return columns | {"uncertain": unpack(reply.uncertain, n_rows, "uncertain rows").astype(bool)}


def _read(rows: Path) -> Any:
    """A user's own rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    if rows.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--rows {rows}: the file must end in {' or '.join(ENDINGS)}")
    try:
        return csv.read_csv(rows) if rows.suffix.lower() == ".csv" else pq.read_table(rows)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{rows} cannot be read: {error}") from None


def _write(columns: dict[str, Any], out: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    table = pa.table(columns)
    try:
        if out.suffix.lower() == ".csv":
            csv.write_csv(table, out)
        else:
            pq.write_table(table, out)
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error}") from None


def _print(
    facts: JobFacts,
    reply: Predictions | None,
    columns: dict[str, Any],
    out: Path | None,
    to: str | None,
    classes: bool,
) -> None:
    from woodlot.cli import _show as show

    console = show.stdout()
    told = {
        "job": facts.job,
        "rows": f"{facts.n_rows or 0:,}",
        "score": "" if facts.score is None else show.score(facts.score, classes),
        "answers": "",
        "uncertain": "",
        "delivered": "" if to is None else f"to {to}, beside its ids: answers/{facts.job}.parquet in its state folder",
        "sent": f"{show.by_party(facts.bytes_by_party, show.amount)}; {facts.rounds:,} rounds",
        "time": show.time_taken(facts),
    }
    if reply is not None:
        values, uncertain = columns["prediction"], int(columns["uncertain"].sum())
        told["answers"] = _overview(values.tolist(), classes)
        if uncertain:
            told["uncertain"] = f"{uncertain:,} rows followed both branches where a party or its row was missing"
    console.print(show.facts_grid(told))
    if reply is None:
        return
    if out is not None:
        console.print(
            f"\n{out} has a line per row, by row number: ids stay with the parties.", markup=False, soft_wrap=True
        )
        return
    shown = min(_SHOWN, len(columns["row"]))
    console.print()
    console.print(
        show.table(
            [">row", ">prediction", *(f">{name}" for name in list(columns)[2:-1])],
            [
                [f"{column[i]:.3f}" if column.dtype.kind == "f" else str(column[i]) for column in _numbers(columns)]
                for i in range(shown)
            ],
        )
    )
    console.print(f"\nThe first {shown} rows; --out FILE writes all. Ids stay with the parties.", markup=False)


def _numbers(columns: dict[str, Any]) -> list[Any]:
    return [column for name, column in columns.items() if name != "uncertain"]


def _overview(values: list[Any], classes: bool) -> str:
    if classes:
        return ", ".join(f"{value}: {n:,}" for value, n in Counter(values).most_common())
    return f"from {min(values):.6g} to {max(values):.6g}, mean {sum(values) / len(values):.6g}"
