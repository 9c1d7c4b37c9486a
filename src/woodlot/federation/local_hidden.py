"""Hidden training on a federation in this process: the label holder leads, another party serves, a dealer deals."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from woodlot.exceptions import DataError
from woodlot.federation.grown import GrownForest, Labels
from woodlot.federation.local import Federation, fresh_entropy
from woodlot.protocols.core.agreement import KEY_BYTES
from woodlot.protocols.core.forest_parts import active_parties, forget_values
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.leavers import Level, check_hidden_leaver
from woodlot.protocols.core.message import Progress, Role
from woodlot.protocols.hidden.hidden_dealer import ShuffleDealer, open_draws
from woodlot.protocols.hidden.hidden_party import HiddenParty
from woodlot.protocols.hidden.hidden_train import HiddenForest, HiddenLeader, train_hidden
from woodlot.protocols.vertical.completion import CompletedForest, complete_forest
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.regrow import Regrown, grown_again
from woodlot.runtime.audit import Account, Disclosures, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.sampling import derive_seed

DEALER = Role.dealer.value
_JOB = "local"


def grow_hidden(
    federation: Federation,
    plan: ForestPlan,
    labels: Labels,
    told: Mapping[str, Mapping[str, Any]],
    on_progress: Callable[[Progress], None] | None,
) -> tuple[GrownForest, Account]:
    """Grow a forest on secret shares: no message tells which row goes where.

    Parameters
    ----------
    federation : Federation
        The parties.
    plan : ForestPlan
        What to grow.
    labels : Labels
        The labels, which only their holder sees.
    told : mapping
        What each party is made of: its table and settings.
    on_progress : callable, optional
        Told how far the trees are.

    Returns
    -------
    GrownForest, Account
        The forest in its parts, and who saw what while it grew.
    """
    holder, parties = labels.holder, federation.parties
    others = [p for p in parties if p != holder]
    if not others:
        raise DataError("protection='hidden' needs a party beside the label holder as second server; add one")
    if DEALER in parties:
        raise DataError(f"with protection='hidden' no party may be called {DEALER!r}; rename it")
    server = next((p for p in others if told[p]["table"].names), others[0])
    ledger = Ledger(seen_by_leader(federation, holder))
    keys: dict[str, Any] = {"job": _JOB, "shared_secret": secrets.token_bytes(KEY_BYTES)}  # in place of identities
    own = {p: {name: value for name, value in told[p].items() if name not in ("target", "by_row")} for p in parties}
    leader = HiddenLeader(holder, target=told[holder]["target"], entropy=fresh_entropy(), **own[holder])
    owners = {p: HiddenParty(p, entropy=fresh_entropy(), **keys, **own[p]) for p in others}
    # in one process nobody is kept from knowing the draws: those of the open training, so that forests can be compared
    dealer = ShuffleDealer(
        DEALER, entropy=fresh_entropy(), draws=open_draws(derive_seed(plan.seed, "bootstrap")), **keys
    )
    with InProcessDriver({**owners, DEALER: dealer}, ledger=ledger) as driver:
        grown: HiddenForest = run(
            train_hidden(plan, parties, leader, server, DEALER), driver, ledger=ledger, on_progress=on_progress
        )
    forest = grown.forest
    active = active_parties(forest, holder)
    parts = {p: grown.own if p == holder else owners[p].grown_forest() for p in parties if p in active}
    parts = {p: forget_values(part) for p, part in parts.items()}
    handlers = {
        p: VerticalParty(p, told[p]["table"], forest=part, shares_model=told[p]["shares_model"])
        for p, part in parts.items()  # the label holder is among them also where no tree has a split
    }
    with InProcessDriver(handlers, ledger=ledger) as driver:
        protocol = complete_forest(plan, forest, holder, 1, reveal=federation.key_by_party)
        completed: CompletedForest = run(protocol, driver, ledger=ledger)
    shared = completed.shared if federation.key_by_party else parts  # dealt from one table: everything is in one hand
    return GrownForest(forest, parts, shared, completed.unwilling, plan=plan), led_account(ledger, holder)


def regrow_hidden(
    federation: Federation,
    former: GrownForest,
    plan: ForestPlan,
    labels: Labels,
    leaver: str,
    level: Level,
    n_jobs: int,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[GrownForest, Regrown, Account]:
    """Grow a forest again, on secret shares and without one of its parties; parameters as for `Federation.revoke`."""
    check_hidden_leaver(former.coordinator.parties, labels.holder, leaver, level)
    staying = federation.require_staying(former, leaver)
    rest = federation.with_members({party: federation.members[party] for party in staying})
    forest, account = grow_hidden(rest, plan, labels, rest.for_training(labels, n_jobs), on_progress)
    return forest, grown_again(former.coordinator, forest.coordinator, leaver), account


def seen_by_leader(federation: Federation, holder: str) -> Callable[[str, str, Any], None] | None:
    """The federation's observer, told who leads."""
    observer = federation.observer
    if observer is None:
        return None
    return lambda sender, receiver, message: observer(_named(sender, holder), _named(receiver, holder), message)


def _named(role: str, holder: str) -> str:
    return holder if role == Role.coordinator else role


def led_account(ledger: Ledger, holder: str) -> Account:
    """Who saw what: the label holder leads, so that what a leader hears is heard by it."""
    account = ledger.account()
    rows = [
        replace(row, sender=_named(row.sender, holder), receiver=_named(row.receiver, holder))
        for row in account.disclosure.rows
    ]
    return Account(Disclosures(tuple(row for row in rows if row.sender != row.receiver)), account.cost)
