"""``woodlot reproduce``: a short run on data that needs no files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from woodlot.cli import app


def reproduce(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    return result.exit_code, result.output


@pytest.mark.slow
def test_a_short_run_gives_a_page_that_finds_the_forests_identical(tmp_path: Path) -> None:
    code, output = reproduce(
        "ff-accuracy", "--stand-ins", "--quick", "--repeats", "1", "--jobs", "1", "--out", str(tmp_path)
    )
    assert code == 0, output
    page = (tmp_path / "ff-accuracy.md").read_text()
    assert "| 1 of 1 |" in page
    assert "`woodlot reproduce ff-accuracy --stand-ins --quick --repeats 1`" in page
    assert (tmp_path / "ff-accuracy.svg").is_file()
    assert "[ff-accuracy](ff-accuracy.md)" in (tmp_path / "README.md").read_text()


def test_the_command_on_a_page_names_no_more_repeats_than_were_measured(tmp_path: Path) -> None:
    options = ("data-sets", "--stand-ins", "--quick")  # one repeat is all that it declares
    code, output = reproduce(*options, "--repeats", "7", "--jobs", "1", "--out", str(tmp_path))
    assert code == 0, output
    page = (tmp_path / "data-sets.md").read_text()
    assert "`woodlot reproduce data-sets --stand-ins --quick`" in page
    assert "Up to 1 repeat of each cell" in page


def test_list_names_every_experiment_and_what_it_reproduces() -> None:
    code, output = reproduce("--list")
    assert code == 0
    assert "ff-accuracy" in output
    assert "Federated Forest (2019), Table 1" in output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "name an experiment"),
        (["ff-acuracy"], "no experiment 'ff-acuracy'"),
        (["ff-accuracy", "--data", "no/such/folder"], "is not a folder"),
        (["ff-accuracy", "--data", ".", "--stand-ins"], "exclude each other"),
    ],
)
def test_what_is_refused(arguments: list[str], problem: str, tmp_path: Path) -> None:
    code, output = reproduce(*arguments, "--out", str(tmp_path / "out"))
    assert code == 1
    assert problem in output
    assert not (tmp_path / "out").exists()
