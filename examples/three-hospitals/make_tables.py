"""Make up the patients of three hospitals: python make_tables.py anna bern chur

Each hospital gets FOLDER/tables/patients.csv. The hospitals differ in size and in their patients.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

ROWS = (900, 600, 300)
WARDS = ("medical", "surgical", "intensive")


def patients(hospital: int, n: int) -> pa.Table:
    """The patients of one hospital."""
    rng = np.random.default_rng(hospital)
    age = np.clip(rng.normal(55 + 5 * hospital, 18, n), 0, 110).round()
    stay = rng.gamma(2.0, 2.5, n).clip(0, 60).round(1)
    diagnoses = rng.poisson(2 + age / 30, n).clip(0, 20)
    ward = rng.choice(WARDS, n, p=[0.6, 0.3, 0.1])
    insulin = rng.random(n) < 0.25
    risk = age / 25 + diagnoses / 2 + stay / 6 + 2 * insulin + 2 * (ward == "intensive") + rng.normal(0, 1, n)
    return pa.table(
        {
            "case": [f"{hospital}-{number:05d}" for number in range(n)],
            "age": age,
            "stay": stay,
            "diagnoses": diagnoses,
            "ward": ward,
            "insulin": insulin.astype(np.int64),
            "readmitted": np.where(risk > 6.5, "yes", "no"),
        }
    )


def main(folders: list[str]) -> None:
    """Write a table for each folder."""
    for hospital, (folder, n) in enumerate(zip(folders, ROWS, strict=True)):
        path = Path(folder) / "tables" / "patients.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        pa.csv.write_csv(patients(hospital, n), path)


if __name__ == "__main__":
    main(sys.argv[1:])
