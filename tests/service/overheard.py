"""Loaded in a service before it starts: it appends every message that the service receives to a file."""

from __future__ import annotations

import os

from woodlot.runtime.frames import Assembler, Parcel

SETTING = "WOODLOT_TEST_OVERHEARD"
"""The file."""


def install() -> None:
    """Write down from now on what is received, with its length before it."""
    file = os.open(os.environ[SETTING], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    feed = Assembler.feed

    def noted(self: Assembler, frame: bytes) -> Parcel | None:
        parcel = feed(self, frame)
        if parcel is not None:
            os.write(file, len(parcel.data).to_bytes(8, "big") + parcel.data)
        return parcel

    Assembler.feed = noted  # type: ignore[method-assign]


def read(data: bytes) -> list[bytes]:
    """The messages in such a file."""
    found, place = [], 0
    while place < len(data):
        end = place + 8 + int.from_bytes(data[place : place + 8], "big")
        found.append(data[place + 8 : end])
        place = end
    return found


if __name__ == "service":
    install()
