"""The command line at one rank, with all that the rank encodes noted in a file: ``mpi_rank.py FOLDER mpi job.toml``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from woodlot.cli import app
from woodlot.runtime import codec

LENGTH = 8
"""Bytes of a message's length, before the message."""


def main() -> None:
    """Run the command line."""
    folder, *arguments = sys.argv[1:]
    with (Path(folder) / os.environ["OMPI_COMM_WORLD_RANK"]).open("ab") as notes:
        codec.listeners.append(lambda data: notes.write(len(data).to_bytes(LENGTH, "big") + data))
        app(arguments, standalone_mode=True)


def noted(path: Path) -> list[bytes]:
    """What a rank has noted."""
    data, found = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:LENGTH], "big")
        found.append(data[LENGTH : LENGTH + length])
        data = data[LENGTH + length :]
    return found


if __name__ == "__main__":
    main()
