"""Tables for notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence


def html_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in HTML; every cell is text, whatever is in it."""
    lines = [_line("th", headings), *(_line("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def html_facts(title: str, facts: Mapping[str, str]) -> str:
    """A title and named facts, one below the other."""
    return f"<p><b>{html.escape(title)}</b></p>" + html_table((), facts.items())


def html_of(shown: object) -> str:
    """For notebooks: what is shown as text, as a title and a table."""
    title, *lines = repr(shown).splitlines()
    return html_facts(title, dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines))


def _line(tag: str, cells: Iterable[str]) -> str:
    inner = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
    return f"<tr>{inner}</tr>" if inner else ""
