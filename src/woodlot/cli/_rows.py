"""Options that say which rows and which columns a job is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from woodlot.exceptions import ConfigError

ALL_COLUMNS = "*"
"""Stands for all columns that a party offers."""

SplitOption = Annotated[
    float | None,
    typer.Option("--split", metavar="SHARE", help="Hold out this share of the rows, such as 0.25."),
]
SplitSeedOption = Annotated[
    int | None, typer.Option("--split-seed", metavar="NUMBER", help="Which rows are held out; 0 by default.")
]
FeaturesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--features",
        metavar="PARTY=COLUMN,...",
        help="Columns to learn from, or PARTY=* for all; name every party, repeat it.",
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="PARTY=COLUMN,...", help="Columns not to learn from; repeat it."),
]


def check_split(split: float | None, split_seed: int | None) -> None:
    """Refuse a share that is none, and a seed without a share."""
    if split_seed is not None and split is None:
        raise ConfigError("--split-seed says which rows --split holds out: give --split, too")
    if split is not None and not 0 < split < 1:
        raise ConfigError(f"--split {split}: give a share between 0 and 1, such as 0.25")


def parse_columns(given: Sequence[str] | None, option: str) -> dict[str, Any] | None:
    """``--features bank=age,income --features shop=*``."""
    if not given:
        return None
    by_party: dict[str, Any] = {}
    for one in given:
        party, equals, names = one.partition("=")
        columns = [name.strip() for name in names.split(",") if name.strip()]
        if not (party and equals) or party in by_party:
            raise ConfigError(f"{option} {one}: write {option} PARTY=COLUMN,COLUMN once for each party")
        if columns == [ALL_COLUMNS] and option != "--exclude":
            by_party[party] = ALL_COLUMNS
        else:
            by_party[party] = columns
    return by_party
