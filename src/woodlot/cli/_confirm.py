"""A question that must be answered with yes."""

from __future__ import annotations

import sys

import typer


def confirmed(question: str) -> None:
    """Go on only after a yes; `typer.confirm` would write a part of the question into the JSON on stdout."""
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort
