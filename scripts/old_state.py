"""Write tests/service/state-1.tar.xz: the state folders of a small federation, as protocol version 1 left them.

Run it once, before a format changes, under a new name; never write over a file that a release has left. Coordinator,
bank and shop of ``tests/service/world.py`` have trained one forest. What later versions have added is removed, and
databases with migrations go back to their first version.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests" / "service"
sys.path.insert(0, str(TESTS))

FIRST_VERSION = ("DROP TABLE evaluations", "DROP TABLE explained", "PRAGMA user_version = 1")
"""What takes the record of predictions back to its first version."""


def main() -> int:
    """Train, and pack the folders."""
    from processes import small_tables
    from small_jobs import train_order, user_of
    from world import World, running

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    out = parser.parse_args().output
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), small_tables())
        with running(world), user_of(world) as alice:
            model = alice.client.finish(alice.client.submit(train_order(alice)).job).job
            score = alice.client.finish(alice.client.submit(alice.predict_order(model, "bank.late")).job).score
        for path in Path(folder).glob("*/state/**/*.sqlite"):
            with closing(sqlite3.connect(path, isolation_level=None)) as database:
                for statement in FIRST_VERSION if path.name == "predictions.sqlite" else ():
                    database.execute(statement)
                database.execute("PRAGMA journal_mode = DELETE")
                database.execute("VACUUM")
        with tarfile.open(out, "x:xz") as tar:
            facts = Path(folder) / "facts.json"
            facts.write_text(json.dumps({"model": model, "score": score}))
            tar.add(facts, "facts.json")
            for member in ("coordinator", "bank", "shop"):
                for path in sorted((Path(folder) / member / "state").rglob("*")):
                    if path.is_file() and path.name != "approvals.sqlite" and not path.name.endswith(".lock"):
                        tar.add(path, path.relative_to(folder).as_posix())
    print(f"wrote {out}: {out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
