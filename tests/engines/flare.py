"""A federation of NVFlare on localhost: provisioned by NVFlare itself, with mutual TLS, each member in a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_world import START_SECONDS, Children
from ports import free_port
from processes import wait_until

TESTS = Path(__file__).resolve().parents[1]
ADMIN = "admin@test.org"
SERVER = "localhost"
ALLOWED = ("woodlot.engines.nvflare", "engines.nvflare_contract")

PROJECT = """
api_version: 3
name: woodlot
description: tests
participants:
  - {{name: {server}, type: server, org: test, fed_learn_port: {port}}}
{sites}
  - {{name: "{admin}", type: admin, org: test, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


class Flare:
    """The members' workspaces and processes."""

    def __init__(self, root: Path, sites: Sequence[str]) -> None:
        self.root = root
        self.sites = tuple(sites)
        self.children = Children(root)
        self._session: Any = None
        lines = "\n".join(f"  - {{name: {site}, type: client, org: test}}" for site in sites)
        project = root / "project.yml"
        project.write_text(PROJECT.format(server=SERVER, port=free_port(), sites=lines, admin=ADMIN))
        program = Path(sys.executable).with_name("nvflare")
        subprocess.run([program, "provision", "-p", project, "-w", root / "kits"], check=True, capture_output=True)
        self._kits = root / "kits" / "woodlot" / "prod_00"
        for member in (SERVER, *sites):
            self._configure(member)

    def local(self, member: str) -> Path:
        """Where a member's own settings are."""
        return self._kits / member / "local"

    def _configure(self, member: str) -> None:
        """What the owner of a member decides: that Woodlot's components may be built, and that logs stay at home."""
        settings = json.loads((self.local(member) / "resources.json.default").read_text())
        settings["class_allow_list"] += ALLOWED
        settings["allow_log_streaming"] = False
        text = json.dumps(settings)
        (self.local(member) / "resources.json").write_text(text.replace("/tmp/nvflare", str(self.root / "storage")))  # noqa: S108

    # --- processes ---

    def start(self) -> None:
        self.start_member(SERVER)
        for site in self.sites:
            self.start_member(site)
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        def connect() -> Any:
            self.children.check()
            try:
                return new_secure_session(ADMIN, str(self._kits / ADMIN), timeout=10)
            except Exception:  # noqa: BLE001 - whatever it is, the server is not there yet
                return None

        self._session = wait_until(connect, "NVFlare's server", START_SECONDS, pause=0.5)
        self.wait_for_sites()

    def start_member(self, member: str) -> None:
        kind = "server" if member == SERVER else "client"
        settings = [] if member == SERVER else [f"uid={member}"]
        self.children.start(
            member,
            *(sys.executable, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train"),
            *("-m", self._kits / member, "-s", f"fed_{kind}.json"),
            *("--set", "secure_train=true", *settings, "org=test", "config_folder=config"),
            PYTHONPATH=str(TESTS),
        )

    def wait_for_sites(self) -> None:
        def connected() -> bool:
            self.children.check()
            known = {client.name for client in self._session.get_system_info().client_info}
            return known >= set(self.sites)

        wait_until(connected, "the sites", START_SECONDS, pause=0.5)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self.children.kill_all()

    # --- jobs ---

    def submit(self, folder: Path) -> str:
        return str(self._session.submit_job(str(folder)))

    def status(self, job: str) -> str:
        return str(self._session.get_job_meta(job)["status"])

    def abort(self, job: str) -> None:
        self._session.abort_job(job)

    def wait(self, job: str, seconds: float = 300.0) -> str:
        """The status with which a job has ended."""

        def ended() -> str | None:
            self.children.check()
            status = self.status(job)
            return status if status.startswith("FINISHED") else None

        return str(wait_until(ended, f"job {job}", seconds, pause=0.5))

    def download(self, job: str) -> Path:
        """The results of a job."""
        target = self.root / "downloads"
        target.mkdir(exist_ok=True)
        return Path(self._session.download_job_result(job, str(target)))

    def logs(self, job: str) -> str:
        """What everybody has written about a job, for the message of a failure."""
        files = [path for path in self._kits.rglob("log.txt") if job in str(path)]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')[-4000:]}" for path in files)
