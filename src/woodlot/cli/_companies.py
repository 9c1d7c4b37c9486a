"""Two companies' tables for the demonstration: a bank with labels, a shop without, common customers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

ID = "customer_id"
LABEL = "default"
TABLES = {"bank": "customers", "shop": "customers"}
TEST_TABLES = {"bank": "newcomers", "shop": "customers"}
"""What each company calls its tables, to learn from and to test on."""
TEST_SHARE = 0.25
ONLY_BANK, ONLY_SHOP = 0.25, 0.35
"""Customers of one company alone, as a share of the common ones."""

OCCUPATIONS = (
    "clerk",
    "craft",
    "driver",
    "farmer",
    "nurse",
    "retired",
    "sales",
    "student",
    "teacher",
    "waiter",
)
OCCUPATION_RISK = (-0.3, 0.1, 0.5, -0.6, -0.4, -0.9, 0.4, 1.0, -0.8, 0.9)
DEPARTMENTS = ("books", "electronics", "food", "garden", "sports", "toys", "travel")
DEPARTMENT_RISK = (-0.7, 1.0, -0.2, -0.9, 0.1, -0.3, 0.9)


@dataclass(frozen=True)
class Companies:
    """What each company has; rows in an order of its own."""

    bank_train: pa.Table
    bank_test: pa.Table
    """The bank keeps some customers apart to test on: it alone has the labels, so it alone decides which."""
    shop: pa.Table

    @property
    def bank_columns(self) -> list[str]:
        """The bank's columns to learn from."""
        return [name for name in self.bank_train.column_names if name not in (ID, LABEL)]

    @property
    def shop_columns(self) -> list[str]:
        """The shop's columns to learn from."""
        return [name for name in self.shop.column_names if name != ID]


def make_companies(n_common: int, seed: int) -> Companies:
    """Draw customers whose risk depends on what the bank knows, what the shop knows, and both together."""
    rng = np.random.default_rng(seed)
    n_bank, n_shop = round(n_common * (1 + ONLY_BANK)), round(n_common * (1 + ONLY_SHOP))
    n = n_bank + n_shop - n_common
    ids = rng.choice(10 * n, n, replace=False) + 1_000_000

    age = np.clip(rng.normal(45, 15, n), 18, 95).round()
    income = rng.lognormal(7.8, 0.45, n).round(-1)
    balance = (income * rng.gamma(2.0, 0.9, n) - 1_500).round()
    years = rng.integers(0, 30, n)
    loans = rng.poisson(1.1, n)
    occupation = rng.integers(len(OCCUPATIONS), size=n)
    bank_risk = (
        -1.1 * (np.log(income) - 7.8) / 0.45
        - 0.7 * np.tanh(balance / 4_000)
        + 0.55 * (loans - 1.1)
        + np.array(OCCUPATION_RISK)[occupation]
        + 0.5 * ((age < 27) | (age > 70))
    )
    visits = rng.gamma(2.0, 2.5, n).round(1)
    basket = rng.lognormal(3.6, 0.6, n).round(2)
    returned = rng.beta(1.5, 8, n).round(3)
    at_night = rng.beta(1.2, 5, n).round(3)
    pays_later = rng.random(n) < 0.35
    department = rng.integers(len(DEPARTMENTS), size=n)
    shop_risk = (
        1.6 * pays_later
        + 6.0 * (returned - 0.16)
        + 4.0 * (at_night - 0.19)
        + np.array(DEPARTMENT_RISK)[department]
        - 0.12 * (visits - 5)
    )
    spent = visits * basket / income  # neither company can compute it alone
    risk = bank_risk + shop_risk + 1.2 * np.tanh(8 * (spent - 0.08)) + rng.logistic(0, 0.6, n)
    default = risk > np.quantile(risk, 0.65)

    bank = pa.table(
        {
            ID: ids,
            "age": age,
            "income": _with_gaps(income, 0.08, rng),
            "balance": balance,
            "years_as_customer": years,
            "loans": loans,
            "occupation": _with_gaps(np.array(OCCUPATIONS, dtype=object)[occupation], 0.05, rng),
            LABEL: np.where(default, "yes", "no"),
        }
    )
    shop = pa.table(
        {
            ID: ids,
            "visits_per_month": visits,
            "basket_value": _with_gaps(basket, 0.06, rng),
            "returned_share": returned,
            "night_share": at_night,
            "pays_later": pays_later,
            "department": np.array(DEPARTMENTS, dtype=object)[department],
        }
    )
    bank_rows, shop_rows = rng.permutation(n_bank), rng.permutation(n_shop) + (n - n_shop)
    n_test = round(n_bank * TEST_SHARE)
    return Companies(bank.take(bank_rows[n_test:]), bank.take(bank_rows[:n_test]), shop.take(shop_rows))


def _with_gaps(values: NDArray[Any], share: float, rng: np.random.Generator) -> pa.Array:
    return pa.array(values, mask=rng.random(len(values)) < share)


def write_companies(companies: Companies, bank: Path, shop: Path) -> dict[str, dict[str, str]]:
    """Write each company's tables into its folder, in the format it likes; returns file names by party and table."""
    pq.write_table(companies.bank_train, bank / "customers.parquet")
    pq.write_table(companies.bank_test, bank / "newcomers.parquet")
    csv.write_csv(companies.shop, shop / "customers.csv")
    return {
        "bank": {TABLES["bank"]: "customers.parquet", TEST_TABLES["bank"]: "newcomers.parquet"},
        "shop": {TABLES["shop"]: "customers.csv"},
    }
