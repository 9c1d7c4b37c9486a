"""Finished measurements on disk: an experiment that is stopped goes on where it was.

``NAME.parquet`` has the rows of the finished cells. While a run goes on, what it finishes is appended to
``NAME.unfinished.jsonl``, a line per cell; a line that was cut off counts as not measured.
"""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from woodlot.exceptions import DataError
from woodlot_lab.experiment import Row

CELL, VERSION = "cell", "version"
"""Columns with the name of the cell that a row belongs to, and the version of the experiment that measured it."""
PACKAGES = ("woodlot", "numpy", "numba", "scikit-learn", "pyarrow", "grpcio", "cryptography", "gmpy2", "opendp")


class Store:
    """The finished cells of one experiment.

    Parameters
    ----------
    folder : Path
        Where results are kept.
    name : str
        The experiment's.
    version : int
        The experiment's; what another version has measured is left out.

    """

    def __init__(self, folder: Path, name: str, version: int) -> None:
        self._version = version
        self.parquet = folder / f"{name}.parquet"
        self._journal = folder / f"{name}.unfinished.jsonl"
        self._rows: dict[str, list[Row]] = {}
        if self.parquet.is_file():
            try:
                kept = pq.read_table(self.parquet).to_pylist()
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(f"{self.parquet} cannot be read ({error}); remove it to measure anew") from error
            for row in kept:
                cell = row.pop(CELL, "")
                if row.pop(VERSION, None) == version:
                    self._rows.setdefault(cell, []).append({k: v for k, v in row.items() if v is not None})
        if self._journal.is_file():
            for line in self._journal.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue  # the process ended while it wrote this line
                if entry.get(VERSION) == version:
                    self._rows[entry[CELL]] = entry["rows"]

    def rows(self, cell: str) -> list[Row] | None:
        """What a cell gave; None: it is not finished."""
        return self._rows.get(cell)

    def keep(self, cell: str, rows: list[Row]) -> None:
        """Keep what a cell gave, before anything else is done."""
        self._rows[cell] = rows
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({CELL: cell, VERSION: self._version, "rows": rows}) + "\n")

    def close(self) -> None:
        """Write all cells to the Parquet file, which replaces the journal."""
        about = {VERSION: self._version}
        rows = [{CELL: cell, **about, **row} for cell, rows in self._rows.items() for row in rows]
        names = list(dict.fromkeys(name for row in rows for name in row))
        if rows:
            table = pa.table({name: [row.get(name) for row in rows] for name in names})
            fresh = self.parquet.with_suffix(".new")
            pq.write_table(table.replace_schema_metadata({"machine": json.dumps(machine())}), fresh, compression="zstd")
            fresh.replace(self.parquet)
        self._journal.unlink(missing_ok=True)


def machine() -> dict[str, Any]:
    """Versions and machine, for the record."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
