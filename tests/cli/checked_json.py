"""What commands print with ``--json`` is what ``woodlot schema`` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from woodlot.cli._documents import DOCUMENTS


def checked(arguments: Sequence[object], document: Any) -> Any:
    """Return a document that a command has printed, if it is as its schema says."""
    words = [str(word) for word in arguments]
    name = " ".join(words[:2]) if " ".join(words[:2]) in DOCUMENTS else words[0]
    kind, is_open = DOCUMENTS[name]
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    own = {key: value for key, value in document.items() if key in known or not is_open}
    msgspec.convert(own, kind, strict=True)
    return document
