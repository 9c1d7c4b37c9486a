"""Commands that other packages add to ``woodlot``, by entry points of the group ``woodlot.commands``.

Packages are searched only where a command is not one of Woodlot's own, or all commands are listed: the search reads a
file of every installed package.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import typer

GROUP = "woodlot.commands"
"""The group of entry points: each is named as its command, and is a function as ``typer`` takes it."""


def names() -> list[str]:
    """Return the commands that installed packages add."""
    return sorted(entry_points(group=GROUP).names)


def find(name: str) -> Any | None:
    """Return an added command, or None if no package has it."""
    for entry in entry_points(group=GROUP, name=name):
        app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        app.command(name)(entry.load())
        return typer.main.get_command(app)
    return None
