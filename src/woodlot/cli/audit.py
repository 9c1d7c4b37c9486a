"""``woodlot audit``: who was sent what in a job, whether the record of it is whole, and whether a receipt is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import (
    SHORT,
    Access,
    AsJson,
    CoordinatorOption,
    IdentityOption,
    JobFile,
    JobFileOption,
    find_job,
    one_line,
    print_json,
    reach,
    reporting,
    unique,
)
from woodlot.exceptions import ConfigError, JournalError, ReceiptError

if TYPE_CHECKING:
    from woodlot.runtime.audit import Disclosures
    from woodlot.runtime.journal import Journal

JOURNAL = "journal.sqlite"
VERIFY = "verify"


def audit(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="The job's id, or its beginning; with --state, all jobs; or `verify`."),
    ] = None,
    receipt: Annotated[
        Path | None, typer.Argument(metavar="RECEIPT", help="With `verify`: a receipt, or a compliance report.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Read the journal in this state folder, of a coordinator or a party."),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(metavar="CA.PEM", help="With `verify`: the authority that vouches for who has signed."),
    ] = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    file: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Show every kind of message of a job, from whom to whom, and verify the record.

    Exits with 1 if a record is not what was written. With --state no coordinator is asked: each party checks its own
    record, also while its service runs. `woodlot audit verify FILE` checks a receipt or a compliance report, offline.
    """
    with reporting(as_json):
        if job == VERIFY:
            problems = _verify(receipt, authority, as_json)
        elif receipt is not None or authority is not None:
            raise ConfigError(f"receipts are checked by: woodlot audit {VERIFY} RECEIPT [--authority CA.PEM]")
        elif state is not None:
            with _open(state) as journal:
                if job is None:
                    problems = _audit_all(journal, as_json)
                else:
                    name = unique(journal.jobs(), job, "job", f"woodlot audit --state {state}")
                    problems = _report(_read(journal, name), as_json, _digests(journal, name) if as_json else None)
        elif job is None:
            raise ConfigError(
                "which job? `woodlot jobs` shows yours; with --state FOLDER all jobs of a journal are read"
            )
        else:
            problems = _report(_ask(Access.find(coordinator, identity, JobFile.read(file)), job), as_json)
    for problem in problems:
        typer.echo(f"woodlot: {one_line(problem)}", err=True)
    if problems:
        raise typer.Exit(1)


def _verify(path: Path | None, authority: Path | None, as_json: bool) -> list[str]:
    from woodlot.identity.certificates import read_file
    from woodlot.identity.erasure import is_erasure
    from woodlot.identity.receipts import Receipt
    from woodlot.identity.signed_page import is_report

    if path is None:
        raise ConfigError(f"which receipt? woodlot audit {VERIFY} RECEIPT")
    issuer = None if authority is None else read_file(authority, "name the authority's certificate, ca.pem")
    if not path.is_file():
        raise ConfigError(f"{path} is {'not a file' if path.exists() else 'not there'}; name the receipt's file")
    if is_erasure(path):
        return _verify_erasure(path, issuer, as_json)
    if is_report(path):
        return _verify_report(path, issuer, as_json)
    problem, verdict, stated = "", None, None
    try:
        receipt = Receipt.load(path)
        stated = receipt.statement
        verdict = receipt.verify(issuer)
    except ReceiptError as error:
        problem = str(error)
    if as_json:
        print_json(
            {
                "verified": verdict is not None,
                "problem": problem or None,
                "signer": None if verdict is None else verdict.signer,
                "requester": None if verdict is None else verdict.requester,
                "vouched": verdict is not None and verdict.vouched,
                "rows": None if verdict is None or stated is None else stated.rows,
            }
        )
        return [problem] if problem else []
    from woodlot.cli import _show as show

    console = show.stdout()
    if verdict is None or stated is None:
        console.print("[bold red]NO[/bold red]   The receipt does not hold.")
        return [problem]
    console.print(f"[bold green]yes[/bold green]  {receipt!r}", soft_wrap=True, highlight=False)
    console.print(f"     signed by {verdict.signer}, asked for by {verdict.requester}", soft_wrap=True, highlight=False)
    console.print(f"     {stated.rows_in_words}", soft_wrap=True, highlight=False)
    if stated.scores is not None:
        scores = stated.scores
        console.print(f"     {scores.measure} {scores.rows}: {scores.before:.4f} before, {scores.after:.4f} after")
    if not verdict.vouched:
        console.print("     Who these keys belong to was not checked: give the authority's certificate.")
    return []


def _verify_erasure(path: Path, issuer: bytes | None, as_json: bool) -> list[str]:
    """Check the receipt of forgotten rows."""
    from woodlot.identity.erasure import ErasureReceipt

    problem, verdict, receipt = "", None, None
    try:
        receipt = ErasureReceipt.load(path)
        verdict = receipt.verify(issuer)
    except ReceiptError as error:
        problem = str(error)
    if as_json:
        told = {} if verdict is None or receipt is None else {"rows": receipt.statement.rows, "signer": verdict.signer}
        print_json({"verified": verdict is not None, "problem": problem or None, **told})
        return [problem] if problem else []
    from woodlot.cli import _show as show

    console = show.stdout()
    if verdict is None or receipt is None:
        console.print("[bold red]NO[/bold red]   The receipt does not hold.")
        return [problem]
    stated = receipt.statement
    console.print(f"[bold green]yes[/bold green]  {receipt!r}", soft_wrap=True, highlight=False)
    console.print(f"     signed by {verdict.signer} at {stated.created}", soft_wrap=True, highlight=False)
    proof = "It was compared with a forest grown without them." if stated.proved else "It was not compared again."
    console.print(f"     The model is of {stated.rows_left:,} rows. {proof}", soft_wrap=True, highlight=False)
    for what in stated.not_reached:
        console.print(f"     Not erased: {what}.", soft_wrap=True, highlight=False)
    if not verdict.vouched:
        console.print("     Whose key this is was not checked: give the authority's certificate.")
    return []


def _verify_report(path: Path, issuer: bytes | None, as_json: bool) -> list[str]:
    """Check a compliance report."""
    from woodlot.identity.signed_page import SignedPage

    problem, verdict, made = "", None, ""
    try:
        page = SignedPage.load(path)
        made, verdict = page.made, page.verify(issuer)
    except ReceiptError as error:
        problem = str(error)
    if as_json:
        told = {} if verdict is None else {"signer": verdict.signer, "vouched": verdict.vouched, "made": made}
        print_json({"verified": verdict is not None, "problem": problem or None, **told})
        return [problem] if problem else []
    from woodlot.cli import _show as show

    console = show.stdout()
    if verdict is None:
        console.print("[bold red]NO[/bold red]   The report is not what was signed.")
        return [problem]
    console.print("[bold green]yes[/bold green]  Every byte of the report is what was signed.", soft_wrap=True)
    console.print(f"     signed by {verdict.signer} at {made}", soft_wrap=True, highlight=False)
    if not verdict.vouched:
        console.print("     Whose key this is was not checked: give the authority's certificate.")
    return []


@dataclass(frozen=True)
class _Audit:
    """The record of a job; `problem` is empty if it is whole."""

    job: str
    messages: Disclosures
    records: int
    head: str
    problem: str
    began: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "verified": not self.problem,
            "problem": self.problem or None,
            "records": self.records,
            "head": self.head,
            "messages": self.messages.to_dicts(),
        }


def _ask(access: Access, job: str) -> _Audit:
    from woodlot.runtime.audit import DisclosureRow, Disclosures

    with reach(access) as client:
        name = find_job(client, job)
        report = client.audit(name)
    rows = tuple(DisclosureRow(**row) for row in json.loads(report.rows))
    return _Audit(name, Disclosures(rows), report.records, report.head, report.problem)


def _open(state: Path) -> Journal:
    from woodlot.runtime.journal import Journal

    path = state / JOURNAL
    if not path.is_file():
        raise JournalError(f"{state} has no {JOURNAL}; name the state folder of a coordinator or a party")
    return Journal.read(path)


def _read(journal: Journal, job: str) -> _Audit:
    from woodlot.jobs import every_message  # noqa: F401
    from woodlot.jobs.kind import known
    from woodlot.runtime.audit import Disclosures

    known()  # every message must be known, of other packages too, or its disclosure would be called unknown
    record = journal.job(job)
    problem, messages_sent, head, began = "", Disclosures(), (0, ""), None
    try:
        head, began = record.head, record.began
        messages_sent = record.disclosures()
        record.verify()
    except JournalError as error:
        problem = str(error)
    return _Audit(job, messages_sent, *head, problem, began)


def _digests(journal: Journal, job: str) -> list[dict[str, Any]]:
    """Every message by itself: two sides compare them to see that they have recorded the same."""
    from woodlot.runtime.journal_file import END

    return [
        {
            "sender": record.sender,
            "receiver": record.receiver,
            "number": record.number,
            "kind": record.kind,
            "bytes": record.n_bytes,
            "sha256": record.digest.hex(),
        }
        for record in journal.job(job).records()
        if record.kind != END
    ]


def _report(found: _Audit, as_json: bool, digests: list[dict[str, Any]] | None = None) -> list[str]:
    if as_json:
        print_json(found.to_json() | ({} if digests is None else {"digests": digests}))
        return [found.problem] if found.problem else []
    from woodlot.cli import _show as show

    console = show.stdout()
    console.print(f"[bold]Job {found.job}[/bold]\n")
    if found.messages:
        show.disclosures(console, found.messages)
    else:
        console.print("Nothing was sent.")
    console.print()
    if found.problem:
        console.print("[bold red]NO[/bold red]   The record is not what was written.")
        return [found.problem]
    console.print(f"[bold green]yes[/bold green]  All {found.records:,} records are what was written.")
    console.print(f"     Last link, to compare with what was noted before: {found.head}", soft_wrap=True)
    return []


def _audit_all(journal: Journal, as_json: bool) -> list[str]:
    found = [_read(journal, job) for job in journal.jobs()]
    problems = [one.problem for one in found if one.problem]
    if not problems:  # what belongs to no job, and damage to the file itself
        try:
            journal.verify()
        except JournalError as error:
            problems = [str(error)]
    if as_json:
        print_json({"verified": not problems, "problems": problems, "jobs": [one.to_json() for one in found]})
        return problems
    from rich.text import Text

    from woodlot.cli import _show as show

    rows = [
        (
            show.moment(one.began),
            one.job[:SHORT],
            f"{one.records:,}",
            show.amount(sum(row.bytes for row in one.messages)),
            Text("NO", style="bold red") if one.problem else Text("yes", style="green"),
            one.head[:16],
        )
        for one in found
    ]
    console = show.stdout()
    console.print(show.table(("began", "job", ">records", ">bytes", "whole", "last link"), rows))
    return problems
