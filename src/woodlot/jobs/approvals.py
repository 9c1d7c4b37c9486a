"""Orders that wait until the owner of the data allows them: what was asked, by whom, and what was decided.

An order that the policy's ``approve`` names is recorded here when it first comes, with what it may tell; the party
answers `ApprovalPending` until somebody decides. A decision is about one signed order: it is kept under the SHA-256 of
the order's bytes and the name of the user who has signed it. Entries have random ids, so that nobody can make an order
that is listed under the id of another.

The database is used by the party's process and by whoever decides, at the same time.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from woodlot.data.decoding import from_json
from woodlot.data.whole_files import state_folder
from woodlot.exceptions import ApprovalPendingError, DataError, PolicyError
from woodlot.foundation.database import Database, Schema
from woodlot.jobs.job_disclosures import ToldLine, told_by
from woodlot.jobs.orders import Order, Part
from woodlot.jobs.policy import Policy

logger = logging.getLogger(__name__)

APPROVALS = "approvals.sqlite"
"""Name of the file in a state folder."""

MAX_WAITING = 200
"""Orders of one user that wait for approval at the same time."""

MAX_WORDS = 500
"""Characters of the reason of a refusal."""

_DAY = 86_400.0
_ID_BYTES = 4

SCHEMA = Schema(
    name="the record of approvals",
    application=b"WAPP",
    tables=(
        """
        CREATE TABLE approvals (
            id TEXT PRIMARY KEY, job TEXT NOT NULL, digest BLOB NOT NULL, user TEXT NOT NULL, state TEXT NOT NULL,
            asked REAL NOT NULL, decided REAL, reason TEXT NOT NULL, about TEXT NOT NULL,
            UNIQUE (job, digest, user)) STRICT
        """,
        "CREATE INDEX approvals_by_state ON approvals (state, user)",
    ),
    damaged=(
        "Without a copy, move away this file alone: orders that wait come again, and what was decided before is no "
        "longer listed."
    ),
    unusable="no order that needs approval is taken",
)

ApprovalState = Literal["waiting", "allowed", "used", "refused", "expired"]


class AskedJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner is shown of an order.

    Attributes
    ----------
    kind : str
        The kind of job.
    parties : tuple of str
        Who takes part.
    leader : str
        The party that runs it; empty: the coordinator.
    model, name : str
        The model that it uses, and what the user calls a new one.
    table, label, weight : str
        Of this party; empty where there is none.
    features, exclude : tuple of str
        Columns that it is to learn from, or not; both empty: all that are offered.
    named_rows : int
        How many rows the user names by their ids.
    receives : tuple of str
        Who gets predictions.
    created : float
        When the user has signed it, by the user's clock.
    tells : tuple of ToldLine
        What it may tell whom.
    roles : dict of str to str
        Who has a role besides: a second server, a dealer, a helper, a key service, or whoever scores answers.
    part : bool
        Whether it is for a part of the rows only.

    """

    kind: str
    parties: tuple[str, ...]
    leader: str
    model: str
    name: str
    table: str
    label: str
    weight: str
    features: tuple[str, ...]
    exclude: tuple[str, ...]
    named_rows: int
    receives: tuple[str, ...]
    created: float
    tells: tuple[ToldLine, ...]
    roles: dict[str, str] = {}
    part: bool = False

    def facts(self) -> dict[str, str]:
        """What a person decides by, in words; what does not apply is empty. Wherever it is shown, all of it is."""
        return {
            "with": ", ".join(self.parties),
            "run by": self.leader or "the coordinator",
            **self.roles,
            "model": self.model,
            "name": self.name,
            "table": self.table,
            "label": self.label,
            "weights": self.weight,
            "columns": ", ".join(self.features),
            "not columns": ", ".join(self.exclude),
            "rows": "a part of them" if self.part else "",
            "named rows": f"{self.named_rows:,}" if self.named_rows else "",
            "answers to": ", ".join(self.receives),
        }

    @classmethod
    def of(cls, order: Order, part: Part, user: str) -> Self:
        """What an order asks of the party that this part of it is sealed to."""

        def given(value: Any) -> tuple[Any, ...]:
            return () if isinstance(value, msgspec.UnsetType) else tuple(value)

        return cls(
            kind=order.kind, parties=order.parties, leader=order.leader or "", model=getattr(order, "model", ""),
            name=getattr(order, "name", ""), table=part.table, label=part.label or "", weight=part.weight or "",
            features=given(part.features), exclude=given(part.exclude), named_rows=len(given(part.ids)),
            receives=(*([user] if order.answers_user else []), *order.answers_to), created=order.created,
            tells=told_by(order), roles=_roles(order), part=bool(getattr(order, "subsets", ())),
        )  # fmt: skip


_ROLES = {
    "second server": "server", "dealer": "dealer", "helper": "helper", "key service": "key_service",
    "scored at": "score_at",
}  # fmt: skip


def _roles(order: Order) -> dict[str, str]:
    """Who has a role in a job besides taking part in it."""
    found = {role: getattr(order, name, None) for role, name in _ROLES.items()}
    roles = {role: who for role, who in found.items() if isinstance(who, str) and who}
    if "second server" in roles:
        roles.setdefault("dealer", "the coordinator")
    return roles


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """One order that needs approval.

    Attributes
    ----------
    id : str
        Names it at this party.
    job, user : str
        The job, and who has ordered it.
    order : str
        SHA-256 of the signed order, in hexadecimal digits.
    state : {"waiting", "allowed", "used", "refused", "expired"}
        What was decided; "used": the job has begun.
    asked, decided : float
        When it came, and when somebody has decided, in seconds since 1970.
    reason : str
        Why it was refused.
    about : AskedJob
        What it asks for.

    """

    id: str
    job: str
    user: str
    order: str
    state: ApprovalState
    asked: float
    decided: float | None
    reason: str
    about: AskedJob


class Approvals:
    """The record of approvals in a state folder.

    Parameters
    ----------
    folder : Path
        The state folder of a party, a helper or a key service.
    days : int
        ``Policy.approval_days``.
    now : callable
        The present, in seconds since 1970.

    """

    def __init__(self, folder: Path, days: int, now: Callable[[], float] = time.time) -> None:
        state_folder(folder)
        self._db = Database(folder / APPROVALS, SCHEMA)
        self._seconds = days * _DAY
        self._now = now

    # --- at the party's process ---

    def check(self, data: bytes, order: Order, part: Part, user: str) -> None:
        """Let an order through that the owner has allowed.

        Parameters
        ----------
        data : bytes
            The order as the user has signed it.
        order, part
            The same, read; and what was sealed to this party.
        user : str
            Who has signed it.

        Raises
        ------
        ApprovalPendingError
            Nobody has decided yet.
        PolicyError
            It was refused, or nobody has decided in time.

        """
        digest = hashlib.sha256(data).digest()
        with self._db.transaction() as db:
            self._expire(db)
            found = db.execute(
                "SELECT id, state, reason FROM approvals WHERE job = ? AND digest = ? AND user = ?",
                (order.job, digest, user),
            ).fetchone()
            if found is None:
                self._add(db, digest, order, part, user)
            name, state, reason = found or ("", "waiting", "")
            if state == "allowed":
                db.execute("UPDATE approvals SET state = 'used' WHERE id = ?", (name,))
        match state:
            case "waiting":
                raise ApprovalPendingError(f"job {order.job} waits for the approval of the owner")
            case "refused":
                said = f": {reason}" if reason else "; no reason was given"
                raise PolicyError(f"the owner of its data has refused this job{said}")
            case "expired":
                raise PolicyError(
                    "the owner of its data has not approved this job in time (approval_days); ask the owner, and order "
                    "it again"
                )
        # else allowed, or used before, where a crash has lost that the job was opened

    def _add(self, db: Any, digest: bytes, order: Order, part: Part, user: str) -> None:
        (waiting,) = db.execute(
            "SELECT COUNT(*) FROM approvals WHERE state = 'waiting' AND user = ?", (user,)
        ).fetchone()
        if waiting >= MAX_WAITING:
            raise PolicyError(f"{MAX_WAITING} orders of this user wait for approval here; order it again later")
        name = secrets.token_hex(_ID_BYTES)
        about = msgspec.json.encode(AskedJob.of(order, part, user)).decode()
        db.execute(
            "INSERT INTO approvals VALUES (?, ?, ?, ?, 'waiting', ?, NULL, '', ?)",
            (name, order.job, digest, user, self._now(), about),
        )
        logger.warning(
            "job %s: %s, ordered by %s, waits for approval: woodlot approvals allow %s", order.job, order.kind, user,
            name, extra={"job": order.job, "kind": order.kind, "user": user, "state": "waiting"},
        )  # fmt: skip

    def withdraw(self, job: str) -> None:
        """Forget orders of a job that has ended, unless somebody has decided about them."""
        with self._db.transaction() as db:
            db.execute("DELETE FROM approvals WHERE job = ? AND decided IS NULL", (job,))

    def _expire(self, db: Any) -> None:
        before = self._now() - self._seconds
        db.execute(
            "UPDATE approvals SET state = 'expired' WHERE (state = 'waiting' AND asked < ?) OR "
            "(state = 'allowed' AND decided < ?)",
            (before, before),
        )

    # --- for whoever decides ---

    def listed(self, *, every: bool = False) -> list[Approval]:
        """Orders that wait, the oldest first; with ``every`` also those that somebody has decided about."""
        with self._db.transaction() as db:
            self._expire(db)
            rows = db.execute(
                "SELECT id, job, user, digest, state, asked, decided, reason, about FROM approvals "
                "WHERE ? OR state = 'waiting' ORDER BY asked, rowid",
                (every,),
            ).fetchall()
        return [
            Approval(
                id=name, job=job, user=user, order=digest.hex(), state=state, asked=asked, decided=decided,
                reason=reason, about=from_json(about.encode(), AskedJob),
            )
            for name, job, user, digest, state, asked, decided, reason, about in rows
        ]  # fmt: skip

    def decide(self, name: str, *, allow: bool, reason: str = "") -> Approval:
        """Allow or refuse an order; one that was allowed can be refused as long as its job has not begun.

        Parameters
        ----------
        name : str
            The id of the entry.
        allow : bool
            Whether the job may begin.
        reason : str
            Told to the user, and to the coordinator, where it is refused.

        Raises
        ------
        DataError
            If there is no such order, or it is too late for the decision.

        """
        if len(reason) > MAX_WORDS:
            raise DataError(f"a reason has at most {MAX_WORDS} characters, not {len(reason)}")
        with self._db.transaction() as db:
            self._expire(db)
            found = db.execute("SELECT state, job FROM approvals WHERE id = ?", (name,)).fetchone()
            if found is None:
                raise DataError(f"no order {name!r} waits for approval here; `woodlot approvals` lists those that do")
            state, job = found
            if state not in ("waiting", "allowed"):
                late = {
                    "used": f"its job {job} has begun; its user can cancel it (woodlot jobs cancel)",
                    "refused": "it was refused; its user can order it again",
                    "expired": "it has expired; its user can order it again",
                }
                raise DataError(f"order {name!r} cannot be decided about any more: {late[state]}")
            db.execute(
                "UPDATE approvals SET state = ?, decided = ?, reason = ? WHERE id = ?",
                ("allowed" if allow else "refused", self._now(), "" if allow else reason, name),
            )
        return next(entry for entry in self.listed(every=True) if entry.id == name)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_approved(
    approvals: Approvals | None, policy: Policy, data: bytes, order: Order, part: Part, user: str
) -> None:
    """Refuse an order, or have it wait, where a policy asks for approval and the owner has not given it.

    Parameters
    ----------
    approvals : Approvals or None
        The record of a service; None: this host has nobody to ask.
    policy : Policy
        Which orders need approval.
    data, order, part, user
        As for `Approvals.check`.

    """
    if not policy.needs_approval(order.kind, user):
        return
    if approvals is None:
        raise PolicyError(
            f"this party's policy asks for approval of {order.kind!r} (approve), which only a party's service can wait "
            "for; run it with woodlot party"
        )
    approvals.check(data, order, part, user)
