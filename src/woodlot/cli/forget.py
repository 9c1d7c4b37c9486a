"""``woodlot forget``: take rows out of a saved forest whose tables are all here, and keep the receipt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from woodlot.cli._client import AsJson, check_place, print_json, reporting
from woodlot.exceptions import ConfigError


def forget(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder that the model was saved in.")],
    ids: Annotated[Path, typer.Argument(metavar="IDS", help="CSV file with the ids of the rows, in a column of --id.")],
    tables: Annotated[
        list[str], typer.Option("--table", metavar="PARTY=FILE", help="A party's table of the training; once for each.")
    ],
    id: Annotated[str, typer.Option("--id", metavar="COLUMN", help="The column that identifies a row.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the model without the rows goes.")],
    receipt: Annotated[Path, typer.Option("--receipt", metavar="FILE", help="Where the receipt goes.")],
    identity: Annotated[
        Path | None, typer.Option("--identity", metavar="FOLDER", help="Who signs the receipt. Default: a fresh key.")
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Also train without the rows, and compare the two forests bit by bit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take rows out of a forest exactly, where the model and all its tables are in one place.

    Example: woodlot forget model/ ids.csv --id customer_id --table bank=bank.csv --table shop=shop.csv --out model-2/
    --receipt receipt.json. The key of the ids in the receipt goes to a file beside it, ending in .key.
    `woodlot audit verify FILE` checks the receipt.
    """
    with reporting(as_json):
        check_place(receipt)
        import pandas as pd

        import woodlot as wl
        from woodlot.estimators.base import FederatedForest

        loaded = wl.load(model)
        if not isinstance(loaded, FederatedForest):
            raise ConfigError(f"{model} is a {type(loaded).__name__}, and only FederatedForest* forget rows so far")
        frames = {}
        for named in tables:
            party, equals, path = named.partition("=")
            if not equals:
                raise ConfigError(f"--table {named} must be written PARTY=FILE")
            frames[party] = pd.read_parquet(path) if path.endswith(".parquet") else pd.read_csv(path)
        wanted = pd.read_csv(ids)
        if id not in wanted.columns:
            raise ConfigError(f"{ids} has no column {id!r}; its columns are {list(wanted.columns)}")
        federation = wl.Federation.local(frames, id=id)
        made = loaded.forget(wanted[id].drop_duplicates(), data=federation, identity=identity, prove=prove)
        loaded.save(out)
        made.save(receipt)
        receipt.with_suffix(".key").write_text(made.key.hex() + "\n", encoding="utf-8")
        s = made.statement
        if as_json:
            print_json({"rows": s.rows, "unknown": s.unknown, "proved": s.proved, "model": str(out)})
            return
        from woodlot.cli import _show as show

        console = show.stdout()
        console.print(f"{made!r}", soft_wrap=True, highlight=False)
        console.print(f"The model without these rows is in {out}; delete {model} yourself.", soft_wrap=True)
        console.print(f"Check the receipt with: woodlot audit verify {receipt}", soft_wrap=True, highlight=False)
