"""The folder that is submitted to NVFlare; to write it, NVFlare need not be installed."""

from __future__ import annotations

import json
from pathlib import Path

from woodlot.engines.signed_order import SignedOrder
from woodlot.exceptions import ModelFileError
from woodlot.runtime.drivers.nvflare_carrier import TASK, TASK_REQUEST_SECONDS

CONTROLLER = "woodlot.engines.nvflare.OrderController"
EXECUTOR = "woodlot.engines.nvflare.PartyExecutor"


def write_job(signed: SignedOrder, folder: Path) -> None:
    """Write the NVFlare job of an order. It has no code in it: that is installed at the server and the sites.

    Parameters
    ----------
    signed : SignedOrder
        What is to be run.
    folder : Path
        A new folder; its name is the job's.

    Raises
    ------
    ModelFileError
        If the folder is there and not empty, or cannot be written.

    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelFileError(f"{folder} is not an empty folder; name a new one")
    parties = list(signed.content.parties)
    app = Path("app")
    files = {
        Path("meta.json"): {
            "name": folder.name,
            "resource_spec": {},
            "min_clients": len(parties),
            "mandatory_clients": parties,
            "deploy_map": {str(app): ["server", *parties]},
        },
        app / "config" / "config_fed_server.json": {
            "format_version": 2,
            "server": {"task_request_interval": TASK_REQUEST_SECONDS},
            "workflows": [{"id": TASK, "path": CONTROLLER, "args": {"order": signed.encode()}}],
        },
        app / "config" / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
        },
    }
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise ModelFileError(f"the job cannot be written to {folder}: {error.strerror}") from None
