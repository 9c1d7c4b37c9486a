"""The command line as a user meets it: the real command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest
from typer.testing import CliRunner

import woodlot
from woodlot.cli import _added, app

COMMAND = Path(sys.executable).with_name("woodlot")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=300, check=False)


def run_failing(statement: str) -> subprocess.CompletedProcess[str]:
    """Run the app with one more command, which ends in `statement`."""
    script = f"""
        from woodlot.cli import _added, app
        from woodlot.exceptions import DataError

        @app.command()
        def fail() -> None:
            {statement}

        app(["fail"])
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300, check=False
    )


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"woodlot {woodlot.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["demo", "-h"]])
def test_help_fits_a_narrow_terminal_and_names_what_there_is(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    wanted = ["demo", "--version"] if arguments == ["--help"] else ["--rows", "--trees", "--seed", "--json"]
    assert all(name in done.stdout for name in wanted)


def test_a_shell_can_complete_commands() -> None:
    asked = {**os.environ, "_WOODLOT_COMPLETE": "complete_bash", "COMP_WORDS": "woodlot identity s", "COMP_CWORD": "2"}
    done = subprocess.run([COMMAND], env=asked, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["sign", "show"]


@pytest.mark.parametrize("kind", ["revokable", "local", "linear"])
def test_what_cannot_be_planned_is_named_with_what_can(kind: str) -> None:
    done = run("plan", "--rows", "100", "--columns", "bank=2", "--columns", "shop=2", "--set", f"kind={kind}")
    assert done.stderr.startswith(f"woodlot: --set kind={kind}: a forecast is made of kind revocable, lossless")


def test_without_a_command_it_shows_the_help() -> None:
    done = run()
    assert "Usage: woodlot" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo", "--rows", "99"], "--rows"),
        (["demo", "--rows", "many"], "--rows"),
        (["demo", "--trees", "0"], "--trees"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--seed", "4294967296"], "--seed"),
        (["demo", "--sead", "1"], "--sead"),
        (["harvest"], "harvest"),
        (["trian"], "Did you mean 'train'?"),
        (["party", "party.toml", "--log-level", "loud"], "--log-level"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_runs(arguments: list[str], named: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_of_woodlot_is_one_line_without_traceback() -> None:
    done = run_failing("raise DataError('column [age] of the bank\\nis empty')")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "woodlot: column [age] of the bank is empty\n"


def test_a_bug_keeps_its_traceback() -> None:
    done = run_failing("raise RuntimeError('a bug')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "a bug" in done.stderr


def test_an_interrupt_is_quiet() -> None:
    done = run_failing("raise KeyboardInterrupt")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_without_what_the_dashboard_needs_the_extra_is_named() -> None:
    script = "import sys; sys.modules['starlette'] = None; from woodlot.cli.dashboard import open_dashboard as opened\n"
    script += "opened([], None, None, '127.0.0.1:0')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    told = done.stderr.splitlines()[-1]
    assert told.startswith("woodlot.exceptions.MissingExtraError: ")
    assert told.endswith("pip install 'woodlot[dashboard]'")


def test_a_package_adds_a_command_and_replaces_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orchard-1.0.dist-info").mkdir()
    (tmp_path / "orchard-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: orchard\nVersion: 1.0\n")
    (tmp_path / "orchard-1.0.dist-info" / "entry_points.txt").write_text(
        "[woodlot.commands]\npick-apples = orchard:pick\nplan = orchard:pick\n"
    )
    (tmp_path / "orchard.py").write_text(
        "from woodlot.exceptions import DataError\n\n"
        'def pick(trees: int) -> None:\n    """Pick the apples."""\n    raise DataError(f"{trees} trees are empty")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    picked = CliRunner().invoke(app, ["pick-apples", "3"])
    assert (picked.exit_code, picked.stderr) == (1, "woodlot: 3 trees are empty\n")
    assert "Pick the apples." in CliRunner().invoke(app, ["--help"]).stdout
    assert "Pick the apples." not in CliRunner().invoke(app, ["plan", "--help"]).stdout


def test_without_the_lab_reproduce_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_added, "entry_points", lambda **_: EntryPoints())
    told = CliRunner().invoke(app, ["reproduce", "--list"])
    needs = "woodlot: woodlot reproduce needs the package woodlot-lab; install it with: pip install woodlot-lab\n"
    assert (told.exit_code, told.stderr) == (1, needs)
    assert "reproduce" not in CliRunner().invoke(app, ["--help"]).stdout
    completed = CliRunner().invoke(
        app,
        prog_name="woodlot",
        env={"_WOODLOT_COMPLETE": "complete_bash", "COMP_WORDS": "woodlot reproduce ", "COMP_CWORD": "2"},
    )
    assert completed.exit_code == 0
    assert "woodlot-lab" not in completed.output


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    script = "import sys, woodlot.cli; print([m for m in ('numpy', 'numba', 'sklearn', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"
