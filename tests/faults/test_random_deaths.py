"""Twenty kill -9, drawn at random over roles, protocols and points: what comes of a job is the same, bit for bit.

A trial is a job in which one process dies once. Where it dies is a number of replies that its journal has: it stands
still there and says so (`halts`), is killed, and is started again. The seed decides all trials. Another one is given in
the environment::

    WOODLOT_DEATHS_SEED=7 pytest -m "slow or not slow" -p no:xdist tests/faults/test_random_deaths.py
"""

from __future__ import annotations

import copy
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hidden_bench import HIDDEN_PLAN
from hidden_forests import LABEL, hidden_companies, open_forest, stored_forest
from hospitals import HOSPITALS, hospitals, patients, rows_of
from hospitals import LABEL as ILL
from kill_stage import Stage, kill_through
from processes import processes
from row_jobs import fingerprint
from small_jobs import COORDINATOR, PLAN, user_of
from tally import Tally
from vertical_jobs import SHARES
from world import POLICY, World

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.connected.row_parts import read_report
from woodlot.federation import Labels
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.orders import Order, RevokeOrder
from woodlot.metrics.resampling import Resampling
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.service.encrypted import encrypted_order, predict_encrypted

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))

from hidden_cases import assert_same

TRIALS = 20
SEED = int(os.environ.get("WOODLOT_DEATHS_SEED", "20"))
THREE = ("bank", "shop", "club")
LABELS = Labels("bank", LABEL, None)
PROVED = "resumed by itself; same result bit for bit"
LIMITS = {
    "weak_keys": True, "labels_to_coordinator": True, "min_cell": 0, "min_evaluation_rows": 1,
    "evaluations_per_day": "unlimited", "round_counts": 1, "explains": "values", "explanations_per_day": "unlimited",
    "protocols": [
        "align", "train", "predict", "revoke", "train-linear", "train-revocable", "keys", "predict-encrypted",
        "evaluate", "explain",
    ],
}  # fmt: skip
OPEN = replace(PLAN, out_of_bag=None, n_estimators=3)
HIDDEN = replace(HIDDEN_PLAN, n_estimators=2, max_depth=2)
LINE = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=2,
    tol=1e-6, protection="hidden",
)  # fmt: skip
ROW = {"bank.age": [0.1], "bank.income": [0.2], "shop.visits": [0.3], "shop.basket": [0.4], "club.years": [0.5],
       "club.dues": [0.6]}  # fmt: skip
LED = {"the coordinator": COORDINATOR, "the leader": "bank", "a party": "club"}
HELD = {"the coordinator": COORDINATOR, "a party": "shop", "the helper": "helper", "the key service": "keys"}
SUMMED = {"the coordinator": COORDINATOR, "a party": "bern"}
ROLES = {
    "led forest": LED,
    "hidden forest": LED | {"the second server": "shop"},
    "hidden forest, helper deals": LED | {"the helper": "helper"},
    "hidden leaving": LED,
    "hidden linear model": LED,
    "revocable forest, shares": HELD,
    "encrypted request, shares": HELD,
    "evaluation": LED,
    "explanation": LED,
    "secure sums, quorum of 3": SUMMED,
}
"""By protocol: who takes part, by role."""


Led = Stage[ConnectedFederation]


class Trial(NamedTuple):
    """Who dies in which protocol, and how far through the replies of its journal, from 0 to 1."""

    protocol: str
    role: str
    way: float


@dataclass(frozen=True)
class Killed:
    """A protocol that somebody dies in.

    Attributes
    ----------
    name : str
        For the table.
    stage : Stage
        Where it runs.
    order : callable
        Makes an order; all of them must come to the same outcome.
    outcome : callable
        From a job that is done to what must be the same.

    """

    name: str
    stage: Stage[Any]
    order: Callable[[], Order]
    outcome: Callable[[str], Any]

    @cached_property
    def first(self) -> str:
        """A job of it in which nobody dies."""
        return self.stage.run(self.order())[0]

    @cached_property
    def expected(self) -> Any:
        """What comes of it."""
        return self.outcome(self.first)


def drawn(seed: int) -> list[Trial]:
    """Twenty trials: protocols come in a drawn order, again and again; who dies is a role that has died least so far.

    Nobody dies twice in one protocol, and roles that are in few protocols are not left out.
    """
    rng, died = random.Random(seed), Counter[str]()
    names, left = rng.sample(list(ROLES), len(ROLES)), {name: list(own) for name, own in ROLES.items()}
    trials = []
    for k in range(TRIALS):
        name = names[k % len(names)]
        role = min(rng.sample(left[name], len(left[name])), key=lambda role: died[role])
        left[name].remove(role)
        died[role] += 1
        trials.append(Trial(name, role, rng.random()))
    return trials


# --- parties with columns ---


class Columns:
    """The protocols over columns, at three companies, a helper and a key service."""

    def __init__(
        self, stage: Stage[ConnectedFederation], dealt: ConnectedFederation, shown: ConnectedFederation
    ) -> None:
        self._stage, self._user, self._dealt, self._shown = stage, stage.user, dealt, shown
        self._root = stage.running.world.root
        self._keys: dict[str, bytes] = {}
        self._aligned = shown_rows(stage.user)

    def protocols(self) -> list[Killed]:
        made = partial(Killed, stage=self._stage)
        return [
            made("led forest", order=self._stage.train_order, outcome=self._stage.outcome_of),
            made("hidden forest", order=self._hidden, outcome=self._right),
            made("hidden forest, helper deals", order=self._by_helper, outcome=self._right_then),
            made("hidden leaving", order=self._leaving, outcome=self._left),
            made("hidden linear model", order=self._line, outcome=self._weights),
            made("revocable forest, shares", order=self._shared, outcome=self._answers_of),
            made("encrypted request, shares", order=self._request, outcome=self._told),
            made("evaluation", order=self._rate, outcome=self._report),
            made("explanation", order=self._explain, outcome=self._explanation),
        ]

    def _hidden(self) -> Order:
        return self._user.train_order(HIDDEN, LABELS, {})

    def _by_helper(self) -> Order:
        return self._dealt.train_order(HIDDEN, LABELS, {})

    def _right(self, job: str, dealer: str = COORDINATOR) -> bool:
        """Whether it is the forest of an open training with the dealer's draws: these differ from job to job."""
        expected = open_forest(self._root, job, HIDDEN, hidden_companies(), dealer=dealer)
        assert_same(stored_forest(self._root, job), expected)
        return True

    def _right_then(self, job: str) -> bool:
        return self._right(job, "helper")

    def _leaving(self) -> Order:
        trained, _ = self._stage.run(self._hidden())
        order = self._user.revoke_order(self._user.client.find_model(trained), "shop", None, LABELS)
        assert isinstance(order, RevokeOrder)
        self._keys[order.job] = trained.encode()
        return order

    def _left(self, job: str) -> str:
        tables = {party: held for party, held in hidden_companies().items() if party != "shop"}
        trained = self._keys[job].decode()
        assert_same(stored_forest(self._root, job), open_forest(self._root, job, HIDDEN, tables, drawn_by=trained))
        return self._user.client.receipt(job).statement.party

    def _line(self) -> Order:
        return self._user.train_linear_order(LINE, LABELS, {})

    def _weights(self, job: str) -> dict[str, bytes]:
        return parts_of(self._root, job)

    def _shared(self) -> Order:
        plan = wl.RevocableForestClassifier(n_estimators=2, max_depth=2, random_state=2).make_plan()
        return self._shown.train_revocable_order(plan, LABELS, {"params": {}}, SHARES)

    def _answers_of(self, job: str) -> bytes:
        return predict_encrypted(self._shown.client, job, ROW).tobytes()

    def _request(self) -> Order:
        shared = next(one for one in self.made if one.name == "revocable forest, shares").first
        return encrypted_order(self._shown.client, shared, ROW, scheme="shares")

    def _told(self, job: str) -> bytes:
        return self._shown.client.predictions(job).outputs.tobytes()

    def _rate(self) -> Order:
        order, self._keys[order.job] = self._aligned.evaluate_order(
            self._stage.undisturbed, f"bank.{LABEL}", Resampling(20)
        )
        return order

    def _report(self, job: str) -> Any:
        return read_report(self._user.client.job(job), self._keys[job])

    def _explain(self) -> Order:
        order, self._keys[order.job] = self._aligned.explain_order(self._stage.undisturbed, "soft")
        return order

    def _explanation(self, job: str) -> Any:
        return self._user.read_explanation(self._user.client.job(job), self._keys[job])[0]


def shown_rows(user: ConnectedFederation) -> ConnectedFederation:
    """The same user with rows that were aligned once: numbers of rows are compared in one order."""
    aligned = copy.copy(user)
    aligned.align()
    return aligned


def parts_of(root: Path, job: str) -> dict[str, Any]:
    """The files of every party's part of a model, and the fingerprint of the leader's."""
    found: dict[str, Any] = {
        f"{party} {path.name}": path.read_bytes()
        for party in THREE
        for path in sorted((root / party / "state" / "models" / job).iterdir())
    }
    led = JobStore(root / "bank" / "state" / "led")
    try:
        found["leader"] = led.model_facts(job).forest
    finally:
        led.close()
    return found


@contextmanager
def companies(root: Path, pool: ThreadPoolExecutor) -> Iterator[list[Killed]]:
    world = World(root, hidden_companies())
    for own in world.settings.values():
        own["policy"] = POLICY | LIMITS
    world.key_members({"train": ["alice"], "predict": ["alice"], "weak_keys": True})
    with processes(world) as running, ExitStack() as stack:
        running.wait_connected()
        members = {"parties": THREE, "helper": "helper", "key_service": "keys"}
        user, dealt, shown = (
            stack.enter_context(user_of(world, **members, **options))
            for options in ({"lead": None}, {"lead": None, "dealer": "helper"}, {"lead": "coordinator"})
        )
        stage = Stage(running, user, pool, lambda one: one.train_order(OPEN, LABELS, {}), partial(parts_of, root))
        columns = Columns(stage, dealt, shown)
        columns.made = columns.protocols()
        yield columns.made


# --- parties with rows ---


@contextmanager
def clinics(root: Path, pool: ThreadPoolExecutor) -> Iterator[list[Killed]]:
    """Four hospitals, of which three are enough; one that dies comes back before it is spared."""
    names = (*HOSPITALS, "dora")
    world = hospitals(root, {name: patients(k + 1) for k, name in enumerate(names)})
    with processes(world) as running, rows_of(world) as user:
        running.wait_connected()
        forest = wl.HorizontalForestClassifier(2, max_depth=2, random_state=0, quorum=3, spare_after=600.0)

        def order(user: Any) -> Order:
            made: Order = user.train_rows_order(forest.make_plan(), ILL, {})
            return made

        stage = Stage(running, user, pool, order, partial(fingerprint, root))
        yield [Killed("secure sums, quorum of 3", stage, stage.train_order, stage.outcome_of)]


# --- the trials ---


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_all_protocols_and_roles_are_drawn(seed: int) -> None:
    trials = drawn(seed)
    assert Counter(trial.protocol for trial in trials) == dict.fromkeys(ROLES, 2)
    assert {trial.role for trial in trials} == {role for own in ROLES.values() for role in own}
    assert len({(trial.protocol, trial.role) for trial in trials}) == TRIALS
    assert drawn(seed) == trials
    assert drawn(seed + 1) != trials


@pytest.mark.slow
def test_twenty_deaths_change_nothing(tmp_path: Path, tally: Tally) -> None:
    lines = [f"seed {SEED}", "| protocol | role | dies at reply | of |", "|---|---|---|---|"]
    with (
        ThreadPoolExecutor(1) as pool,
        companies(tmp_path / "columns", pool) as columns,
        clinics(tmp_path / "rows", pool) as rows,
    ):
        protocols = {one.name: one for one in (*columns, *rows)}
        assert list(protocols) == list(ROLES)
        for trial in drawn(SEED):
            one, victim = protocols[trial.protocol], ROLES[trial.protocol][trial.role]
            expected, total = one.expected, one.stage.replies(victim, one.first)
            place = int(trial.way * total)
            lines.append(f"| {trial.protocol} | {trial.role} | {place} | {total} |")
            with tally.checking(PROVED, trial.protocol) as noted:
                order = one.order()
                assert kill_through(one.stage, order, victim, {place}) == {place}, "\n".join(lines)
                noted[f"kill -9 of {trial.role}"] += 1
                assert one.outcome(order.job) == expected, "\n".join(lines)
    print("\n".join(lines))
