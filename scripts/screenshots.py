"""Pictures of every page of the dashboard, in light and dark: written to docs/images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))
from stage import CHROMIUM, FLAGS, Stage, stage  # noqa: E402

IMAGES = ROOT / "docs" / "images"


def pages_of(here: Stage) -> dict[str, str]:
    """Every page by the name of its picture."""
    model = here.model
    return {
        "federation": "",
        "settings": "settings",
        "report": "report",
        "jobs": "jobs",
        "job": f"jobs/{model}",
        "learnt": f"jobs/{here.jobs['led']}#learnt",
        "models": "models",
        "model": f"models/{model}",
        "model-bank": f"models/{model}?role=bank",
        "tree-coordinator": f"models/{model}/trees/0?role=coordinator",
        "tree-bank": f"models/{model}/trees/0?role=bank",
        "tree-shop": f"models/{model}/trees/0?role=shop",
        "who-saw-what": "disclosure",
        "budget": "budget",
        "answers": f"answers?role=bank&job={here.jobs['predict']}&table=newcomers&label=default",
    }


def main() -> None:
    """Take all pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with stage() as here, sync_playwright() as engine:
        here.jobs["led"] = here.train(lead="holder")
        chromium = engine.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = chromium.new_context(viewport={"width": 1200, "height": 760})
        page = context.new_page()
        page.goto(here.server.url)
        take(page, here, pages_of(here))
        job = here.revoke("shop")  # last: the model is then another one
        take(page, here, {"receipts": "receipts", "receipt": f"receipts/{job}"})
        chromium.close()


def take(page: Any, here: Stage, pages: dict[str, str]) -> None:
    """Take pictures of some pages, in light and dark."""
    for theme in ("light", "dark"):
        page.evaluate(f"localStorage.setItem('theme', '{theme}')")
        for name, path in pages.items():
            page.goto(f"{here.server.address}{path}", wait_until="load")
            page.wait_for_timeout(600)  # charts and trees are drawn by scripts
            page.screenshot(path=IMAGES / f"{name}-{theme}.png")
            print(IMAGES / f"{name}-{theme}.png")


if __name__ == "__main__":
    main()
