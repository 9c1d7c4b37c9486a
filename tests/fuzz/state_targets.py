"""What services read back from their own state folders, and what browsers ask of pages about them."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

from workshop import worked

from woodlot.dashboard.app import Pages
from woodlot.dashboard.guard import CSRF_HEADER, Guard
from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.views import CoordinatorView
from woodlot.data.sources import LoadedTable
from woodlot.exceptions import WoodlotError
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.party_store import PartyStore
from woodlot.runtime.journal import Journal

HOST = "127.0.0.1:8000"
REPLACED = 0x80


def state(data: bytes) -> None:
    """A file of a state folder is replaced, or bytes of it are; then the service reads all that it has written."""
    if len(data) < 2:
        return
    done = worked()
    path = done.files[(data[0] & ~REPLACED) % len(done.files)]
    before = path.read_bytes()
    root = next(parent for parent in path.parents if parent.name == "state")
    try:
        path.write_bytes(data[1:] if data[0] & REPLACED else patched(before, data[1:]))
        if path.name == "journal.sqlite":
            read_journal(root)
        else:
            jobs = [job for job in done.names.values() if path.suffix == ".sqlite" or job in path.parts]
            (read_coordinator if root.parent.name == "coordinator" else read_party)(root, jobs)
    finally:
        for beside in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + beside).unlink(missing_ok=True)
        path.write_bytes(before)


def patched(before: bytes, changes: bytes) -> bytes:
    """Bytes with others in place of some, each behind three bytes that say where; the last may cut the end off."""
    after = bytearray(before)
    for at in range(0, len(changes) - 3, 4):
        where = int.from_bytes(changes[at : at + 3], "little")
        if after:
            after[where % len(after)] = changes[at + 3]
    if len(changes) % 4 == 3:
        del after[int.from_bytes(changes[-3:], "little") % (len(after) + 1) :]
    return bytes(after)


def read_coordinator(root: Path, names: list[str]) -> None:
    with suppress(WoodlotError), closing(JobStore(root)) as store:
        plain = [store.unfinished, store.ended_untold, store.parties, store.presence, store.models]
        for read in [*plain, lambda: store.latest(9), lambda: store.of_user("alice", 9)]:
            with suppress(WoodlotError):
                read()
        for name in names:
            for about in (
                store.job, store.receipt, lambda name: store.find_model(name, "alice"), store.is_linear, store.forest,
                store.linear, store.keys, store.model_part, store.stored_trees, store.answers, store.rebuilding,
            ):  # fmt: skip
                with suppress(WoodlotError):
                    about(name)


def read_party(root: Path, names: list[str]) -> None:
    table = LoadedTable("customers", "id", None, "0" * 64, None, ())
    with suppress(WoodlotError), closing(PartyStore(root, root.parent.name, 5)) as store:
        for name in names:
            for about in (
                lambda name: store.model(name, "0" * 64), lambda name: store.linear(name, "0" * 64), store.check_model,
                lambda name: store.alignment(name, ("bank", "shop"), table),
            ):  # fmt: skip
                with suppress(WoodlotError):
                    about(name)


def read_journal(root: Path) -> None:
    with suppress(WoodlotError), closing(Journal.read(root / "journal.sqlite")) as journal:
        with suppress(WoodlotError):
            journal.verify()
        for name in journal.jobs():
            job = journal.job(name)
            for read in (job.verify, job.disclosures, lambda job=job: job.ended, lambda job=job: job.head):
                with suppress(WoodlotError):
                    read()
            for record in job.records():
                if record.kept:
                    with suppress(WoodlotError):
                        job.body(record)
    with suppress(WoodlotError), Journal(root / "journal.sqlite", durable=False):
        pass


# --- pages ---


class Watcher:
    """Explains and watches, in name only."""

    explained: dict[str, Any] = {}  # noqa: RUF012 - it stays empty
    watched: dict[str, Any] = {}  # noqa: RUF012 - so does this

    def __getattr__(self, name: str) -> Any:
        return lambda *asked: "0" * 32


class Forgetter:
    """Has rows forgotten, in name only."""

    def known(self, model: str) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *asked: None


class Doer:
    """Does what a form asks for, in name only."""

    user = "alice"
    watching = Watcher()
    forgetting = Forgetter()
    contributions: dict[str, Any] = {}  # noqa: RUF012 - it stays empty
    evaluations: dict[str, Any] = {}  # noqa: RUF012 - so does this

    def __getattr__(self, name: str) -> Any:
        return lambda *asked: "0" * 32


@cache
def pages() -> tuple[Guard, asyncio.AbstractEventLoop, str]:
    world = worked().world
    made = Pages(
        CoordinatorView(world.coordinator_config()),
        [PartyView(world.party_config(party)) for party in ("bank", "shop")],
        Doer(),  # type: ignore[arg-type]
    )
    guard = Guard(made.app, (HOST,), users=("alice",))
    made.app.state.guard = guard
    return guard, asyncio.new_event_loop(), guard.csrf


def requests(data: bytes) -> None:
    """A question of a browser: a line with method, path and query, then a form; ``$forest`` and the like are jobs."""
    line, _, body = data.partition(b"\n")
    text = line.decode("latin-1")
    for name, job in worked().names.items():
        text, body = text.replace(f"${name}", job), body.replace(f"${name}".encode(), job.encode())
    if not text.isascii() or any(letter <= " " and letter != " " for letter in text):
        return  # which no server takes
    method, _, target = text.partition(" ")
    path, _, query = target.partition("?")
    guard, loop, csrf = pages()
    given = {
        "host": HOST, "accept": "text/html", "origin": f"http://{HOST}", CSRF_HEADER: csrf,
        "content-type": "application/x-www-form-urlencoded", "content-length": str(len(body)),
    }  # fmt: skip
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000), "woodlot_user": "alice",
    }  # fmt: skip
    events = iter([{"type": "http.request", "body": body, "more_body": False}])
    seen = SimpleNamespace(status=0)

    async def receive() -> Any:
        return next(events, {"type": "http.disconnect"})

    async def send(event: Any) -> None:
        if event["type"] == "http.response.start":
            seen.status = event["status"]

    loop.run_until_complete(asyncio.wait_for(guard(scope, receive, send), 60))
    assert seen.status, "no answer"
