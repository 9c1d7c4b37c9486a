"""``woodlot leak-test``: known attacks on vertical forests, run against one's own job in simulation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import AsJson, print_json, reporting
from woodlot.cli._forest import parse_settings
from woodlot.exceptions import ConfigError, DataError

if TYPE_CHECKING:
    from woodlot.experiments.leaks import Case, Finding


def leak_test(
    table: Annotated[
        Path | None, typer.Argument(metavar="TABLE", help="Your table, .csv or .parquet; made-up data without it.")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the classes.")] = None,
    party: Annotated[
        list[str] | None,
        typer.Option(
            "--party", metavar="NAME=COLUMNS", help="Who holds which columns, such as bank=age,income; repeat it."
        ),
    ] = None,
    id: Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="The column of ids, to be attacked.")] = None,
    rows: Annotated[int, typer.Option(min=100, help="Rows that are used at most.")] = 3000,
    labels: Annotated[
        list[str] | None,
        typer.Option("--labels", metavar="HOW", help="How labels are shared; repeat it. Default: every way."),
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the forest; repeat it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack your own job in simulation, and report what each role could learn under each setting.

    Everything stays in this process. The first party named holds the labels, the second is the curious one.
    """
    with reporting(as_json):
        from woodlot.experiments.leaks import LABEL_SETTINGS, run_leak_test

        unknown = [how for how in labels or () if how not in LABEL_SETTINGS]
        if unknown:
            raise ConfigError(f"--labels {unknown[0]}: there are {', '.join(LABEL_SETTINGS)}")
        chosen = [how for how in LABEL_SETTINGS if not labels or how in labels]
        case = _case(table, label, party or [], id, rows)
        try:
            findings = run_leak_test(case, parse_settings(setting or []), chosen, _say(as_json))
        except (TypeError, ValueError) as error:
            raise DataError(f"the forest cannot be grown: {error}") from None
    if as_json:
        print_json({"findings": [finding.to_dict() for finding in findings]})
    else:
        _print(case, findings)


def _case(table: Path | None, label: str | None, parties: list[str], id: str | None, rows: int) -> Case:
    from woodlot.experiments.leaks import case_of, made_up_case

    if table is None:
        if label or parties or id:
            raise ConfigError("--label, --party and --id are for a table of your own; name it first")
        return made_up_case(min(rows, 1500))
    if label is None:
        raise ConfigError("name the column with the classes: --label COLUMN")
    dealing: int | dict[str, list[str]] = 2
    if parties:
        dealing = {}
        for one in parties:
            name, equals, columns = one.partition("=")
            if not (name and equals and columns):
                raise ConfigError(f"--party {one}: write --party NAME=COLUMN,COLUMN")
            dealing[name] = [column.strip() for column in columns.split(",")]
    return case_of(_read(table), label, dealing, id=id, max_rows=rows)


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


def _say(as_json: bool) -> Any:
    return lambda text: None if as_json else typer.echo(f"{text} ...", err=True)


def _print(case: Case, findings: list[Finding]) -> None:
    from rich.text import Text

    from woodlot.cli import _show as show

    console = show.stdout()
    more, nothing = Text("tell more", style="red"), Text("no more", style="green")
    rows: list[list[str | Text]] = [
        [f.attack, f.setting, f.role, f.measure, f"{f.value:.2f}", f"{f.chance:.2f}", more if f.leaks else nothing]
        for f in findings
    ]
    headings = ["attack", "setting", "who", "measure", ">reached", ">without", "messages"]
    console.print(show.table(headings, rows, wrapped=["attack", "setting", "measure"]))
    console.print()
    for words in dict.fromkeys(f"{f.attack}, {f.setting}: {f.words}." for f in findings):
        console.print(words, markup=False)
    console.print(
        f"\n{case.holder} holds the labels, {case.passive} is curious. 'without' is what the same attacker reaches "
        "without any message. Figures are of this table and these parameters; other attacks may reach more.",
        markup=False,
    )
