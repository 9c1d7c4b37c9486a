"""Write docs/who-sees-what.md: every message of every protocol, and what its receiver learns from it.

The document is made from the messages themselves, so it cannot say less than they do. Use ``--check`` to find
out whether it is up to date.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from types import ModuleType

from woodlot.jobs.every_message import MODULES
from woodlot.protocols.core.message import Message, registered

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "who-sees-what.md"

INTRODUCTION = """\
# Who sees what

Every message that Woodlot's protocols send, who sends it, who reads it, and what the reader learns from it.
The form tells how the values travel: *clear* as they are, *encoded* under a secret code (permuted, masked or
hashed), *encrypted* so that only the holder of a key can read them. This is apart from the encryption of the
connection, which hides messages from everybody but their receiver.

This file is made by `python scripts/who_sees_what.py`; do not edit it.
"""


def document() -> str:
    """Return the text of the document."""
    parts = [INTRODUCTION]
    for module in MODULES:
        messages = [message for message in registered().values() if message.__module__ == module.__name__]
        summary = (inspect.getdoc(module) or "").partition("\n\n")[0].replace("\n", " ")
        parts.append(f"\n## {_title(module)}\n\n{summary}\n\n{_table(messages)}")
    return "".join(parts)


def _title(module: ModuleType) -> str:
    name = module.__name__.rpartition(".")[2]
    return "Every protocol" if name == "message" else name.removesuffix("_messages").replace("_", " ").capitalize()


def _table(messages: list[type[Message]]) -> str:
    lines = ["| message | from | to | form | what the receiver learns |", "|---|---|---|---|---|"]
    for message in messages:
        told = message.discloses
        cells = [f"`{message.__name__}`", told.sender.value, told.receiver.value, told.form, told.reveals]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the document, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if out of date")
    parser.add_argument("--output", type=Path, default=DOCUMENT, help="the document (default: %(default)s)")
    options = parser.parse_args()
    text = document()
    if options.check:
        if options.output.exists() and options.output.read_text(encoding="utf-8") == text:
            return 0
        print(f"{options.output} is out of date: run python scripts/who_sees_what.py", file=sys.stderr)
        return 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
