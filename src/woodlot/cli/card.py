"""``woodlot card``: write the card of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    Access,
    CoordinatorOption,
    IdentityOption,
    JobFile,
    JobFileOption,
    reach,
    reporting,
)
from woodlot.cli._text import spelled_out
from woodlot.exceptions import ConfigError, WoodlotError

if TYPE_CHECKING:
    from woodlot.identity.receipts import Receipt
    from woodlot.jobs.job_messages import ModelFacts
    from woodlot.service.client import Client


def card(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name or id of the model.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="card.md or card.html; by default it is printed.")
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option("--report", metavar="FILE", help="A report of `woodlot evaluate --json`; repeat it."),
    ] = None,
    purpose: Annotated[str, typer.Option("--purpose", metavar="TEXT", help="What the model is for.")] = "",
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
) -> None:
    """Write a model card: data, settings, scores, who saw what, privacy, and receipts of parties that have left.

    It has what you may read of the model anyway, and tells the federation nothing new.

    Example: woodlot card risk --report report.json --out card.md
    """
    with reporting(False):
        if out is not None and out.suffix not in (".md", ".html"):
            raise ConfigError(f"--out {out}: give a file whose name ends in .md or .html")
        access = Access.find(coordinator, identity, JobFile.read(job))
        from woodlot.evaluation.fact_cards import card_of_facts

        with reach(access) as client:
            facts = client.find_model(model)
            receipts = _receipts(client, facts)
        made = card_of_facts(facts, [_report(path, facts) for path in report or ()], receipts, purpose=purpose)
        if out is None:
            typer.echo(spelled_out(made.to_markdown(), keep="\n"), nl=False)
            return
        try:
            made.save(out)
        except OSError as error:
            raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from None
        typer.echo(f"{out} has the card of {spelled_out(facts.name or facts.model)}.")


def _receipts(client: Client, facts: ModelFacts) -> list[Receipt]:
    """The receipt of the party that has left last, where this user has ordered that."""
    if not facts.epoch:
        return []
    try:
        return [client.receipt(facts.model)]
    except WoodlotError:  # another user's
        return []


def _report(path: Path, facts: ModelFacts) -> Any:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        about, told = document["model"], document["report"]
    except OSError as error:
        raise ConfigError(f"--report {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"--report {path} is not what `woodlot evaluate --json` prints") from None
    if about != facts.model:
        raise ConfigError(f"--report {path} is of another model, {about}")
    return told
