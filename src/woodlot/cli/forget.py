"""``woodlot forget``: take rows out of a forest, between organisations or in one place, and keep the receipt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    TablesOption,
    check_place,
    connecting,
    detached,
    finish,
    follow,
    parse_tables,
    print_json,
    quiet_logs,
    reporting,
)
from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.identity.erasure import ErasureReceipt
    from woodlot.jobs.job_messages import JobFacts
    from woodlot.service.client import Client


def forget(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="The model's name, id, or the beginning of its id; with --table the folder of one."
        ),
    ],
    ids: Annotated[Path, typer.Argument(metavar="IDS", help="CSV file with the ids of the rows.")],
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="COLUMN", help="The column with the ids. Default: the only one of IDS."),
    ] = None,
    receipt: Annotated[Path | None, typer.Option("--receipt", metavar="FILE", help="Where the receipt goes.")] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at", metavar="PARTY", help="Of a forest over rows: only these parties are told the ids. Default: all."
        ),
    ] = None,
    y: Annotated[
        str | None,
        typer.Option("--y", metavar="PARTY.COLUMN", help="The label of the training; COLUMN for a forest over rows."),
    ] = None,
    tables: TablesOption = None,
    sample_weight: Annotated[
        str | None, typer.Option(metavar="PARTY.COLUMN", help="Weights of the rows, as in the training.")
    ] = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    file: JobFileOption = None,
    detach: Detach = False,
    here: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="PARTY=FILE", help="In one place: a party's table of the training, each."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="In one place: where the model without the rows goes."),
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="In one place: also train without the rows, and compare bit by bit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take rows out of a forest exactly: it is from then on the one that training without them gives.

    Between organisations: woodlot forget MODEL ids.csv --job job.toml --receipt receipt.json, with the job.toml of the
    training, or its --y and --tables. Parties must list "forget" among the protocols of their policy. The user who
    ordered the model can order it, and with its own --identity each party of the model.

    A forest over rows: the parties look for the ids among their own rows; with --at only those that you name.

    In one place, with a saved model and all tables: woodlot forget model/ ids.csv --id customer_id --table
    bank=bank.csv --table shop=shop.csv --out model-2/ --receipt receipt.json.

    The key of the ids in the receipt goes to a file beside it, ending in .key. `woodlot audit verify FILE` checks the
    receipt.
    """
    with reporting(as_json):
        if receipt is not None:
            check_place(receipt)
        wanted = _read_ids(ids, id)
        if at:
            wanted = dict.fromkeys(at, wanted)
        if here:
            _forget_here(Path(model), wanted, id, here, out, receipt, identity, prove=prove, as_json=as_json)
            return
        if out is not None or prove:
            raise ConfigError(
                "--out and --prove are for a model and tables in one place (--table): between organisations the model "
                "stays there, and is grown without the rows in any case"
            )
        job = JobFile.read(file)
        access = Access.find(coordinator, identity, job)
        settings = job.raw.get("job", {})
        label = y or settings.get("y")
        named = parse_tables(tables) if tables else settings.get("tables")
        if not isinstance(label, str) or named is None:
            raise ConfigError("name the job.toml of the training with --job, or add --y bank.default and --tables")
        weight = sample_weight or settings.get("sample_weight")
        _forget_elsewhere(access, model, wanted, label, weight, named, receipt, detach=detach, as_json=as_json)


def _read_ids(path: Path, column: str | None) -> Any:
    import pandas as pd

    if not path.is_file():
        raise ConfigError(f"{path} is not there; name a CSV file with the ids of the rows")
    table = pd.read_csv(path)
    if column is None and len(table.columns) != 1:
        raise ConfigError(f"{path} has the columns {list(table.columns)}; say with --id which of them has the ids")
    if column is not None and column not in table.columns:
        raise ConfigError(f"{path} has no column {column!r}; its columns are {list(table.columns)}")
    return table[table.columns[0] if column is None else column].drop_duplicates()


# --- between organisations ---


def _forget_elsewhere(
    access: Access,
    model: str,
    ids: Any,
    label: str,
    weight: str | None,
    tables: Any,
    out: Path | None,
    *,
    detach: bool,
    as_json: bool,
) -> None:
    from woodlot.connected import connect
    from woodlot.connected.connected_estimators import forgetting_order
    from woodlot.connected.forgotten_rows import check_named

    quiet_logs()
    with connecting(access):
        federation = connect(access.address, access.identity, tables=tables)
    with federation:
        client = federation.client
        facts = client.find_model(model)
        order, key = forgetting_order(federation, facts, ids, label, weight)
        ordered = client.submit(order)
        if out is not None:
            _write_key(out, key)
        if detach:
            detached(ordered, access, as_json=as_json, out=out)
            return
        done = follow(client, ordered, access, as_json=as_json, out=out)
        say_forgotten(client, done, access, out, as_json=as_json, key=key)
        check_named(client.erasure(done.job, key), ids, facts.parties)


def _write_key(receipt: Path, key: bytes) -> None:
    receipt.with_suffix(".key").write_text(key.hex() + "\n", encoding="utf-8")


def say_forgotten(
    client: Client, done: JobFacts, access: Access, out: Path | None, *, as_json: bool, key: bytes = b""
) -> None:
    """The outcome: the receipt, in a file where one is named."""
    from woodlot.identity.certificates import AUTHORITY

    if done.state != "done":
        finish(done, access, as_json=as_json)
    receipt = client.erasure(done.job, key)
    if out is not None:
        receipt.save(out)
    if as_json:
        print_json(_told(receipt, done.job) | {"receipt": None if out is None else str(out)})
        return
    again = access.command("jobs", "attach", done.job[:SHORT], "--out", "receipt.json")
    check = f"Check the receipt with: woodlot audit verify {out} --authority {access.identity / AUTHORITY}"
    _print(
        f"{receipt!r}",
        f"The model is now {done.job}. All parties have signed the receipt.",
        check if out is not None else f"To keep the receipt: {again}",
    )


def _told(receipt: ErasureReceipt, model: str) -> dict[str, Any]:
    s = receipt.statement
    return {"rows": s.rows, "unknown": s.unknown, "proved": s.proved, "model": model}


def _print(*lines: str) -> None:
    from woodlot.cli import _show as show

    console = show.stdout()
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


# --- in one place ---


def _forget_here(
    model: Path,
    ids: Any,
    id: str | None,
    tables: Sequence[str],
    out: Path | None,
    receipt: Path | None,
    identity: Path | None,
    *,
    prove: bool,
    as_json: bool,
) -> None:
    if id is None or out is None or receipt is None:
        raise ConfigError("with --table name --id, --out and --receipt, too")
    import pandas as pd

    import woodlot as wl
    from woodlot.estimators.base import FederatedForest
    from woodlot.estimators.whole import WholeForest

    loaded = wl.load(model)
    if not isinstance(loaded, FederatedForest | WholeForest):
        raise ConfigError(f"{model} is a {type(loaded).__name__}, and only forests forget rows")
    if isinstance(ids, dict) and not isinstance(loaded, WholeForest):
        raise ConfigError("all parties of a forest over columns forget the same rows: leave --at away")
    frames = {}
    for named in tables:
        party, equals, path = named.partition("=")
        if not equals:
            raise ConfigError(f"--table {named} must be written PARTY=FILE")
        frames[party] = pd.read_parquet(path) if path.endswith(".parquet") else pd.read_csv(path)
    layout: Literal["columns", "rows"] = "rows" if isinstance(loaded, WholeForest) else "columns"
    federation = wl.Federation.local(frames, id=id, layout=layout)
    made = loaded.forget(ids, data=federation, identity=identity, prove=prove)
    loaded.save(out)
    made.save(receipt)
    _write_key(receipt, made.key)
    if as_json:
        print_json(_told(made, str(out)))
        return
    _print(
        f"{made!r}",
        f"The model without these rows is in {out}; delete {model} yourself.",
        f"Check the receipt with: woodlot audit verify {receipt}",
    )
