"""verbose=1: plain lines where nobody can watch, a bar on a terminal, and silence by default."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import woodlot as wl
from woodlot.estimators.progress import progress_bar
from woodlot.protocols.core.message import Progress

X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
Y = X[:, 0] + X[:, 1] > 0


def test_silent_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    wl.FederatedForestClassifier(3, random_state=0).fit(X, Y)  # compiles what is not compiled yet
    capfd.readouterr()
    wl.FederatedForestClassifier(3, random_state=0).fit(X, Y).predict(X)
    assert capfd.readouterr() == ("", "")


def test_plain_lines(capfd: pytest.CaptureFixture[str]) -> None:
    wl.FederatedForestClassifier(20, verbose=1, random_state=0, memory_limit=4 * 300 * 8).fit(X, Y)
    out, err = capfd.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("growing trees: ")]
    done = [int(re.fullmatch(r"growing trees: (\d+)/20 \(.+\)", line)[1]) for line in lines]  # type: ignore[index]
    assert done[0] == 0
    assert done[-1] == 20
    assert lines[-1] == "growing trees: 20/20 (done)"
    assert done == sorted(set(done))
    assert 4 <= len(done) <= 11  # one for every tenth that is reached
    assert "\x1b" not in err


def test_the_forest_does_not_depend_on_being_watched() -> None:
    watched = wl.FederatedForestClassifier(5, verbose=1, random_state=0).fit(X, Y)
    unwatched = wl.FederatedForestClassifier(5, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(watched.predict_proba(X), unwatched.predict_proba(X))


def test_nothing_to_call_when_nobody_watches() -> None:
    with progress_bar(0, "growing") as show:
        assert show is None


def test_an_error_passes_through_the_bar(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with progress_bar(1, "growing") as show:
            assert show is not None
            show(Progress(done=1, total=4, note="level 2"))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    assert capfd.readouterr().err == "growing: 1/4 (level 2)\n"


def test_phases_before_and_after_have_names_and_totals_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar(1, "growing trees") as show:
        assert show is not None
        for progress in (
            Progress(0, 0, "waiting for shop"),
            Progress(4, 5, "common rows", "align"),
            Progress(0, 20, "level 1", "grow"),
            Progress(20, 20, "", "grow"),
            Progress(20, 20, "", "out-of-bag"),
        ):
            show(progress)
    assert capfd.readouterr().err.splitlines() == [
        "aligning ids: 4/5 (common rows)",
        "growing trees: 0/20 (level 1)",
        "growing trees: 20/20 (done)",
        "scoring out of bag: 20/20 (done)",
    ]


class ZMQInteractiveShell:
    """A notebook's shell, by its name."""


class Handle:
    """What a notebook has shown, last."""

    shown: Any = None

    def update(self, shown: Any) -> None:
        self.shown = shown


def test_a_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    handle = Handle()

    def display(shown: Any, display_id: bool) -> Handle:
        handle.shown = shown
        return handle

    ipython, its_display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    its_display.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", its_display)
    with progress_bar(1, "growing trees") as show:
        assert show is not None
        assert '<progress aria-label="growing trees"></progress>' in handle.shown._repr_html_()
        show(Progress(0, 0, "waiting for <shop>", "align"))
        assert "aligning ids waiting for &lt;shop&gt;" in handle.shown._repr_html_()
        show(Progress(3, 20, "level 2", "grow"))
        assert 'max="20" value="3"' in handle.shown._repr_html_()
        assert "growing trees, 3 of 20 (level 2)" in handle.shown._repr_html_()
        assert repr(handle.shown) == "growing trees: 3/20 (level 2)"
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(ipython, "get_ipython", object)  # IPython on a terminal
    with progress_bar(1, "growing trees") as show:
        assert show is not None
        show(Progress(1, 2, "level 1", "grow"))
    assert capfd.readouterr().err == "growing trees: 1/2 (level 1)\n"


SCRIPT = """
from woodlot.estimators.progress import progress_bar
from woodlot.protocols.core.message import Progress
with progress_bar(1, "growing trees") as show:
    for done in range(0, 31, 3):
        show(Progress(done=done, total=30, note=f"level {done}, 7 nodes"))
"""


def test_a_bar_on_a_terminal() -> None:
    pty: Any = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert "\x1b[?25h" in text  # the cursor is back
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").strip().splitlines()[-1]
    assert re.search(r"growing trees ━+ 30/30 done \d:\d\d:\d\d", last)
