"""Structs are decoded by many threads at once, from the first time on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import woodlot

RACE = """
import sys, threading, msgspec
from woodlot.data.decoding import converted, from_json, from_msgpack
sys.setswitchinterval(1e-6)
FIELD = "dict[str, list[tuple[int, str] | None]] | None"
VALUE = {"a19": {"x": [[1, "y"]]}, "inner": {"a19": {"x": [None]}}}
MSGPACK, JSON = msgspec.msgpack.encode(VALUE), msgspec.json.encode(VALUE)
WAYS = (lambda T: from_msgpack(MSGPACK, T), lambda T: from_json(JSON, T), lambda T: converted(VALUE, T))
for number in range(200):
    fields = [(f"a{i}", FIELD, None) for i in range(20)]
    inner = msgspec.defstruct(f"Inner{number}", fields, module="builtins")
    outer = msgspec.defstruct(f"Outer{number}", [*fields, ("inner", inner | None, None)], module="builtins")
    together = threading.Barrier(4)
    def decode(way):
        together.wait()
        assert way(outer).a19 == {"x": [(1, "y")]}
    threads = [threading.Thread(target=decode, args=[WAYS[i % 3]]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_first_decodings_in_many_threads_end_well() -> None:
    """With msgspec alone the process dies of a segmentation fault within a second."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


DECODES = re.compile(r"msgspec(\.\w+)*\.(decode|convert|Decoder)")


def _decodings(source: str) -> list[str]:
    """Where a module lets msgspec decode, or calls msgspec by another name, under which that would not be found."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute() if DECODES.fullmatch(ast.unparse(node)):
                pass
            case ast.ImportFrom(module=str(module)) if module.startswith("msgspec"):
                pass
            case ast.Import(names=names) if any(each.name.startswith("msgspec") and each.asname for each in names):
                pass
            case _:
                continue
        found.append(ast.unparse(node))
    return found


def test_one_module_decodes_for_all_others() -> None:
    package = Path(woodlot.__file__).parent
    found = {
        str(path.relative_to(package)): decodings
        for path in package.rglob("*.py")
        if (decodings := _decodings(path.read_text()))
    }
    assert list(found) == [str(Path("data", "decoding.py"))]


@pytest.mark.parametrize(
    "source",
    [
        "msgspec.json.decode(data, type=Order)",
        "read = msgspec.convert",
        "class Desk:\n    reader = msgspec.msgpack.Decoder(Order)",
        "from msgspec.msgpack import decode",
        "from msgspec import json",
        "import msgspec as m",
    ],
)
def test_a_module_that_decodes_is_found(source: str) -> None:
    assert _decodings(source)
