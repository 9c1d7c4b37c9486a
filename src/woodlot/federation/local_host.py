"""Jobs of any kind in this process: the parties' own handlers, with their policies, on tables in memory.

All members are of one owner. Where an order names a helper, it is in one process with the coordinator, and their
shares of the strong key together open everything: a simulation, which the log says. The members have identities of an
authority that is made for this use, so an order is signed, sealed and checked as between organisations, and state
folders in a temporary folder that lives as long as the host.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import numpy as np

from woodlot.data.sources import MemoryTable
from woodlot.data.tables import arrow_of
from woodlot.exceptions import DataError
from woodlot.federation.members import Member
from woodlot.identity.authority import Authority
from woodlot.identity.certificates import REVOKED
from woodlot.identity.identity import Identity, Trust
from woodlot.identity.throwaway import DAYS, make_identities
from woodlot.jobs.hosting import JobHost, run_order
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.kind import known
from woodlot.jobs.member_job import MemberRole
from woodlot.jobs.order_seal import common_fields, sign_order
from woodlot.jobs.orders import Order, Part
from woodlot.jobs.party_host import MemberHost, PartyHost
from woodlot.jobs.policy import EVERYBODY, Policy, WireForm
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.carried import Carrier
from woodlot.runtime.drivers.thread_carrier import Answering, ThreadCarrier
from woodlot.trees.parallel import effective_jobs

logger = logging.getLogger(__name__)

TABLE = "table"
"""The name of every party's table: in this process each has one."""


class LocalHost:
    """Runs orders between the members of a federation in this process.

    Parameters
    ----------
    members : mapping of str to Member
        The parties and their tables.

    Attributes
    ----------
    store : JobStore
        What the jobs have kept.
    helper, key_service : str
        The members that orders about keys can name besides the parties. They are here as soon as an order does.

    """

    def __init__(self, members: Mapping[str, Member]) -> None:
        coordinator, self._user_name, self.helper, self.key_service = (
            _free_name(name, members) for name in ("coordinator", "owner", "helper", "key-service")
        )
        n_jobs = effective_jobs(-1)
        with ExitStack() as stack:
            self._root = Path(tempfile.mkdtemp(prefix="woodlot-"))
            stack.callback(shutil.rmtree, self._root, ignore_errors=True)
            self._operator = Authority.create(self._root / ".authority", "local", days=DAYS + 1)
            roles = {coordinator: "coordinator", self._user_name: "user"} | dict.fromkeys(members, "party")
            self._identities = make_identities(self._operator, self._root, roles)
            trust = Trust(self._user.authority, self._operator.folder / REVOKED)
            self.store = JobStore(self._state(coordinator))
            stack.callback(self.store.close)
            self._host = JobHost(self._identities[coordinator], trust, self.store, n_jobs)
            self._answers: dict[str, Answering] = {}
            for name, member in members.items():
                party = PartyHost(
                    self._state(name),
                    self._identities[name],
                    trust,
                    {TABLE: _table_of(name, member)},
                    self._policy_of(member),
                    n_jobs=max(1, n_jobs // len(members)),
                )
                stack.callback(party.close)
                self._answers[name] = party.answer
            self._open = stack.pop_all()
        # files are closed and the folder goes with the host, or at the end of the process
        self.close = weakref.finalize(self, _close, self._open, os.getpid())

    @property
    def _user(self) -> Identity:
        return self._identities[self._user_name]

    def _state(self, name: str) -> Path:
        return self._root / name / "state"

    def _policy_of(self, member: Member | None = None) -> Policy:
        """What a member lets its owner do: everything, except what the federation was made to withhold."""
        sealed = member is not None and member.sealed_only
        return Policy(
            protocols=tuple(dict.fromkeys(kind.listed for kind in known().values())),
            train=(EVERYBODY,),
            predict=(EVERYBODY,),
            receive=(EVERYBODY,),
            plain_sums=True,
            allow_two=True,
            weak_keys=True,
            labels_to_coordinator=True,
            lead=("coordinator",),
            share_model=member is not None and member.shares_model,
            wire_forms=("sealed",) if sealed else get_args(WireForm),
            helpers=(self.helper,),
            key_services=(self.key_service,),
        )

    def _start(self, name: str, role: MemberRole) -> None:
        """Have a helper or a key service join."""
        if role == "helper":
            logger.warning(
                "helper and coordinator are in this process, and their shares of the strong key together open every "
                "split and request: this is a simulation; between organisations run the helper elsewhere"
            )
        self._identities |= make_identities(self._operator, self._root, {name: "party"})
        trust, n_jobs = self._host.trust, self._host.n_jobs
        member = MemberHost(self._state(name), role, self._identities[name], trust, self._policy_of(), n_jobs=n_jobs)
        self._open.callback(member.close)
        self._answers[name] = member.answer

    def order_fields(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        """The fields that every order has: who takes part, with each party's part sealed to it."""
        roles: dict[str, MemberRole] = {self.helper: "helper", self.key_service: "key service"}
        for name, role in roles.items():
            if name in parts and name not in self._answers:
                self._start(name, role)
        strangers = [party for party in parts if party not in self._answers]
        if strangers:
            raise DataError(
                f"{', '.join(strangers)} never joined this federation; its parties are {list(self._answers)}"
            )
        certificates = {name: self._identities[name].certificate for name in parts}
        federation, coordinator = self._host.trust.federation, self._host.identity.name
        return common_fields(parts, certificates, federation=federation, coordinator=coordinator)

    def run(
        self, order: Order, ledger: Ledger | None = None, on_facts: Callable[[JobFacts], None] | None = None
    ) -> JobFacts:
        """Sign an order as the owner and run it to its end; see `woodlot.jobs.hosting.run_order`."""
        signed = (*sign_order(order, self._user), self._user.certificate)
        return run_order(self._host, signed, self._carrier, ledger=ledger, on_facts=on_facts)

    def _carrier(self, job: str) -> Carrier:
        return ThreadCarrier(job, self._answers)


def _close(opened: ExitStack, pid: int) -> None:
    """Close what a process has opened; a child that was forked from it has a copy of the host, but not the files."""
    if os.getpid() == pid:
        opened.close()


def _free_name(name: str, taken: Collection[str]) -> str:
    """A name that no party has, in upper or lower case."""
    others = {other.lower() for other in taken}
    while name in others:
        name += "_"
    return name


def _table_of(name: str, member: Member) -> MemoryTable:
    """A member's own table, with its ids; rows without ids are identified by their numbers."""
    if member.source is None:
        raise DataError("the columns of one table were dealt to these parties; orders need a table of each party")
    arrow = arrow_of(member.source, f"the table of {name}")
    id = member.id
    if id is None:
        id = _free_name("row", arrow.column_names)
        arrow = arrow.append_column(id, [np.arange(arrow.num_rows)])
    return MemoryTable(TABLE, id=id, arrow=arrow)
