"""Tables for the golden digests, made of whole numbers by SHA-256: the same with every version of every library."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

N = 48
FIRST_ID = 5_000


def numbers(name: str, below: int, n: int = N) -> list[int]:
    """Numbers from 0 up to a limit, always the same for a name."""
    return [int.from_bytes(hashlib.sha256(f"{name} {k}".encode()).digest()[:6], "big") % below for k in range(n)]


def with_gaps(values: list[Any], every: int) -> list[Any]:
    """The values, some of them missing."""
    return [None if k % every == 3 else value for k, value in enumerate(values)]


def shuffled(table: pa.Table, name: str) -> pa.Table:
    """The rows in another order."""
    keys = numbers(f"order {name}", 1 << 40, table.num_rows)
    return table.take(sorted(range(table.num_rows), key=keys.__getitem__))


def everything(n: int = N) -> dict[str, list[Any]]:
    """All columns of all companies, row by row."""
    age, visits = numbers("age", 60, n), numbers("visits", 12, n)
    basket, noise = numbers("basket", 400, n), numbers("noise", 10, n)
    town = [("Aarau", "Brugg", "Chur", "Davos")[k] for k in numbers("town", 4, n)]
    colour = [("red", "green", "blue")[k] for k in numbers("colour", 3, n)]
    points = [a + 5 * v + 20 * (c == "red") + 2 * e for a, v, c, e in zip(age, visits, colour, noise, strict=True)]
    return {
        "id": [FIRST_ID + 7 * k for k in range(n)],
        "age": [float(a + 18) for a in age],
        "income": with_gaps([k / 4 for k in numbers("income", 5_000, n)], 9),
        "town": town,
        "visits": with_gaps([float(v) for v in visits], 11),
        "basket": [b / 8 for b in basket],
        "colour": with_gaps(colour, 13),
        "years": [float(y) for y in numbers("years", 30, n)],
        "dues": [d / 2 for d in numbers("dues", 90, n)],
        "late": ["yes" if p > 85 else "no" for p in points],
        "risk": [("low", "middle", "high")[(p > 65) + (p > 95)] for p in points],
        "amount": [p / 4 for p in points],
        "weight": [float(w + 1) for w in numbers("weight", 4, n)],
    }


BANK = ("id", "age", "income", "town", "late", "risk", "amount", "weight")
SHOP = ("id", "visits", "basket", "colour")
CLUB = ("id", "years", "dues")


def companies(label: str, *, weight: bool = False, numeric: bool = False, club: bool = True) -> dict[str, pa.Table]:
    """Companies with the same customers in different orders; the bank has one column of labels.

    Parameters
    ----------
    label : str
        The column of labels.
    weight : bool
        Whether the bank has a column of weights.
    numeric : bool
        Whether the others have only columns of numbers without gaps, as encrypted protocols need.
    club : bool
        Whether there is a third company.
    """
    columns = everything()
    bank = [name for name in BANK if name in ("id", "age", "income", "town", label) or (weight and name == "weight")]
    shop = [name for name in SHOP if not numeric or name != "colour"]
    if numeric:
        columns["visits"] = [float(v) for v in numbers("visits", 12)]
        columns["income"] = [k / 4 for k in numbers("income", 5_000)]
        bank.remove("town")
    tables = {"bank": pa.table({name: columns[name] for name in bank})}
    tables["shop"] = shuffled(pa.table({name: columns[name] for name in shop}), "shop")
    if club:
        tables["club"] = shuffled(pa.table({name: columns[name] for name in CLUB}), "club")
    return tables


def hospitals(label: str, n: int = 60, *, numeric: bool = False) -> dict[str, pa.Table]:
    """Three hospitals with the same columns and different patients."""
    columns = everything(n)
    names = ["id", "age", "basket", "years"] + ([] if numeric else ["visits", "town"]) + [label]
    table = pa.table({name: columns[name] for name in names})
    return {name: table.slice(k * n // 3, n // 3) for k, name in enumerate(("anna", "bern", "chur"))}
