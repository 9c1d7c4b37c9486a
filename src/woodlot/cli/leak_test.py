"""``woodlot leak-test``: known attacks, run against one's own job in simulation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from woodlot.cli._client import AsJson, print_json, reporting
from woodlot.cli._forest import parse_settings
from woodlot.exceptions import ConfigError, DataError

if TYPE_CHECKING:
    from woodlot.leaks import Case, Finding

COLOURS = {"recovered": "bold red", "more": "yellow", "no more": "default", "not attacked": "dim"}
"""By what is at stake. Nothing is green: an attack that fails proves nothing of another one."""
WORDS = {
    "recovered": "recovered",
    "more": "more than without",
    "no more": "no more by this attack",
    "not attacked": "not attacked",
}


def leak_test(
    table: Annotated[
        Path | None, typer.Argument(metavar="TABLE", help="Your table, .csv or .parquet; made-up data without it.")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the labels.")] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="classes or targets (regression); by default as the label column looks."),
    ] = None,
    party: Annotated[
        list[str] | None,
        typer.Option(
            "--party", metavar="NAME=COLUMNS", help="Who holds which columns, such as bank=age,income; repeat it."
        ),
    ] = None,
    id: Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="The column of ids, to be attacked.")] = None,
    rows: Annotated[
        int | None, typer.Option(min=100, help="Use at most this many rows. Default: all, as they are to be protected.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the forest; repeat it.")
    ] = None,
    part: Annotated[
        list[str] | None, typer.Option("--part", metavar="PART", help="What to attack; repeat it. Default: everything.")
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The secret of your alignment, to be guessed.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="PARTY=FILE", help="A party.toml that a user tries to get round; repeat it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack your own job in simulation, and report what each role could learn under each setting.

    Everything stays in this process. The first party named holds the labels, the second is the curious one. All rows
    and the estimator's default parameters are used unless you say otherwise.

    Example: woodlot leak-test customers.parquet --label default --party bank=age,income --party shop=orders,returns
    """
    with reporting(as_json):
        from woodlot.leaks import PARTS, run_leak_test

        parts = _chosen("--part", part, PARTS)
        case = _case(table, label, party or [], id, rows, _task(task))
        secret = None if secret_file is None else _read_secret(secret_file)
        guards = _guards(policy or [], case.parties)
        params = parse_settings(setting or [])
        start = time.perf_counter()
        try:
            findings = run_leak_test(case, params, _say(as_json, start), parts=parts, secret=secret, guards=guards)
        except (TypeError, ValueError) as error:
            raise DataError(f"the model cannot be trained: {error}") from None
    seconds = time.perf_counter() - start
    if as_json:
        print_json(
            {
                "rows": case.n_rows,
                "task": case.task,
                "parties": {name: list(columns) for name, columns in case.columns.items()},
                "parameters": params,
                "seconds": round(seconds, 1),
                "findings": [finding.to_dict() for finding in findings],
            }
        )
    else:
        _print(case, findings, seconds)


def _chosen(option: str, given: list[str] | None, known: tuple[Any, ...]) -> list[Any]:
    unknown = [name for name in given or () if name not in known]
    if unknown:
        raise ConfigError(f"{option} {unknown[0]}: there are {', '.join(known)}")
    return [name for name in known if not given or name in given]


def _task(task: str | None) -> Literal["classes", "targets"] | None:
    known: dict[str | None, Literal["classes", "targets"] | None] = {
        None: None,
        "classes": "classes",
        "targets": "targets",
    }
    if task in known:
        return known[task]
    raise ConfigError(f"--task {task}: write classes or targets")


def _case(
    table: Path | None,
    label: str | None,
    parties: list[str],
    id: str | None,
    rows: int | None,
    task: Literal["classes", "targets"] | None,
) -> Case:
    from woodlot.leaks import case_of, made_up_case

    if table is None:
        if label or parties or id:
            raise ConfigError("--label, --party and --id are for a table of your own; name it first")
        return made_up_case(rows or 1500, task or "classes")
    if label is None:
        raise ConfigError("name the column with the labels: --label COLUMN")
    dealing: int | dict[str, list[str]] = 2
    if parties:
        dealing = {}
        for one in parties:
            name, equals, columns = one.partition("=")
            if not (name and equals and columns):
                raise ConfigError(f"--party {one}: write --party NAME=COLUMN,COLUMN")
            dealing[name] = [column.strip() for column in columns.split(",")]
    return case_of(_read(table), label, dealing, id=id, max_rows=rows, task=task)


def _read(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix.lower() not in (".csv", ".parquet"):
        raise ConfigError(f"{path} must be a .csv or .parquet file")
    try:
        return pa.csv.read_csv(path) if path.suffix.lower() == ".csv" else pa.parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _read_secret(path: Path) -> bytes:
    try:
        return path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _guards(given: list[str], parties: tuple[str, ...]) -> dict[str, Any]:
    from woodlot.leaks import PolicyGuard
    from woodlot.service.config import PartyConfig

    guards = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not (name and equals and path):
            raise ConfigError(f"--policy {one}: write --policy PARTY=FILE, such as bank=party.toml")
        if name not in parties:
            raise ConfigError(f"--policy {one}: there is no party {name!r}; the parties are {', '.join(parties)}")
        guards[name] = PolicyGuard.of(PartyConfig.load(path))
    return guards


def _say(as_json: bool, start: float) -> Any:
    return lambda text: None if as_json else typer.echo(f"{time.perf_counter() - start:6.0f} s  {text} ...", err=True)


def _print(case: Case, findings: list[Finding], seconds: float) -> None:
    from rich.text import Text

    from woodlot.cli import _show as show

    console = show.stdout()
    attacked = [f for f in findings if f.value is not None and f.baseline is not None]
    rows: list[list[str | Text]] = [
        [
            f.role,
            f.setting,
            f.asset,
            f.attack,
            f.measure,
            f"{f.value:.3f}",
            f"{f.baseline:.3f}",
            Text(WORDS[f.verdict], style=COLOURS[f.verdict]),
        ]
        for f in attacked
    ]
    headings = ["who", "setting", "at stake", "attack", "measure", ">reached", ">without", "verdict"]
    console.print(show.table(headings, rows, wrapped=["who", "setting", "attack", "measure", "verdict"]))
    console.print()
    for f in attacked:
        console.print(
            f"{f.role}, {f.setting}, {f.attack}: {f.words}. Without: {f.against}.", markup=False, highlight=False
        )
    console.print("\nNot attacked, so nothing is said of it:", style="bold")
    for f in findings:
        if f.value is None:
            console.print(f"{f.role}, {f.setting}, {f.asset}: {f.attack} ({f.words}).", markup=False, highlight=False)
    console.print(
        f"\n{case.n_rows:,} rows, {seconds:.0f} s (fewer with --rows N). {case.holder} holds the labels, {case.passive}"
        " is curious. 'without' is what the same attacker reaches without any message. An attack that finds no more is "
        "no proof: another attack may find it.",
        markup=False,
        highlight=False,
    )
