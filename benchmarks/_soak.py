"""Nine processes under mixed load for long: nothing may be lost, and no process may grow. Run it with `make soak`.

    python benchmarks/_soak.py [--minutes 30] [--rate 40] [--rows 2000]

Online scorings are opened, asked and closed; meanwhile jobs of several kinds are ordered, one after the other: rows
aligned, forests grown, predicted and scored, an order refused by a party, a training cancelled; and users come and go.
The memory of every process is looked at every few seconds. The first third of the time is for caches to fill; from then
on a process is flat if the line through its samples rises by less than `FLAT_MB` until the end. Prints Markdown, keeps
it as docs/results/soak.md if it took 30 minutes or more, adds what was held to build/reliability/load.jsonl, and exits
1 if anything was lost or has grown.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout

import numpy as np
from numpy.typing import NDArray

import woodlot as wl
from _load_stage import (
    LABEL,
    PARTIES,
    TABLE,
    Held,
    Page,
    answers_by_id,
    memory_of,
    record,
    stage,
    steady_requests,
    train_order,
)
from woodlot.connected import ConnectedFederation
from woodlot.service.client import JobFailed
from woodlot.service.local import LocalFederation

FLAT_MB = 8.0
"""How much the memory of a process may rise in the second and last third, in megabytes."""
WHOLE_MINUTES = 30.0
SAMPLE_SECONDS = 5.0
SCORING_SECONDS = 20.0
"""How long a scoring is open; then the next one is."""
TRAIN_EVERY = 10
"""One of so many turns grows a forest."""


class Jobs:
    """Jobs of several kinds, turn after turn; each must end as it should."""

    def __init__(self, services: LocalFederation, user: ConnectedFederation, model: str) -> None:
        self.services, self.user, self.model = services, user, model
        self.ended: Counter[str] = Counter()
        self.lost = 0
        self._forest = ""

    def turn(self, number: int) -> None:
        """One job of each kind, and a forest now and then."""
        kinds: dict[str, Callable[[], bool]] = {
            "align": self._align, "predict": self._predict, "score": self._score, "refused": self._refused,
        }  # fmt: skip
        if number % TRAIN_EVERY == 0:
            kinds |= {"train": self._train, "cancelled": self._cancelled}
        for kind, do in kinds.items():
            try:
                is_right = do()
            except Exception:  # noqa: BLE001 - the soak goes on, and tells in the end
                traceback.print_exc()
                is_right = False
            self.ended[kind] += 1
            self.lost += not is_right

    def _connect(self) -> ConnectedFederation:
        return wl.connect(self.services.address, self.services.identity, tables=TABLE, parties=PARTIES)

    def _align(self) -> bool:
        with self._connect() as user:
            return user.align().state == "done"

    def _predict(self) -> bool:
        client = self.user.client
        job = client.finish(client.submit(self.user.predict_order(self.model)).job)
        return len(client.predictions(job.job).outputs) == job.n_rows

    def _score(self) -> bool:
        order = self.user.predict_order(self.model, f"{PARTIES[0]}.{LABEL}", give_answers=False)
        return self.user.client.finish(self.user.client.submit(order).job).score is not None

    def _refused(self) -> bool:
        with wl.connect(self.services.address, self.services.identity, tables="nowhere", parties=PARTIES[:2]) as user:
            try:
                user.align()
            except JobFailed:
                return True
        return False

    def _train(self) -> bool:
        client = self.user.client
        job = client.finish(client.submit(train_order(self.user, 1)).job).job
        forest = client.find_model(job).forest
        before, self._forest = self._forest, forest
        return before in ("", forest)

    def _cancelled(self) -> bool:
        client = self.user.client
        job = client.submit(train_order(self.user, 2, n_trees=200)).job
        client.cancel(job)
        return client.follow(job).state in ("cancelled", "done")


class Memory:
    """Samples of every process' memory."""

    def __init__(self, services: LocalFederation) -> None:
        self._services = services
        self._began = time.monotonic()
        self.times: list[float] = []
        self.samples: list[list[float]] = []
        self.names = tuple(services.pids)

    def sample(self) -> None:
        """Look once."""
        self.times.append(time.monotonic() - self._began)
        found = memory_of(self._services)
        self.samples.append([found[name] for name in self.names])

    def rises(self) -> dict[str, tuple[float, float, float, float]]:
        """Megabytes at the start, after a third, and at the end; and the rise of the line from a third to the end."""
        times, samples = np.array(self.times), np.array(self.samples)
        late = times >= times[-1] / 3
        lines: NDArray[np.float64] = np.polyfit(times[late], samples[late], 1)[0]
        length = times[-1] - times[late][0]
        third = samples[late][0]
        return {
            name: (samples[0, k], third[k], samples[-1, k], float(lines[k] * length))
            for k, name in enumerate(self.names)
        }


def soak(minutes: float, rate: float, n_rows: int) -> bool:
    """Returns whether nothing was lost and nothing has grown."""
    with stage(n_rows) as (services, user), ExitStack() as stack:
        user.align()
        model = user.client.finish(user.client.submit(train_order(user, 1, 50)).job).job
        wanted = answers_by_id(services, user, model)
        until = time.monotonic() + 60 * minutes
        memory, jobs, held = Memory(services), Jobs(services, user, model), Held()
        scorings = 0

        def over() -> bool:
            return time.monotonic() >= until

        def score() -> None:
            nonlocal scorings
            with wl.connect(services.address, services.identity, tables=TABLE, parties=PARTIES) as mine:
                while not over():
                    with mine.scoring(model) as scoring:
                        span = min(SCORING_SECONDS, max(1.0, until - time.monotonic()))
                        found = steady_requests([scoring], wanted, rate=rate, seconds=span, rows=3, seed=scorings)
                    scorings += 1
                    held.latencies += found.latencies
                    held.wrong += found.wrong
                    held.failed += found.failed
                    held.seconds += found.seconds

        def order() -> None:
            turn = 0
            while not over():
                jobs.turn(turn)
                turn += 1
                time.sleep(1.0)

        threads = [threading.Thread(target=work) for work in (score, order)]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        while not over():
            memory.sample()
            time.sleep(SAMPLE_SECONDS)
        for thread in threads:
            thread.join()
        return report(minutes, memory, jobs, held, scorings)


def report(minutes: float, memory: Memory, jobs: Jobs, held: Held, scorings: int) -> bool:
    """Print what was held, and note it."""
    print(f"# Soak of {minutes:g} minutes\n")
    print(
        f"Made by `make soak`: coordinator, {len(PARTIES)} parties and users on one machine ({os.cpu_count()} cores).\n"
    )
    print(f"- {held.asked} prediction requests in {scorings} scorings, {held.per_second:.0f} per second, p50 "
          f"{held.percentile(50):.0f} ms, p99 {held.percentile(99):.0f} ms; {held.lost} lost or wrong.")  # fmt: skip
    counted = ", ".join(f"{count} x {kind}" for kind, count in jobs.ended.items())
    print(f"- {jobs.ended.total()} jobs ({counted}); {jobs.lost} did not end as they should.\n")
    for words, count in held.failed.items():
        print(f"{count} x {words}", file=sys.stderr)
    print("| process | MB at the start | after a third | at the end | rise of the line since |\n|---|---|---|---|---|")
    rises = memory.rises()
    for name, (first, third, last, rise) in rises.items():
        print(f"| {name} | {first:.0f} | {third:.0f} | {last:.0f} | {rise:+.1f} |")
    grown = [name for name, (*_, rise) in rises.items() if rise > FLAT_MB]
    verdict = f"Grown by more than {FLAT_MB:g} MB: {', '.join(grown)}" if grown else "No process has grown"
    print(f"\n{verdict}; {held.lost + jobs.lost} lost.")
    worst = max(rise for *_, rise in rises.values())
    record(f"soak of {minutes:g} minutes: prediction requests at {held.per_second:.0f} per second", held.asked,
           "all are answered, as by an ordinary prediction, bit for bit", held.lost)  # fmt: skip
    record(f"soak of {minutes:g} minutes: jobs of {len(jobs.ended)} kinds beside them", jobs.ended.total(),
           "all end as they should", jobs.lost)  # fmt: skip
    record(f"soak of {minutes:g} minutes: samples of the memory of 9 processes", len(memory.samples),
           f"the largest rise is {worst:.1f} MB in two thirds; {FLAT_MB:g} are allowed", len(grown))  # fmt: skip
    return not grown and not held.lost and not jobs.lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=WHOLE_MINUTES)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--rows", type=int, default=2_000)
    arguments = parser.parse_args()
    with redirect_stdout(Page()) as page:
        is_held = soak(arguments.minutes, arguments.rate, arguments.rows)
    if arguments.minutes >= WHOLE_MINUTES:
        page.keep("soak.md")
    sys.exit(not is_held)


if __name__ == "__main__":
    main()
