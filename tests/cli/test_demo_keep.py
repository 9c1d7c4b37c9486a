"""``woodlot demo --keep``: a federation that goes on for commands of one's own, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

WOODLOT = [sys.executable, "-c", "from woodlot.cli import app; app()"]


@pytest.mark.slow
def test_the_federation_goes_on_until_it_is_ended() -> None:
    command = [*WOODLOT, "demo", "--rows", "300", "--trees", "3", "--keep", "--no-dashboard", "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        try:
            said: list[str] = []
            for line in demo.stderr:  # ends with the process, if that fails
                said.append(line)
                if "Ctrl-C ends everything" in line:
                    break
            text = "".join(said)
            folder = Path(re.findall(r"^  cd (.*)$", text, re.MULTILINE)[0])
            page = re.findall(r"The dashboard: (\S+)", text)[0]
            with httpx.Client(follow_redirects=True, timeout=300) as browser:
                assert browser.get(page).status_code == 200
            done = subprocess.run(
                [*WOODLOT, "train", "job.toml", "--json"], cwd=folder, capture_output=True, text=True, check=True
            )
            assert json.loads(done.stdout)["state"] == "done"
            listed = subprocess.run(
                [*WOODLOT, "models", "--job", "job.toml", "--json"], cwd=folder, capture_output=True, check=True
            )
            assert "mine" in {model["name"] for model in json.loads(listed.stdout)["models"]}
            demo.send_signal(signal.SIGINT)
            assert demo.wait(300) == 0
            assert not folder.exists()
        finally:
            demo.kill()
