"""What nine processes hold: a coordinator and eight parties over TLS on this machine, and a user beside them.

    python benchmarks/load.py [--rows 2000] [--rate 200] [--seconds 30] [--queued 20] [--finished 1000] [--write]

Prints, and with `--write` keeps as docs/results/load.md: jobs that are queued at once against the same one at a time;
prediction requests at a steady pace, with the time from when each was due to its answer; the same rows asked by jobs,
for comparison; memory of every process; and the start of a coordinator with many finished jobs against a new one. Every
answer is compared with that of an ordinary prediction, bit for bit. Exits 1 if anything is lost. What was held is added
to build/reliability/load.jsonl.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

import woodlot as wl
from _load_stage import PARTIES, TABLE, Page, answers_by_id, memory_of, record, stage, steady_requests, train_order
from woodlot.connected import ConnectedFederation
from woodlot.dashboard.views import CoordinatorView
from woodlot.service.local import LocalFederation

WORKERS = 8
"""Threads that order prediction after prediction as jobs."""
HELD = 0.95
"""A rate is held if so much of it is answered; what is missing counts as lost."""
AT_ONCE = 0.5
"""Seconds by which a coordinator with many finished jobs may start later than a new one."""


def queued_jobs(services: LocalFederation, user: ConnectedFederation, n: int) -> int:
    """Trainings queued at once against the same one at a time; returns how many models were lost or differ."""
    client = user.client
    user.client.finish(client.submit(train_order(user, 0)).job)  # kernels are compiled
    began = time.perf_counter()
    alone = [client.finish(client.submit(train_order(user, seed)).job).job for seed in range(n)]
    middle = time.perf_counter()
    queued = [client.submit(train_order(user, seed)).job for seed in range(n)]
    longest = max(1, sum(client.job(job).state in ("queued", "running") for job in queued))
    for job in queued:
        client.finish(job)
    ended = time.perf_counter()
    forests = {model.model: (model.forest, model.n_nodes) for model in client.models()}
    lost = sum(forests[one] != forests[other] for one, other in zip(alone, queued, strict=True))
    print(f"\n## {n} trainings queued at once\n")
    print("| | seconds | ratio |\n|---|---|---|")
    print(f"| one at a time | {middle - began:.1f} | 1 |")
    print(f"| queued at once ({longest} waited or ran together) | {ended - middle:.1f} "
          f"| {(ended - middle) / (middle - began):.2f} |")  # fmt: skip
    print(f"\n{n - lost} of {n} models are the same, bit for bit.")
    record("jobs queued at once", n, "all end, with the same models as one at a time", lost)
    return lost


def predictions_as_jobs(user: ConnectedFederation, model: str, seconds: float) -> float:
    """Predictions of all rows per second, each an order of its own."""
    until, done, lock = time.perf_counter() + seconds, 0, threading.Lock()

    def work() -> None:
        nonlocal done
        while time.perf_counter() < until:
            user.client.finish(user.client.submit(user.predict_order(model)).job)
            with lock:
                done += 1

    began = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        for future in [pool.submit(work) for _ in range(WORKERS)]:
            future.result()
    return done / (time.perf_counter() - began)


def requests(services: LocalFederation, user: ConnectedFederation, arguments: argparse.Namespace) -> int:
    """Prediction requests at a steady pace; returns how many were lost."""
    user.align()
    model = user.client.finish(user.client.submit(train_order(user, 1, arguments.trees)).job).job
    wanted = answers_by_id(services, user, model)
    as_jobs = predictions_as_jobs(user, model, min(10.0, arguments.seconds))
    print(f"\n## {arguments.rate:g} prediction requests per second\n")
    asked = f"a request is {arguments.asked} customers by id"
    print(f"A forest of {arguments.trees} trees over {len(PARTIES)} parties; {asked}.\n")
    print("| | requests/s | ratio | p50 ms | p99 ms | asked | lost |\n|---|---|---|---|---|---|---|")
    print(f"| each a job, all rows | {as_jobs:.1f} | 1 | | | | |")
    lost = 0
    with user.scoring(model) as scoring:
        pace = {"rate": arguments.rate, "rows": arguments.asked}
        steady_requests([scoring], wanted, seconds=3, **pace)
        before = memory_of(services)
        for rate in (arguments.rate / 4, arguments.rate):
            held = steady_requests([scoring], wanted, **(pace | {"rate": rate}), seconds=arguments.seconds)
            late = max(0, round((HELD * rate - held.per_second) * held.seconds))
            lost += held.lost + late
            speed = f"{held.per_second:.1f} | {held.per_second / as_jobs:.1f}"
            times = f"{held.percentile(50):.0f} | {held.percentile(99):.0f}"
            print(f"| online scoring, {rate:g} per second | {speed} | {times} | {held.asked} | {held.lost} |")
            for words, count in held.failed.items():
                print(f"{count} x {words}", file=sys.stderr)
            what = f"prediction requests at {rate:g} per second for {arguments.seconds:g} s"
            proved = f"{held.per_second:.0f} per second are answered, as by an ordinary prediction, bit for bit"
            record(what, held.asked, proved, held.lost + late)
        after = memory_of(services)
    print("\n| process | MB before | MB after |\n|---|---|---|")
    for name, size in before.items():
        print(f"| {name} | {size:.0f} | {after[name]:.0f} |")
    return lost


def start_seconds(config: Path) -> float:
    """How long a coordinator takes until it listens, as the command line starts it."""
    program = [str(Path(sys.executable).with_name("woodlot")), "coordinator", str(config)]
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        process = subprocess.Popen(program, stdout=log, stderr=log)
        try:
            while True:
                log.seek(0)
                if re.search(r"listening on", log.read()):
                    return time.perf_counter() - began
                if process.poll() is not None:
                    raise RuntimeError("the coordinator does not start")
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def finished_jobs(services: LocalFederation, n: int) -> int:
    """Finish jobs until there are so many; returns how many there were too few, and one more for a slow start."""
    with wl.connect(services.address, services.identity, tables=TABLE, parties=PARTIES[:1]) as user:
        counted = len(services_jobs(services))

        def one(_: int) -> None:
            user.client.finish(user.client.submit(user.align_order()).job)

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(one, range(max(0, n - counted))))
        began = time.perf_counter()
        listed = user.client.jobs()
        client_seconds = time.perf_counter() - began
    done = sum(state == "done" for state in services_jobs(services))
    view = CoordinatorView(services.coordinator_config())
    began = time.perf_counter()
    view.jobs()
    view_seconds = time.perf_counter() - began
    view.store.close()
    print(f"\n## A coordinator with {done:,} finished jobs\n")
    print("| | finished jobs | new |\n|---|---|---|")
    services.stop()
    many = min(start_seconds(services.root / "coordinator" / "coordinator.toml") for _ in range(2))
    (services.root / "coordinator" / "state").rename(services.root / "coordinator" / "state-of-many")
    new = min(start_seconds(services.root / "coordinator" / "coordinator.toml") for _ in range(2))
    print(f"| seconds until it listens | {many:.2f} | {new:.2f} |")
    print(f"| milliseconds to list jobs, as a user ({len(listed)} shown) | {1000 * client_seconds:.0f} | |")
    print(f"| milliseconds to list jobs, in the dashboard | {1000 * view_seconds:.0f} | |")
    proved = f"a coordinator with so many listens after {many:.2f} s, a new one after {new:.2f} s"
    lost = max(0, n - done) + int(many > new + AT_ONCE)
    record("finished jobs", done, proved, lost)
    return lost


def services_jobs(services: LocalFederation) -> list[str]:
    """The states of all jobs at the coordinator."""
    view = CoordinatorView(services.coordinator_config())
    try:
        return [facts.state for facts in view.store.latest(1 << 30)]
    finally:
        view.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--trees", type=int, default=50)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--asked", type=int, default=3, help="rows in a request")
    parser.add_argument("--queued", type=int, default=20)
    parser.add_argument("--finished", type=int, default=1_000)
    parser.add_argument("--write", action="store_true", help="write docs/results/load.md")
    arguments = parser.parse_args()
    with redirect_stdout(Page()) as page:
        print("# Load\n\nMade by `python benchmarks/load.py --write`. Coordinator, 8 parties and the user share this")
        print(
            f"machine ({os.cpu_count()} cores); ratios were measured side by side. A longer load: [soak.md](soak.md)."
        )
        with stage(arguments.rows) as (services, user):
            lost = queued_jobs(services, user, arguments.queued)
            lost += requests(services, user, arguments)
            user.close()
            lost += finished_jobs(services, arguments.finished)
        print(f"\n{lost} lost." if lost else "\nNothing was lost.")
    if arguments.write:
        page.keep("load.md")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
