"""Make docs/reliability.md from what the suites have recorded, and fail if anything was lost.

    python scripts/reliability.py
    python scripts/reliability.py begin SUITE ...
    python scripts/reliability.py done SUITE ...

Every suite appends lines to ``build/reliability/*.jsonl``: what was done how often, what it proves, and how much was
lost. ``begin`` throws away what a suite recorded before, and ``done`` says that it has passed as a whole: of a suite
that has not, or that lacks a kind of fault, nothing is claimed. Tests are counted by asking pytest, and what a file of
tests proves is the first sentence of its docstring.
"""

# ruff: noqa: E501 - tables of names, one row on each line

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("fuzz", "states", "service", "protocols", "")]
RECORDS = ROOT / "build" / "reliability"
PAGE = ROOT / "docs" / "reliability.md"

KINDS = {
    "faults": ("faults/test_*", "*/test_*faults*", "*/test_*kill*", "*/test_journal*", "*/test_service_stops*"),
    "bad input": (
        "fuzz/test_*", "states/test_*", "data/test_archives*", "runtime/test_codec*", "runtime/test_frames*",
        "estimators/test_damaged_files*", "estimators/test_*bad_input*", "service/test_party_states*",
        "service/test_config*", "service/test_receipts*",
    ),
    "strangers": (
        "service/test_strangers*", "service/test_identity*", "service/test_trust*", "service/test_authority*",
        "service/test_orders*", "service/test_policy*", "service/test_dishonest_coordinator*",
        "service/test_ordered_keys*", "runtime/test_grpc_strangers*", "dashboard/test_guard*",
    ),
    "load": (
        "service/test_load*", "service/test_memory*", "service/test_job_queue*", "service/test_listing*",
        "runtime/test_grpc_limits*",
    ),
    "secrets": ("service/test_planted_secrets*", "service/test_wire_of_services*", "protocols/test_wire_secrets*"),
    "statistics": ("privacy/test_*audit*", "privacy/test_no_reuse*", "privacy/test_private_quantiles*", "privacy/test_count_noise*"),
}  # fmt: skip
"""Files of tests by what they are for, below tests/."""

COMMANDS = {
    "faults": "make test-faults",
    "journal": "make test-faults",
    "load": "make soak",
    "fuzz": "make fuzz",
    "states": "make fuzz",
    "audit": "make audit",
}
"""What runs a suite in full; `make test` runs a short form of each."""

FILES = ("faults", "load", "fuzz", "states", "audit")
"""What a suite records is in a file of this name; that of the faults has those of the journal, too."""

FAULTS = (
    "kill -9 of a party", "kill -9 of the coordinator", "kill -9 of the helper", "kill -9 of the key service",
    "kill -9 at once of everybody", "kill -9 between operations on files", "SIGSTOP of a party",
    "SIGSTOP of the coordinator", "SIGSTOP until missed of a party", "SIGSTOP until missed of the coordinator",
    "SIGSTOP until missed of the helper", "SIGSTOP until missed of the key service", "cut of the line of a party",
    "line cut, below TLS", "line of the user cut, below TLS", "half-open connection", "message held up",
    "line with a delay of 150 ms", "line of 2 kB/s", "frame sent twice", "frames in another order", "full disk",
    "read-only disk after a restart", "torn end of a party's journal", "torn end of the coordinator's journal",
    "clock jump", "restart of everything in some order",
)  # fmt: skip
"""What must have happened before anything is claimed of faults: a test that was skipped is not forgotten."""

SERVICE, RUNTIME, DASHBOARD = "tests/service", "tests/runtime", "tests/dashboard"
STRANGERS = {
    "no certificate": f"{SERVICE}/test_strangers.py::test_strangers_hear_nothing",
    "self-signed certificate": f"{SERVICE}/test_strangers.py::test_strangers_hear_nothing",
    "certificate of another authority": f"{SERVICE}/test_strangers.py::test_strangers_hear_nothing",
    "expired certificate": f"{SERVICE}/test_strangers.py::test_strangers_hear_nothing",
    "a party's certificate without its key": f"{SERVICE}/test_strangers.py::test_a_partys_certificate_is_nothing_without_its_key",
    "revoked certificate": f"{SERVICE}/test_strangers.py::test_the_wrong_role_and_the_revoked_are_refused_by_name",
    "revoked on an open connection": f"{RUNTIME}/test_grpc_strangers.py::test_a_certificate_that_is_revoked_loses_its_connection",
    "right certificate, wrong role": f"{SERVICE}/test_strangers.py::test_the_wrong_role_and_the_revoked_are_refused_by_name",
    "a second key for a party's name": f"{SERVICE}/test_authority.py::test_a_name_belongs_to_one_key_and_a_key_to_one_name",
    "a party that poses as the coordinator": f"{SERVICE}/test_identity_tls.py::test_nobody_but_a_coordinator_can_be_the_server",
    "TLS 1.2 and below": f"{SERVICE}/test_strangers.py::test_older_versions_of_tls_are_refused_even_with_a_good_certificate",
    "weak ciphers": f"{SERVICE}/test_strangers.py::test_weak_ciphers_are_refused",
    "no TLS": f"{RUNTIME}/test_grpc_strangers.py::test_strangers_are_refused",
    "user without permission": f"{SERVICE}/test_strangers.py::test_a_user_without_permission_is_refused_by_the_party_itself",
    "another user's jobs, answers and models": f"{SERVICE}/test_strangers.py::test_another_users_jobs_are_as_unknown_as_those_that_never_were",
    "a user who speaks as the coordinator": f"{SERVICE}/test_strangers.py::test_what_is_between_coordinator_and_party_is_not_for_users",
    "a party that asks for another's secrets": f"{SERVICE}/test_strangers.py::test_a_party_only_answers_and_cannot_ask_for_what_another_keeps",
    "somebody else's signed order": f"{SERVICE}/test_strangers.py::test_an_order_is_its_signers_and_nobody_elses",
    "a party's part of a model at another's dashboard": f"{DASHBOARD}/test_pages.py::test_a_partys_tree_holds_nothing_of_another",
    "dashboard: another host name": f"{DASHBOARD}/test_guard.py::test_another_host_name_is_refused",
    "dashboard: another origin, forged request": f"{DASHBOARD}/test_guard.py::test_a_change_needs_our_origin_and_our_token",
    "dashboard: the token twice": f"{DASHBOARD}/test_guard.py::test_the_token_opens_the_door_once",
    "dashboard: paths that lead out": f"{DASHBOARD}/test_pages.py::test_what_is_not_there",
    "dashboard: script in names of columns, classes, tables and models": f"{DASHBOARD}/test_pages.py::test_names_are_shown_as_text_on_every_page_in_every_role",
    "dashboard: users without a name on the list": f"{DASHBOARD}/test_pages.py::test_over_tls_only_named_users_get_in",
}  # fmt: skip
"""Who knocks, and which test shows the door; names of parties and users cannot hold markup at all."""


class Line(NamedTuple):
    """What a suite has done."""

    suite: str
    what: str
    proved: str
    count: int
    lost: int


def recorded() -> list[Line]:
    """What the suites have recorded; lines about the same thing are added up, whatever the protocol."""
    total: dict[tuple[str, str, str], Counter[str]] = {}
    protocols: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for path in sorted(RECORDS.glob("*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            about = line["suite"], line["what"], line["proved"]
            total.setdefault(about, Counter()).update(count=int(line["count"]), lost=int(line["lost"]))
            if line.get("protocol"):
                protocols[about].add(line["protocol"])
    found = []
    for about, sums in sorted(total.items()):
        suite, what, proved = about
        where = f", in {len(protocols[about])} protocols" if len(protocols[about]) > 1 else ""
        found.append(Line(suite, what + where, proved, sums["count"], sums["lost"]))
    return found


def missing(lines: list[Line]) -> list[str]:
    """What has not passed as a whole, or was not done at all."""
    from targets import TARGETS
    from worlds import WORLDS

    done: defaultdict[str, set[str]] = defaultdict(set)
    for line in lines:
        done[line.suite] |= {line.what, line.what.partition(", in ")[0], line.what.partition(":")[0]}
    found = [suite for suite in FILES if not (RECORDS / f"{suite}.done").exists()]
    found += [fault for fault in FAULTS if fault not in done["faults"]]
    found += [f"fuzz of {target}" for target in TARGETS if target not in done["fuzz"]]
    found += [f"messages in states of: {world}" for world in WORLDS if world not in done["states"]]
    return found


def begin(suites: Sequence[str]) -> None:
    """Throw away what these suites have recorded."""
    for suite in suites:
        for path in RECORDS.glob(f"{suite}.*"):
            path.unlink()


def done(suites: Sequence[str]) -> None:
    """These suites have passed."""
    for suite in suites:
        (RECORDS / f"{suite}.done").touch()


def collected() -> Counter[str]:
    """How many tests there are in each file, each set of parameters counted; also those that `make test` leaves out."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = re.findall(r"^(tests/\S+\.py): (\d+)$", done.stdout, re.MULTILINE)
    if done.returncode or not found:
        raise SystemExit(f"the tests cannot be counted:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Counter({file: int(number) for file, number in found})


def is_there(test: str) -> bool:
    """Whether a test of this name is in its file."""
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and f"def {name}(" in (ROOT / file).read_text()


def proves(path: Path) -> str:
    """The first paragraph of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def files_of(patterns: Sequence[str]) -> list[str]:
    """The files of one kind of tests."""
    found = {path for pattern in patterns for path in (ROOT / "tests").glob(f"{pattern}.py")}
    return sorted(str(path.relative_to(ROOT)) for path in found)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(head), ["---"] * len(head), *cells])


def page(lines: list[Line], counts: Counter[str]) -> str:
    """The whole page."""
    lost = sum(line.lost for line in lines)
    suites: dict[str, Counter[str]] = {}
    for line in lines:
        suites.setdefault(line.suite, Counter()).update(count=line.count, lost=line.lost)
    kinds = {kind: [file for file in files_of(patterns) if counts[file]] for kind, patterns in KINDS.items()}
    every = counts.total()
    verdict = "**Nothing was lost in what is recorded here.**" if lost == 0 else f"**{lost} LOST: see the tables.**"
    if unrecorded := missing(lines):
        verdict += f" **NOT recorded as a whole, so nothing is claimed of: {', '.join(unrecorded)}.**"
    summary = table(
        ("suite", "faults, inputs, messages or requests", "lost", "repeat"),
        [(s, f"{n['count']:,}", n["lost"], f"`{COMMANDS.get(s, 'make test')}`") for s, n in sorted(suites.items())],
    )
    tests = table(
        ("kind", "tests", "files"),
        [(kind, sum(counts[file] for file in files), len(files)) for kind, files in kinds.items()],
    )
    done = table(
        ("suite", "what", "times", "lost", "proves"),
        [(line.suite, line.what, f"{line.count:,}", line.lost, line.proved) for line in lines],
    )
    strangers = table(("stranger or attack", "test"), [(who, f"`{test}`") for who, test in STRANGERS.items()])
    files = table(
        ("kind", "file", "tests", "proves"),
        [(kind, f"`{file}`", counts[file], proves(ROOT / file)) for kind, files in kinds.items() for file in files],
    )
    return f"""# Reliability

Made by `scripts/reliability.py` (`make reliability`) from what the suites have recorded; do not edit it. Repeat it with
`make test-faults`, `make fuzz`, `make soak` and `make audit`, then `make reliability`. `make test` has a short form of
each.

{verdict} The script that makes this page fails otherwise: each line below counts what was done and, as `lost`, what then
was not as it had to be: a result that differs in a bit, a record or a message that is gone, a budget spent twice or
forgotten, an error that is none of Woodlot's own, memory that grew, a request without its answer.

{summary}

## Tests

{every:,} tests in all; of these, by what they are for:

{tests}

## What was done, and what it proves

{done}

## Strangers, and what refuses them

Names of members are letters, digits, dashes and underscores: no name of a party or user can hold markup or a path.

{strangers}

## The tests, and what each file proves

{files}
"""


def main() -> int:
    """Write the page; 1 where anything was lost, or a named test is gone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("begin", "done"))
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - set(FILES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(FILES)}")
    if arguments.what is not None:
        (begin if arguments.what == "begin" else done)(arguments.suites)
        return 0
    if gone := [test for test in STRANGERS.values() if not is_there(test)]:
        print(f"these tests are not there any more: {gone}")
        return 1
    lines = recorded()
    if not lines:
        print("nothing is recorded in build/reliability; run the suites first")
        return 1
    PAGE.write_text(page(lines, collected()))
    lost = sum(line.lost for line in lines)
    print(f"{PAGE.relative_to(ROOT)}: {len(lines)} lines recorded, {lost} lost")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
