"""What a service tells in `/health` and `/metrics`: numbers of jobs and messages, and whether it can do its work.

No label has the name of a user or a party, an id of a row or a job, a column, or a value. The labels are: kinds and
outcomes of jobs, types of messages, the party's own table names, and the version.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING

from woodlot.exceptions import IdentityError, WoodlotError
from woodlot.identity.certificates import check_fresh
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.kind import known
from woodlot.jobs.tally import JobCounts
from woodlot.privacy.accounting import UNITS
from woodlot.privacy.budget import BudgetRecord
from woodlot.runtime.traffic import TrafficCounts
from woodlot.service.monitor import Health
from woodlot.service.open_metrics import MetricFamily, Sample

if TYPE_CHECKING:
    from woodlot.service.agent import Agent
    from woodlot.service.config import PartyConfig
    from woodlot.service.coordinator import Coordinator

_STARTED = time.time()


# --- health ---


def coordinator_health(coordinator: Coordinator) -> Health:
    """How the coordinator is."""
    problems = _problems(coordinator.identity, coordinator.trust)
    if not coordinator.is_listening:
        problems.append("it does not listen for parties and users yet, or is ending")
    problems += _trouble("the record of jobs cannot be read", coordinator.store.presence)
    facts = _identity_facts("coordinator", coordinator.identity, coordinator.trust)
    return Health(facts | {"parties_connected": len(coordinator.present())}, problems)


def agent_health(agent: Agent) -> Health:
    """How a party, a helper or a key service is."""
    problems = _problems(agent.identity, agent.trust)
    if not agent.connected:
        why = agent.trouble
        problems.append(f"not connected to the coordinator{f': {why}' if why else ''}")
    problems += _trouble("the journal cannot be read", lambda: agent.consult(lambda db: None))
    facts = _identity_facts(agent.role, agent.identity, agent.trust)
    return Health(facts | {"connected": agent.connected}, problems)


def _identity_facts(role: str, identity: Identity, trust: Trust) -> dict[str, object]:
    return {"role": role, "name": identity.name, "fresh_revocation_list": not _list_problems(trust)}


def _problems(identity: Identity, trust: Trust) -> list[str]:
    found = _list_problems(trust)
    if datetime.now(UTC) > identity.expires:
        found.append(f"its certificate was valid until {identity.expires:%Y-%m-%d %H:%M} UTC; have it signed again")
    return found


def _list_problems(trust: Trust) -> list[str]:
    try:
        check_fresh(trust.list_in_use())
    except IdentityError as error:
        return [f"it takes no orders: {error}"]
    return []


def _trouble(what: str, attempt: Callable[[], object]) -> list[str]:
    try:
        attempt()
    except WoodlotError as error:
        return [f"{what}: {error}"]
    return []


# --- metrics ---


def coordinator_metrics(coordinator: Coordinator) -> list[MetricFamily]:
    """All metrics of the coordinator."""
    states = Counter((live.facts.kind, live.facts.state) for live in coordinator.live.copy().values())
    usual = {(kind, state): 0 for kind in known() for state in ("queued", "running")}
    return [
        *_common("coordinator", coordinator.identity, coordinator.trust, coordinator_health(coordinator)),
        MetricFamily(
            name="woodlot_parties",
            type="gauge",
            help="Parties, helpers and key services: connected now, and known from earlier connections.",
            samples=[
                ({"state": "connected"}, len(coordinator.present())),
                ({"state": "known"}, len(coordinator.joined())),
            ],
        ),
        *_jobs(coordinator.tally.counts(), usual | states, ("done", "failed", "cancelled", "stopped")),
        *_traffic(coordinator.traffic.counts()),
        *_process(),
    ]


def agent_metrics(agent: Agent) -> list[MetricFamily]:
    """All metrics of a party, a helper or a key service."""
    counts = agent.tally.counts()
    states = Counter((kind, "running") for kind in counts.open.values())
    return [
        *_common(agent.role, agent.identity, agent.trust, agent_health(agent)),
        MetricFamily(
            name="woodlot_connected",
            type="gauge",
            help="Whether the coordinator has let this service in.",
            samples=[({}, float(agent.connected))],
        ),
        *_jobs(counts, {(kind, "running"): 0 for kind in known()} | states, ("ended",)),
        *_traffic(agent.traffic.counts()),
        *agent.own_metrics(),
        *_process(),
    ]


def privacy_metrics(settings: PartyConfig, party: str, db: Connection) -> list[MetricFamily]:
    """What a party has spent of its privacy, by table and account; jobs that no epsilon covers stand beside it."""
    record = BudgetRecord(db)
    tables = dict.fromkeys([*settings.tables, *(table for client, table in record.accounts() if client == party)])
    spent: list[Sample] = []
    allowed: list[Sample] = []
    uncovered: list[Sample] = []
    for table in tables:
        uses = record.uses(party, table)
        for unit in UNITS:
            labels = {"table": table, "account": unit}
            spent.append((labels, record.spent(party, table, unit, settings.privacy.delta)))
            uncovered.append((labels, sum(unit in use.units for use in uses)))
            if (budget := settings.privacy.budgets.of(unit)) is not None:
                allowed.append((labels, budget.epsilon))
    return [
        MetricFamily(
            name="woodlot_privacy_epsilon_spent",
            type="gauge",
            help="Epsilon of the charged releases. It says nothing about jobs without differential privacy.",
            samples=spent,
        ),
        MetricFamily(
            name="woodlot_privacy_epsilon_allowed",
            type="gauge",
            help="Epsilon that may be spent in all. Without a sample there is no limit.",
            samples=allowed,
        ),
        MetricFamily(
            name="woodlot_privacy_uncovered_jobs",
            type="gauge",
            help="Jobs that have used the table without differential privacy: no epsilon bounds what they told.",
            samples=uncovered,
        ),
    ]


def _common(role: str, identity: Identity, trust: Trust, health: Health) -> Iterable[MetricFamily]:
    revocations = trust.list_in_use()
    yield MetricFamily(
        name="woodlot_build",
        type="info",
        help="Version of Woodlot, and the role of this service.",
        samples=[({"version": _version(), "role": role}, 1)],
    )
    yield MetricFamily(
        name="woodlot_healthy",
        type="gauge",
        help="Whether /health answers with 200.",
        samples=[({}, float(not health.problems))],
    )
    yield MetricFamily(
        name="woodlot_certificate_expires_timestamp_seconds",
        type="gauge",
        unit="seconds",
        help="Until when the certificate of this service is valid.",
        samples=[({}, identity.expires.timestamp())],
    )
    yield MetricFamily(
        name="woodlot_revocation_list_expires_timestamp_seconds",
        type="gauge",
        unit="seconds",
        help="Until when the list of revoked certificates is good. Without a sample there is no list.",
        samples=[] if revocations is None else [({}, revocations.expires.timestamp())],
    )


def _version() -> str:
    try:
        return version("woodlot")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def _jobs(
    counts: JobCounts, states: Mapping[tuple[str, str], int], outcomes: tuple[str, ...]
) -> Iterable[MetricFamily]:
    ended = {(kind, outcome): 0 for kind in known() for outcome in outcomes} | counts.ended
    yield MetricFamily(
        name="woodlot_jobs",
        type="gauge",
        help="Jobs that have not ended, by kind and state.",
        samples=[({"kind": kind, "state": state}, n) for (kind, state), n in states.items()],
    )
    yield MetricFamily(
        name="woodlot_jobs_taken",
        type="counter",
        help="Jobs that were taken since the start of the service.",
        samples=[({"kind": kind}, n) for kind, n in (dict.fromkeys(known(), 0) | counts.taken).items()],
    )
    yield MetricFamily(
        name="woodlot_jobs_ended",
        type="counter",
        help="Jobs that have ended since the start of the service. Parties are not told the outcome.",
        samples=[({"kind": kind, "outcome": outcome}, n) for (kind, outcome), n in ended.items()],
    )


def _traffic(counts: TrafficCounts) -> Iterable[MetricFamily]:
    yield MetricFamily(
        name="woodlot_messages",
        type="counter",
        help="Messages received (in) and handed to a connection (out), by type.",
        samples=[({"direction": way, "type": kind}, n) for (way, kind), n in counts.messages.items()],
    )
    yield MetricFamily(
        name="woodlot_message_bytes",
        type="counter",
        unit="bytes",
        help="Their bytes, before compression and encryption.",
        samples=[({"direction": way, "type": kind}, n) for (way, kind), n in counts.n_bytes.items()],
    )
    yield MetricFamily(
        name="woodlot_refused_messages",
        type="counter",
        help="Messages that were refused here, or by the one they were sent to (there), by type.",
        samples=[({"by": who, "type": kind}, n) for (who, kind), n in counts.refused.items()],
    )
    since = counts.seconds_since_contact
    yield MetricFamily(
        name="woodlot_last_contact_seconds",
        type="gauge",
        unit="seconds",
        help="Seconds since the other side was last heard. Without a sample it never was.",
        samples=[] if since is None else [({}, since)],
    )


def _process() -> Iterable[MetricFamily]:
    """The usual metrics of a process, under their usual names."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield MetricFamily(
        name="process_cpu_seconds",
        type="counter",
        unit="seconds",
        help="CPU time of this process.",
        samples=[({}, usage.ru_utime + usage.ru_stime)],
    )
    yield MetricFamily(
        name="process_start_time_seconds",
        type="gauge",
        unit="seconds",
        help="When this process has started, in seconds since 1970.",
        samples=[({}, _STARTED)],
    )
    if sys.platform == "linux":  # elsewhere the system tells the most there ever was, not what there is
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        yield MetricFamily(
            name="process_resident_memory_bytes",
            type="gauge",
            unit="bytes",
            help="Memory of this process.",
            samples=[({}, pages * os.sysconf("SC_PAGE_SIZE"))],
        )
