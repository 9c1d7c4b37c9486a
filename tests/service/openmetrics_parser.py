"""A strict reader of OpenMetrics 1.0, for tests: whatever the format does not allow is an error."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)?\}})? (\S+)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|NaN|[+-]Inf")
_ESCAPES = {r"\\": "\\", r"\n": "\n", r"\"": '"'}
_SUFFIXES = {"gauge": "", "counter": "_total", "info": "_info"}

Labels = tuple[tuple[str, str], ...]


class ReadFamily(NamedTuple):
    type: str
    help: str
    unit: str
    samples: dict[Labels, float]


def labels(**pairs: str) -> Labels:
    return tuple(sorted(pairs.items()))


def parse(text: str) -> dict[str, ReadFamily]:
    """The families of an exposition by name."""
    assert text.endswith("# EOF\n")
    assert "\r" not in text
    lines = text.split("\n")
    assert lines.pop() == ""
    assert lines.pop() == "# EOF"
    found: dict[str, ReadFamily] = {}
    name, said = "", dict[str, str]()
    for line in lines:
        assert line, "an empty line"
        if line.startswith("#"):
            comment = re.fullmatch(rf"# (TYPE|UNIT|HELP) ({_NAME})(?: (.*))?", line)
            assert comment, line
            word, about, rest = comment.groups()
            if about != name:
                assert about not in found, f"{about} is interleaved with others"
                assert word == "TYPE", f"{about} has no type first"
                name, said = about, {}
            assert word not in said, f"{name} has two lines {word}"
            said[word] = rest or ""
            if word == "TYPE":
                assert rest in _SUFFIXES, line
                found[name] = ReadFamily(rest, "", "", {})
            elif word == "UNIT":
                assert name.endswith(f"_{rest}"), line
                found[name] = found[name]._replace(unit=rest)
            else:
                assert re.fullmatch(r'(?:[^"\\\n]|\\[\\n"])*', rest or ""), line
                found[name] = found[name]._replace(help=_unescaped(rest or ""))
            assert not found[name].samples, f"{name} has samples before its {word}"
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, line
        own = found[name]
        assert sample[1] == name + _SUFFIXES[own.type], line
        pairs = [pair.partition("=") for pair in re.findall(_LABEL, sample[2] or "")]
        key = tuple(sorted((label, _unescaped(value[1:-1])) for label, _, value in pairs))
        assert len({label for label, _ in key}) == len(key), line
        assert key not in own.samples, f"twice: {line}"
        assert _NUMBER.fullmatch(sample[3]), line
        value = float(sample[3])
        assert own.type != "counter" or value >= 0, line
        assert own.type != "info" or value == 1, line
        own.samples[key] = value
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\[\\n\"]", lambda match: _ESCAPES[match[0]], text)
