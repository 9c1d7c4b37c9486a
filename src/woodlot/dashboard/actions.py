"""What the dashboard's user may have done: orders that this user signs, as from the command line."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from woodlot.connected import ConnectedFederation, connect
from woodlot.connected.connected_estimators import revocation_order
from woodlot.connected.ordered_reports import Asked, HeldOut, ordered_report
from woodlot.dashboard.forget_pages import Forgetting
from woodlot.dashboard.watching import Watching
from woodlot.exceptions import DataError, WoodlotError
from woodlot.service.client import Client

MAX_PARTIES = 6
"""Parties whose contributions are measured: twice the predictions for each more."""

Worth = Callable[[frozenset[str]], float]


def shapley_values(parties: Sequence[str], worth: Worth) -> dict[str, float]:
    """Each party's share of what all are worth together: its mean gain over all orders of joining.

    Parameters
    ----------
    parties : sequence of str
        Who takes part.
    worth : callable
        What a set of parties is worth, such as the accuracy of a forest with these parties present.
    """
    n = len(parties)
    shares = dict.fromkeys(parties, 0.0)
    for size in range(n):
        weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
        for others in itertools.combinations(parties, size):
            before = frozenset(others)
            for party in set(parties) - before:
                shares[party] += weight * (worth(before | {party}) - worth(before))
    return shares


@dataclass
class Contribution:
    """How much each party adds to a model, as far as it has been measured."""

    state: Literal["running", "done", "failed"] = "running"
    done: int = 0
    total: int = 0
    error: str = ""
    scores: dict[frozenset[str], float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    without: dict[str, float] = field(default_factory=dict)
    full: float = math.nan

    def alone(self) -> dict[str, float]:
        """Scores where no party answers, one alone, and all together; those that were measured."""
        parties = sorted(self.shares)
        sets = {"no party": frozenset[str](), **{f"{party} alone": frozenset({party}) for party in parties}}
        sets |= {"together": frozenset(parties)} if len(parties) > 1 else {}
        return {name: self.scores[one] for name, one in sets.items() if one in self.scores}


@dataclass
class Evaluation:
    """A report that the dashboard's user has ordered; it stays in the memory of this process, as its key does."""

    label: str
    state: Literal["running", "done", "failed"] = "running"
    error: str = ""
    title: str = ""
    lines: list[tuple[str, str, str]] = field(default_factory=list)
    curves: dict[str, Any] = field(default_factory=dict)
    headings: tuple[str, ...] = ()
    clients: list[tuple[str, ...]] = field(default_factory=list)
    """Where clients have different rows, what the report tells of each."""


class Actions:
    """The dashboard's user at the coordinator.

    Parameters
    ----------
    address : str
        ``host:port`` of the coordinator.
    identity : Path
        Folder of the user's key and certificate.
    """

    def __init__(self, address: str, identity: Path) -> None:
        self.address = address
        self.identity = identity
        self.contributions: dict[str, Contribution] = {}
        self.evaluations: dict[str, Evaluation] = {}
        self.watching = Watching(self._client)
        self.forgetting = Forgetting(self._client)
        with self._client() as client:
            self.user = client.identity.name

    def _client(self) -> Client:
        return Client(self.address, self.identity)

    def _federation(self, model: str, tables: Mapping[str, str]) -> ConnectedFederation:
        """The parties of a model. It is named by its id: if a party leads it, the others refuse an order without it."""
        with self._client() as client:
            leader = client.leader_of(model)
        return connect(self.address, self.identity, tables=tables, lead=None if leader else "coordinator")

    def cancel(self, job: str) -> None:
        """End a job."""
        with self._client() as client:
            client.cancel(job)

    def resume(self, job: str) -> None:
        """Go on with a job that stopped."""
        with self._client() as client:
            client.resume(job)

    def revoke(self, model: str, party: str, level: int, tables: Mapping[str, str], label: str) -> str:
        """Order that a party leaves a model; returns the job, whose receipt comes when it is done."""
        with self._federation(model, tables) as federation:
            facts = federation.client.find_model(model)
            order = revocation_order(federation, facts, party, level, label)
            return federation.client.submit(order).job

    def evaluate(
        self, model: str, tables: Mapping[str, str], label: str, held_out: HeldOut | None, *, allow_two: bool = False
    ) -> Evaluation:
        """Begin to have the parties with labels say how good a model is, in the background."""
        running = self.evaluations.get(model)
        if running is not None and running.state == "running":
            raise DataError("this model is being evaluated already; wait for the report")
        found = self.evaluations[model] = Evaluation(label)
        args = (model, tables, held_out, allow_two, found)
        threading.Thread(target=self._evaluate, args=args, daemon=True).start()
        return found

    def _evaluate(
        self, model: str, tables: Mapping[str, str], held_out: HeldOut | None, allow_two: bool, found: Evaluation
    ) -> None:
        try:
            with self._client() as client:
                lead: Literal["coordinator"] | None = None if client.leader_of(model) else "coordinator"
                facts = client.find_model(model)
                asked = Asked(facts, tables, found.label, held_out, lead=lead, allow_two=allow_two)
                _, report = ordered_report(client, asked, lambda federation, order: federation.run(order))
            found.title, found.lines = report.title, report.lines()
            found.curves = report.to_dict().get("curves", {})
            if report.by_client is not None:
                found.headings, found.clients = report.by_client.table()
            found.state = "done"
        except (WoodlotError, ValueError) as error:
            found.error, found.state = str(error), "failed"

    def measure(self, model: str, tables: Mapping[str, str], label: str) -> Contribution:
        """Begin to measure what each party contributes: one prediction for each set of parties, in the background."""
        running = self.contributions.get(model)
        if running is not None and running.state == "running":
            raise DataError("this is being measured already")
        if not 1 <= len(tables) <= MAX_PARTIES:
            raise DataError(f"contributions are measured for up to {MAX_PARTIES} parties, not {len(tables)}")
        federation = self._federation(model, tables)
        try:
            federation.find_labels(label, None)  # a label that is written wrongly is told at once
        except BaseException:
            federation.close()
            raise
        found = self.contributions[model] = Contribution(total=2 ** len(tables))
        threading.Thread(target=self._measure, args=(federation, model, label, found), daemon=True).start()
        return found

    def _measure(self, federation: ConnectedFederation, model: str, label: str, found: Contribution) -> None:
        parties = federation.parties
        try:
            with federation:
                federation.align()
                for size in range(len(parties) + 1):
                    for present in itertools.combinations(parties, size):
                        absent = tuple(p for p in parties if p not in present)
                        order = federation.predict_order(model, label, absent=absent, give_answers=False)
                        facts = federation.client.finish(federation.client.submit(order).job)
                        found.scores[frozenset(present)] = math.nan if facts.score is None else facts.score
                        found.done += 1
            everybody = frozenset(parties)
            found.full = found.scores[everybody]
            found.without = {p: found.scores[everybody - {p}] for p in parties}
            found.shares = shapley_values(parties, found.scores.__getitem__)
            found.state = "done"
        except WoodlotError as error:
            found.error, found.state = str(error), "failed"
