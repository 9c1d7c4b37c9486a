"""Commands that other packages add to ``woodlot``, by entry points of the group ``woodlot.commands``.

Packages are searched only where a command is not one of Woodlot's own, or all commands are listed: the search reads a
file of every installed package.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import typer

from woodlot.exceptions import MissingExtraError

GROUP = "woodlot.commands"
"""The group of entry points: each is named as its command, and is a function as ``typer`` takes it."""
PACKAGES = {"reproduce": "woodlot-lab"}
"""Commands that are documented but not part of Woodlot, and the packages that add them."""


def names() -> list[str]:
    """Return the commands that installed packages add."""
    return sorted(entry_points(group=GROUP).names)


def find(name: str) -> Any | None:
    """Return an added command, or None if no package has it.

    Raises
    ------
    MissingExtraError
        If the package that adds this command is known and not installed.

    """
    for entry in entry_points(group=GROUP, name=name):
        app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        app.command(name)(entry.load())
        return typer.main.get_command(app)
    if name in PACKAGES:
        package = PACKAGES[name]
        raise MissingExtraError(
            f"woodlot {name} needs the package {package}; install it with: pip install {package}", name=package
        )
    return None
