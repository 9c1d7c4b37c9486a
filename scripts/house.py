"""Measure the house: how much code there is, and how far a reader has to go in it.

    python scripts/house.py                print a table
    python scripts/house.py --list         and what was counted, line by line
    python scripts/house.py --json         the same as JSON, always with what was counted
    python scripts/house.py --no-walks     read the sources only, and run nothing

Each function below says what it counts. Compare two commits by running this script in a checkout of each.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import logging
import subprocess
import sys
import tempfile
import threading
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "woodlot"
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("service", "protocols")]

KINDS_OF_A_LIST = 3
"""A place that names this many kinds of job lists them."""


class Figure(NamedTuple):
    """One row of the table: what was counted, the number in words, and where it was found."""

    name: str
    value: str
    found: list[str]


class Source(NamedTuple):
    """One Python file of the package."""

    path: Path
    text: str
    nodes: list[ast.AST]
    """All nodes of its syntax tree, outer ones first."""

    @property
    def name(self) -> str:
        """The path below the package."""
        return self.path.relative_to(PACKAGE).as_posix()


def read_sources() -> list[Source]:
    """Read every Python file of the package."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return [Source(path, text, list(ast.walk(ast.parse(text)))) for path, text in texts.items()]


# --- figures that are read from the sources ---


def size(sources: list[Source]) -> Iterator[Figure]:
    """Files and lines of Python; lines are also counted without the blank ones."""
    folders = Counter(source.name.partition("/")[0] for source in sources)
    yield Figure("Python files", f"{len(sources):,}", [f"{n} {folder}" for folder, n in folders.most_common()])
    yield Figure("Python lines", lines_of([source.text for source in sources]), [])


def lines_of(texts: list[str]) -> str:
    """All lines, and those that are not blank."""
    lines = [line for text in texts for line in text.splitlines()]
    return f"{len(lines):,} ({sum(1 for line in lines if line.strip()):,} not blank)"


def wheel() -> Iterator[Figure]:
    """Files and lines of the wheel: everything below its packages that git does not ignore, as hatchling takes it.

    The five files that hatchling adds about the distribution itself are not counted.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *packages],  # noqa: S607
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    files = [ROOT / name for name in sorted(filter(None, listed)) if (ROOT / name).is_file()]
    others = [f"{path.stat().st_size:,} bytes {path.relative_to(ROOT)}" for path in files if path.suffix != ".py"]
    yield Figure("wheel files", f"{len(files):,}", others)
    yield Figure("wheel lines", lines_of([path.read_text(encoding="utf-8") for path in files]), [])


def imports(sources: list[Source]) -> Figure:
    """Lines of import statements, wherever they stand."""
    counts = {source.name: sum(map(n_lines, nodes(source, ast.Import, ast.ImportFrom))) for source in sources}
    longest = sorted(counts.items(), key=lambda item: -item[1])[:20]
    return Figure("lines of imports", f"{sum(counts.values()):,}", [f"{n} {name}" for name, n in longest])


def nodes(source: Source, *types: type[ast.AST]) -> list[Any]:
    """All nodes of some types in a file."""
    return [node for node in source.nodes if isinstance(node, types)]


def n_lines(node: ast.stmt) -> int:
    """How many lines a statement takes."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def comments(sources: list[Source]) -> Figure:
    """Lines with a comment for people: those that only tell a tool something (noqa, type, fmt) are not counted."""
    counts: Counter[str] = Counter()
    for source in sources:
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            words = token.string.lstrip("#").strip()
            if token.type == tokenize.COMMENT and not words.startswith(("noqa", "type:", "fmt:", "pragma:")):
                counts[source.name] += 1
    share = counts.total() / sum(len(source.text.splitlines()) for source in sources)
    most = [f"{n} {name}" for name, n in counts.most_common(20)]
    return Figure("comment lines", f"{counts.total():,} ({share:.1%} of the lines)", most)


def shared_names(sources: list[Source]) -> Figure:
    """Share of files whose name is found in another folder too; every package's ``__init__.py`` aside."""
    folders = defaultdict(list)
    for source in sources:
        if source.path.name != "__init__.py":
            folders[source.path.name].append(source.path.parent.relative_to(PACKAGE).as_posix())
    shared = {name: held for name, held in folders.items() if len(held) > 1}
    n, total = sum(map(len, shared.values())), sum(map(len, folders.values()))
    found = [f"{name}: {', '.join(held)}" for name, held in sorted(shared.items())]
    return Figure("shared file names", f"{n / total:.0%} ({n} of {total} files, {len(shared)} names)", found)


def repeated_classes(sources: list[Source]) -> Figure:
    """Class names that are defined more than once, private ones and classes within others too."""
    places = defaultdict(list)
    for source in sources:
        for node in nodes(source, ast.ClassDef):
            places[node.name].append(f"{source.name}:{node.lineno}")
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    private = sum(name.startswith("_") for name in repeated)
    found = [f"{name}: {', '.join(where)}" for name, where in sorted(repeated.items())]
    return Figure("repeated class names", f"{len(repeated)} ({private} of them private)", found)


def federation_checks(sources: list[Source]) -> Iterator[Figure]:
    """Calls of ``isinstance`` whose second argument names a federation: a name that ends with it."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for source in sources:
        for call in nodes(source, ast.Call):
            if ast.unparse(call.func) == "isinstance" and any(
                name.endswith("Federation") for name in names_in(call.args[1])
            ):
                found[source.name.startswith("estimators/")].append(f"{source.name}:{call.lineno} {ast.unparse(call)}")
    yield Figure("isinstance on federations, in estimators", str(len(found[True])), found[True])
    yield Figure("isinstance on federations, elsewhere", str(len(found[False])), found[False])


def names_in(*parts: ast.AST) -> set[str]:
    """Names and attributes in expressions, and their texts."""
    names = set()
    for node in (node for part in parts for node in ast.walk(part)):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def lists_of_kinds(sources: list[Source]) -> Figure:
    """Places that list kinds of job: one more kind may have to be added there.

    A kind is a class whose name ends with "Order" and that has a tag; a place names it by the class or by the tag. A
    place is the outermost literal (dict, tuple, list, set), union of types, ``match``, or chain of ``if`` and ``elif``
    (its conditions) that names three kinds or more. It must name one by its class or by a tag with a hyphen: "train"
    and "predict" alone are ordinary words.
    """
    tags: dict[str, str] = {
        node.name: keyword.value.value
        for source in sources
        for node in nodes(source, ast.ClassDef)
        for keyword in node.keywords
        if node.name.endswith("Order") and keyword.arg == "tag"
    }
    words = {tag for tag in tags.values() if "-" not in tag}
    found = []
    for source in sources:
        seen: set[ast.AST] = set()
        for node in source.nodes:
            names = names_in(*listing_parts(node)) & (tags.keys() | set(tags.values()))
            kinds = {tags.get(name, name) for name in names}
            if node not in seen and len(kinds) >= KINDS_OF_A_LIST and names - words:
                found.append(f"{source.name}:{getattr(node, 'lineno', 0)} {', '.join(sorted(kinds))}")
                seen.update(ast.walk(node))
    return Figure(f"places that list kinds of job (of {len(tags)})", str(len(found)), found)


def listing_parts(node: ast.AST) -> list[ast.AST]:
    """The parts of a node in which a list may stand: none, where it is of no sort that lists."""
    if isinstance(node, ast.Dict | ast.Tuple | ast.List | ast.Set | ast.BinOp | ast.Match):
        return [node]
    if isinstance(node, ast.If):
        chained = listing_parts(node.orelse[0]) if len(node.orelse) == 1 else []
        return [node.test, *chained]
    return []


# --- figures that take a run ---


class Opened:
    """Files of the package in which a function was called: those that a reader of the run would have to open.

    Methods that `dataclasses` and `msgspec` write are in no file. Of compiled kernels only those that Python calls are
    seen.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Note a call; see `sys.setprofile`."""
        if event == "call":
            self.files.add(frame.f_code.co_filename)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the calls of this thread, and of all threads that are started from here on."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def of_package(self) -> list[str]:
        """The package's files, below its folder."""
        return sorted(Path(f).relative_to(PACKAGE).as_posix() for f in self.files if f.startswith(f"{PACKAGE}/"))


def walks() -> Iterator[Figure]:
    """Files opened along the five walks of docs/architecture.md; see `Opened`.

    Everything is small: 200 rows of four columns, a few trees, two or three parties. Each walk is taken twice and
    watched the second time, so that nothing is seen of imports and of compiling.
    """
    for name, walk in WALKS.items():
        opened = Opened()
        logging.disable()  # what the services say about their open policies
        try:
            walk(Opened())
            walk(opened)
        finally:
            logging.disable(logging.NOTSET)
        files = opened.of_package()
        yield Figure(f"files opened: {name}", str(len(files)), files)


def fit(opened: Opened) -> None:
    """Fit a forest on one table, whose columns are dealt to two parties in this process."""
    import woodlot

    with opened.watching():
        woodlot.FederatedForestClassifier(5, random_state=0).fit(*rows())


def fit_over_services(opened: Opened) -> None:
    """Start a coordinator and two parties, order a forest as a user, and stop them: all in this process."""
    from world import World, running

    import woodlot

    held = {party: {"customers": table} for party, table in tables().items()}
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), held)
        user = world.root / "alice" / "identity"
        with (
            opened.watching(),
            running(world),
            woodlot.connect(world.address, identity=user, tables="customers") as federation,
        ):
            woodlot.FederatedForestClassifier(5, random_state=0).fit(federation, y="bank.late")


def predict_in_one_round(opened: Opened) -> None:
    """Predict rows of a federation in this process, whose parties each have a part of the forest."""
    import woodlot

    federation = woodlot.Federation.local(tables(), id="id")
    model = woodlot.FederatedForestClassifier(5, random_state=0).fit(federation, y="bank.late")
    with opened.watching():
        model.predict(federation)


def fit_lossless(opened: Opened) -> None:
    """Fit a forest on rows that are dealt to three parties, by sums that the coordinator cannot take apart."""
    import woodlot

    with opened.watching():
        woodlot.HorizontalForestClassifier(5, parties=3, random_state=0).fit(*rows())


def compare_encrypted(opened: Opened) -> None:
    """Predict an encrypted row with a revocable forest, whose splits are encrypted."""
    from revocable_world import ready_master

    import woodlot
    from woodlot.federation.local_revocable import Encryption

    X, y = rows()
    keys = Encryption(512, "test", ready_master)
    model = woodlot.RevocableForestClassifier(2, max_depth=3, random_state=0, encryption=keys).fit(X, y)
    with opened.watching():
        model.predict_encrypted(X[:1])


def rows() -> tuple[Any, Any]:
    """A table that every walk goes with, and its labels."""
    import numpy as np

    X = np.random.default_rng(0).normal(size=(200, 4))
    return X, (X[:, 0] * X[:, 2] > 0).astype(int)


def tables() -> dict[str, Any]:
    """The same rows at two parties, the first of which has the labels."""
    import pyarrow as pa

    X, y = rows()
    ids = pa.array(range(len(y)))
    bank = pa.table({"id": ids, "age": X[:, 0], "income": X[:, 1], "late": y})
    return {"bank": bank, "shop": pa.table({"id": ids, "visits": X[:, 2], "sum": X[:, 3]})}


WALKS: Mapping[str, Callable[[Opened], None]] = {
    "fit in process": fit,
    "job over services": fit_over_services,
    "prediction in one round": predict_in_one_round,
    "lossless forest": fit_lossless,
    "encrypted comparison": compare_encrypted,
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print what was counted, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-walks", action="store_true", help="read the sources only, and run nothing")
    options = parser.parse_args()
    sources = read_sources()
    figures = [
        *size(sources),
        *wheel(),
        imports(sources),
        comments(sources),
        shared_names(sources),
        repeated_classes(sources),
        *federation_checks(sources),
        lists_of_kinds(sources),
        *(() if options.no_walks else walks()),
    ]
    if options.json:
        print(json.dumps({figure.name: {"value": figure.value, "found": figure.found} for figure in figures}, indent=1))
        return
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        print(f"{figure.name:{width}}  {figure.value}")
        if options.list:
            print(*(f"    {line}\n" for line in figure.found), sep="", end="")


if __name__ == "__main__":
    main()
