"""The shared runner: every cell once, finished ones kept, and what a page says of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from woodlot.exceptions import DataError
from woodlot_lab import runner as runner_module
from woodlot_lab.catalogue import MODULES, choose, find
from woodlot_lab.data import DataSource
from woodlot_lab.experiment import (
    Cell,
    Experiment,
    Figure,
    Panel,
    Params,
    Report,
    Row,
    Series,
    Setting,
    Table,
    Timing,
    judge,
)
from woodlot_lab.page import write_page
from woodlot_lab.papers import ITEMS, PAPERS
from woodlot_lab.runner import Runner
from woodlot_lab.statistics import paired_z, pm, slope, z_test
from woodlot_lab.summary import write_summary

STAND_INS = DataSource(stand_ins=True)


class Counting:
    """An experiment that counts its measurements, and stops at a given one."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.measured: list[tuple[int, int]] = []
        self.stop_at = stop_at
        self.column = "y"

    def experiment(self) -> Experiment:
        return Experiment(
            name="ff-accuracy",  # a name of the catalogue, so that papers know it
            title="Counting",
            what="Counts.",
            sets=(),
            stand_ins=(),
            cells=lambda setting: [Cell({"x": x}, setting.pick(3, 1)) for x in (1, 2)],
            measure=self.measure,
            report=self.report,
            minutes=1,
            parallel=False,
        )

    def measure(self, params: Params, seed: int, data: DataSource) -> Sequence[Row]:
        if len(self.measured) == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append((params["x"], seed))
        return [{self.column: params["x"] + seed / 10}]

    def report(self, rows: Sequence[Row], setting: Setting) -> Report:
        table = Table(("x", "y"), [(str(row["x"]), f"{row[self.column]:.1f}") for row in rows])
        line = Series("ours", [row["x"] for row in rows], [row[self.column] for row in rows], [0.1] * len(rows))
        figure = Figure("counting", "Counts.", [Panel("", "x (rows)", "y (s)", [line], log_x=True, log_y=True)])
        return Report([table, figure], [judge("ff19-table-1", "y grows", (False, True), "it does | a little")])


@pytest.fixture
def measure_here(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """The catalogue leads to the counting experiment."""
    counting = Counting()
    monkeypatch.setattr(
        runner_module, "measure", lambda name, params, repeat, source: list(counting.measure(params, repeat, source))
    )
    return counting


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, measure_here: Counting) -> None:
    measure_here.stop_at = 4
    with pytest.raises(KeyboardInterrupt), Runner(STAND_INS, tmp_path) as runner:
        runner.run(measure_here.experiment())
    with (tmp_path / "ff-accuracy.unfinished.jsonl").open("a") as file:
        file.write('{"cell": "cut o')  # as a killed process leaves it
    measure_here.stop_at = None
    with Runner(STAND_INS, tmp_path) as runner:
        outcome = runner.run(measure_here.experiment())
    assert measure_here.measured == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert [(row["x"], row["repeat"], row["y"]) for row in outcome.rows][:2] == [(1, 0, 1.0), (1, 1, 1.1)]
    assert not (tmp_path / "ff-accuracy.unfinished.jsonl").exists()
    with Runner(STAND_INS, tmp_path) as runner:
        again = runner.run(measure_here.experiment())
    assert len(measure_here.measured) == 6
    assert again.rows == outcome.rows


def test_another_version_is_measured_anew_and_a_short_run_takes_nothing_away(
    tmp_path: Path, measure_here: Counting
) -> None:
    experiment = measure_here.experiment()
    with Runner(STAND_INS, tmp_path) as runner:
        runner.run(experiment)
    with Runner(STAND_INS, tmp_path, quick=True) as runner:
        assert len(runner.run(experiment).rows) == 2
    with Runner(STAND_INS, tmp_path, most_repeats=2) as runner:
        shortened = runner.run(experiment)
    assert len(shortened.rows) == 4
    assert shortened.shortened
    assert len(measure_here.measured) == 6
    assert pq.read_table(tmp_path / "ff-accuracy.parquet").num_rows == 6
    with Runner(STAND_INS, tmp_path) as runner:
        runner.run(replace(experiment, version=2))
    assert len(measure_here.measured) == 12


def test_pages_are_written_of_what_is_measured(tmp_path: Path, measure_here: Counting) -> None:
    experiment = measure_here.experiment()
    with Runner(DataSource(tmp_path), tmp_path, measuring=False) as runner:
        outcome = runner.run(experiment)
    page = write_page(outcome, tmp_path, "").read_text()
    assert "to be measured: 2 of its cells have not been, x 1 the first" in page
    assert "## Results" not in page
    with Runner(DataSource(tmp_path), tmp_path, most_repeats=1) as runner:
        runner.run(experiment)
    with Runner(DataSource(tmp_path), tmp_path, measuring=False) as runner:
        outcome = runner.run(experiment)
    assert len(measure_here.measured) == 2
    assert outcome.shortened
    assert "| 2 | 2.0 |" in write_page(outcome, tmp_path, "").read_text()


def test_what_was_timed_on_a_busy_machine_is_measured_again_if_asked(
    tmp_path: Path, measure_here: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_here.column = "seconds"
    loads = iter([0.5, 9.0, 0.5, 0.5, 0.5, 0.5, 0.5])
    monkeypatch.setattr("os.getloadavg", lambda: (next(loads), 0.0, 0.0))
    experiment = measure_here.experiment()
    for again in (False, False, True, True):
        with Runner(DataSource(tmp_path), tmp_path, again=again) as runner:
            outcome = runner.run(experiment)
    assert measure_here.measured == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (1, 1)]
    assert outcome.timing == Timing(repeats=3, load=0.5)
    page = write_page(outcome, tmp_path, "").read_text()
    assert "**Times are not judged:** measured 3 times" in page
    assert "1 not judged" not in write_summary(tmp_path).read_text()  # its one verdict is not about times


def test_short_runs_and_stand_ins_judge_nothing(tmp_path: Path, measure_here: Counting) -> None:
    for source, quick in ((STAND_INS, False), (DataSource(tmp_path), True)):
        with Runner(source, tmp_path, quick=quick) as runner:
            page = write_page(runner.run(measure_here.experiment()), tmp_path, "").read_text()
        assert "**not judged**" in page
        assert "partly" not in page


def test_a_page_has_table_figures_verdicts_and_the_command(tmp_path: Path, measure_here: Counting) -> None:
    with Runner(DataSource(tmp_path), tmp_path) as runner:
        outcome = runner.run(measure_here.experiment())
    page = write_page(outcome, tmp_path, "woodlot reproduce counting").read_text()
    for expected in ("| 1 | 1.0 |", "**partly**", "it does / a little", "`woodlot reproduce counting`", "counting.svg"):
        assert expected in page
    assert (tmp_path / "counting.svg").read_text().startswith("<?xml")
    assert (tmp_path / "counting.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((tmp_path / "ff-accuracy.json").read_text())
    assert facts["verdicts"][0]["status"] == "partly"
    assert facts["machine"]["versions"]["woodlot"]
    summary = write_summary(tmp_path).read_text()
    assert "| Table 1 | y grows | **partly** |" in summary
    assert all(f"## {paper}" in summary for paper in PAPERS)
    assert "| not run |" in summary
    assert "Verdicts: 0 confirmed, 1 partly, 0 not confirmed, 0 not judged." in summary


def test_a_damaged_file_of_measurements_is_told(tmp_path: Path, measure_here: Counting) -> None:
    (tmp_path / "ff-accuracy.parquet").write_bytes(b"PAR1 no more")
    with Runner(STAND_INS, tmp_path) as runner, pytest.raises(DataError, match=r"ff-accuracy\.parquet cannot be read"):
        runner.run(measure_here.experiment())


def test_without_any_data_set_nothing_runs(tmp_path: Path) -> None:
    with Runner(DataSource(tmp_path), tmp_path) as runner, pytest.raises(DataError, match=r"spambase\.parquet is not"):
        runner.run(replace(find("ff-accuracy"), sets=("spambase", "ionosphere")))


def test_catalogue_and_papers_agree() -> None:
    assert {item.experiment for item in ITEMS.values()} - {None} == set(MODULES)
    assert all(find(name).minutes > 0 for name in MODULES)
    assert [experiment.name for experiment in choose(["all"])] == list(MODULES)
    for name in MODULES:
        assert find(name).name == name
    with pytest.raises(DataError, match="no experiment 'ff-acuracy'"):
        choose(["ff-acuracy"])


def test_statistics() -> None:
    assert z_test([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    # difference 1, standard errors 1/sqrt(3) each: z = sqrt(3/2), p = 0.2207
    assert z_test([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]) == pytest.approx(0.2207, abs=1e-4)
    assert math.isnan(z_test([1.0], [1.0]))
    assert z_test([1.0, 1.0], [2.0, 2.0]) == 0.0
    assert paired_z([0.9, 0.8, 0.7], [0.8, 0.8, 0.6]) == pytest.approx(2.0)
    assert slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2.0)
    assert pm([1.0, 3.0], 1) == "2.0 ± 1.4"
    assert pm([]) == "-"
