"""A compliance report: what one role knows of its federation in a period, as one HTML file that the role signs.

It names members, users, models and, of a party, its tables. It has no column, value, label or id of a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from cryptography import x509
from jinja2 import Environment

from woodlot.dashboard.leader_view import LeaderView
from woodlot.dashboard.learnt import Matrix, Roles, learnt, on_request
from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.views import CoordinatorView, StateView, estimator_settings, order_of
from woodlot.exceptions import DataError
from woodlot.identity.certificates import fingerprint, public_key
from woodlot.identity.receipts import MemberKey, now
from woodlot.identity.signed_page import MARK, SIGNER, SignedPage
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.kind import outcome_of
from woodlot.privacy.claims import claim_in_words
from woodlot.protocols.core.stakes import IN_WORDS, STAKES
from woodlot.runtime.audit import DisclosureRow
from woodlot.service.party import LED

DAYS = 90
"""How far a report goes back where nothing is said."""
MAX_REPORTED = 100_000
"""Jobs that a report is made from at most."""


@dataclass(frozen=True)
class Period:
    """From the first moment of a day to the last one of another, in UTC."""

    first: date
    last: date

    @classmethod
    def read(cls, first: str, last: str) -> Period:
        """Days as people write them, ``2026-11-18``; empty: the last `DAYS` days."""
        try:
            end = date.fromisoformat(last) if last else datetime.now(UTC).date()
            begin = date.fromisoformat(first) if first else end - timedelta(days=DAYS)
        except (ValueError, OverflowError):
            raise DataError(f"{first or last!r} is not a day; write it as 2026-11-18") from None
        if begin > end:
            raise DataError(f"the period begins on {begin}, after it ends on {end}")
        return cls(begin, end)

    def has(self, seconds: float) -> bool:
        """Whether a moment, in seconds since 1970, is in it."""
        return self.first <= datetime.fromtimestamp(seconds, UTC).date() <= self.last


@dataclass(frozen=True)
class ReportedJob:
    """A job of the period; a party knows less of it than the coordinator."""

    job: str
    began: float
    n_bytes: int
    problem: str
    facts: JobFacts | None = None


@dataclass(frozen=True)
class MemberLine:
    """A member with its certificate."""

    name: str
    role: str
    key: str
    serial: str
    expires: datetime


def report_of_coordinator(view: CoordinatorView, period: Period, templates: Environment) -> SignedPage:
    """The coordinator's report, signed by it.

    Parameters
    ----------
    view : CoordinatorView
        What it knows.
    period : Period
        Which jobs.
    templates : Environment
        Where the page's template is.
    """
    facts = [job for job in view.store.latest(MAX_REPORTED) if period.has(job.created)]
    jobs = [
        ReportedJob(job.job, job.created, sum(job.bytes_by_party.values()), view.check(job.job), job) for job in facts
    ]
    groups: dict[str, list[JobFacts]] = {}
    for job in facts:
        groups.setdefault(_setting(job), []).append(job)
    matrices = {name: _together(_matrix_parts(view, some)) for name, some in sorted(groups.items())}
    members = [_member("coordinator", "coordinator", view.identity.certificate)]
    members += [_member(name, "party", pem) for name, pem in view.store.parties().items()]
    models = [model for model in view.models() if period.has(model.created) or not model.replaced_by]
    return _signed(
        view, "coordinator", period, templates, jobs=jobs, matrices=matrices, members=members,
        models=[(m, estimator_settings(m.settings)["estimator"], claim_in_words(m.privacy)) for m in models],
        accounts=[], policy={}, held=[], **_receipts(view),
    )  # fmt: skip


def report_of_party(view: PartyView, period: Period, templates: Environment) -> SignedPage:
    """A party's report by its own record, signed by it."""
    journal = view.journal()
    jobs, told = [], list[DisclosureRow]()
    for name in [] if journal is None else journal.jobs():
        began = journal.job(name).began if journal is not None else None
        if began is not None and period.has(began):
            rows = list(view.disclosures(name))
            told += rows
            jobs.append(ReportedJob(name, began, sum(row.bytes for row in rows), view.check(name)))
    matrix = learnt(told, Roles(view.name, False, ""))
    members = [_member(view.name, "party", view.identity.certificate)]
    return _signed(
        view, view.name, period, templates, jobs=jobs[::-1], matrices={"all jobs": matrix} if told else {},
        members=members, models=[], accounts=view.accounts(), policy=view.policy_lines(), held=view.models(),
        **_receipts(LeaderView(view.config) if (view.folder / LED).is_dir() else None),
    )  # fmt: skip


def _receipts(view: CoordinatorView | None) -> dict[str, list[tuple[str, Any, str]]]:
    """By job what the receipts state that a role keeps, of parties that have left and of rows, and what is wrong."""
    if view is None:
        return {"receipts": [], "erasures": []}
    return {
        "receipts": [(job, found.statement, view.receipt(job)[1]) for job, found in view.receipts().items()],
        "erasures": [(job, found.statement, view.receipt(job)[1]) for job, found in view.erasures().items()],
    }


def _signed(
    view: CoordinatorView | PartyView, role: str, period: Period, templates: Environment, **facts: Any
) -> SignedPage:
    made = now()
    name = view.identity.name
    signed_by = SIGNER.format(name, view.identity.role)
    page = templates.get_template("report.html").render(
        mark=MARK.format(made), made=made, role=role, signer=name, signed_by=signed_by,
        federation=view.identity.federation, period=period,
        stakes=[(stake, IN_WORDS[stake]) for stake in STAKES], **facts,
    )  # fmt: skip
    return SignedPage.make(page, MemberKey(view.identity))


def _member(name: str, role: str, pem: bytes) -> MemberLine:
    certificate = x509.load_pem_x509_certificate(pem)
    key = fingerprint(public_key(certificate))
    return MemberLine(name, role, key, f"{certificate.serial_number:x}", certificate.not_valid_after_utc)


def _setting(job: JobFacts) -> str:
    led = ", a party leads" if job.leader else ", the coordinator runs it"
    return job.kind + (", hidden" if job.protection == "hidden" else "") + led


def _matrix_parts(view: CoordinatorView, jobs: Iterable[JobFacts]) -> Iterable[tuple[JobFacts, Roles, StateView, Any]]:
    for job in jobs:
        order = order_of(view, job.job)
        holder = getattr(order, "holder", "") or ""
        yield job, Roles(job.leader or holder, bool(job.leader), job.user), view, order


def _together(parts: Iterable[tuple[JobFacts, Roles, StateView, Any]]) -> Matrix:
    """One table for jobs of the same setting: their cells are added up."""
    whole: Matrix | None = None
    for job, roles, view, order in parts:
        offered = on_request(outcome_of(job.kind), getattr(order, "answers_user", True))
        one = learnt(view.disclosures(job.job), roles, (), offered)
        whole = one if whole is None else whole.added(one)
    return whole or Matrix({}, {})
