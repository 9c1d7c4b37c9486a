"""Structs are decoded by many threads at once, from the first time on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import woodlot

RACE = """
import sys, threading, msgspec
from woodlot.data.decoding import built
sys.setswitchinterval(1e-6)
FIELD = "dict[str, list[tuple[int, str] | None]] | None"
data = msgspec.msgpack.encode({"a19": {"x": [[1, "y"]]}, "inner": {"a19": {"x": [None]}}})
for number in range(200):
    fields = [(f"a{i}", FIELD, None) for i in range(20)]
    inner = msgspec.defstruct(f"Inner{number}", fields, module="builtins")
    outer = msgspec.defstruct(f"Outer{number}", [*fields, ("inner", inner | None, None)], module="builtins")
    together = threading.Barrier(4)
    def decode():
        together.wait()
        assert msgspec.msgpack.decode(data, type=built(outer)).a19 == {"x": [(1, "y")]}
    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_first_decodings_in_many_threads_end_well() -> None:
    """Without `built` the process dies of a segmentation fault within a second."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_everything_that_is_decoded_is_built_before() -> None:
    calls = []
    for path in Path(woodlot.__file__).parent.rglob("*.py"):
        calls += re.findall(r"msgspec\.(?:json\.decode|msgpack\.decode|convert)\(.*", path.read_text())
    assert len(calls) > 10
    plain = ("type=tuple[str, msgspec.Raw]", "type=list[bytes]", "convert(value, hint)")  # built as a message's check
    assert [call for call in calls if "built(" not in call and not any(each in call for each in plain)] == []
