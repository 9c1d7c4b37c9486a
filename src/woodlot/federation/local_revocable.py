"""Revocable forests over parties in this process: growing, leaving, and predicting what nobody can read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.dtpkc import Setting
from woodlot.crypto.master import MasterKey
from woodlot.data.columns import CategoryColumn, Column, NumericColumn
from woodlot.data.tables import Table
from woodlot.exceptions import DataError
from woodlot.federation.grown import Answer, GrownForest, Labels
from woodlot.federation.local import Federation
from woodlot.federation.members import refuse_strangers
from woodlot.keyring import LocalKeyring
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.protocols.core.leavers import check_leavers
from woodlot.protocols.core.message import Progress
from woodlot.protocols.revocable.construct import Constructed, construct, regrow
from woodlot.protocols.revocable.participant import Participant, check_values
from woodlot.protocols.revocable.revocable_keys import key_fingerprint
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable, EncryptedSplits, Rebuilding
from woodlot.protocols.revocable.revocable_plan import RevocablePlan, Scheme
from woodlot.protocols.revocable.row_test import RowTester
from woodlot.protocols.revocable.share_predict import NO_TEST_OF_SHARES, SharedSplits, shares_fingerprint
from woodlot.protocols.vertical.answers import match_columns
from woodlot.protocols.vertical.out_of_bag import OutOfBagResult, score_out_of_bag
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.runtime.audit import Account, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.share_ring import LocalShareRing
from woodlot.trees.alone import NO_SPLITS
from woodlot.trees.forest import join_splits
from woodlot.trees.predict import Predictor, Vote

Categories = dict[str, dict[str, tuple[str, ...]]]
"""By party and column, the categories of the training: they are split as numbers, in this order."""


class Encryption(NamedTuple):
    """How splits and requests are hidden; with the paper's scheme, how long keys are (`woodlot.crypto.dtpkc`)."""

    bits: int
    setting: Setting
    make: Callable[..., MasterKey] = MasterKey.generate
    scheme: Scheme = "paper"


@dataclass
class Secrets:
    """Keys of all roles and the splits encrypted under them; with the process they are gone."""

    ring: LocalKeyring
    splits: EncryptedSplits
    parts: dict[str, Any]

    def fingerprint(self, party: str) -> str:
        """SHA-256 of a party's public key."""
        key = self.ring.keys.public.get(party)
        return "" if key is None else key_fingerprint(key)

    def digest(self) -> str:
        """SHA-256 of all ciphertexts."""
        return hashlib.sha256(self.splits.node.tobytes() + self.splits.data.tobytes()).hexdigest()

    def predict(
        self, forest: CoordinatorForest, rows: NDArray[np.float64], requester: str, vote: Vote
    ) -> NDArray[np.float64]:
        """FRF-Predict: the forest's outputs for rows that only the requester can read."""
        whole = CoordinatorRevocable(forest, self.splits)
        return self.ring.predict(whole, self.ring.request(rows, requester), vote)

    def without(
        self, forest: CoordinatorForest, origin: NDArray[np.int64], leavers: Sequence[str], level: int
    ) -> Secrets:
        """Strike out the leavers' keys and encrypt what is new; at level 2 begin a new epoch, for everything."""
        if level == 2:
            splits = self.ring.rotate(forest, leavers[0])
        else:
            splits = self.ring.encrypt(forest, self.splits, origin, leavers)
            for leaver in leavers:
                if leaver in self.ring.keys.parties:
                    self.ring.revoke(leaver)
        return Secrets(self.ring, splits, self.parts)


@dataclass
class SharedSecrets:
    """Helper and key service with their shares of all splits; with the process they are gone."""

    ring: LocalShareRing
    splits: SharedSplits
    parts: dict[str, Any]

    def fingerprint(self, party: str) -> str:
        """A party's word on its shares, as receipts name what was deleted."""
        shared = self.splits.commits.get(party)
        return "" if shared is None else shares_fingerprint(shared[1])

    def digest(self) -> str:
        """What is registered at helper and key service."""
        return self.splits.registered.hex()

    def predict(
        self, forest: CoordinatorForest, rows: NDArray[np.float64], requester: str, vote: Vote
    ) -> NDArray[np.float64]:
        """FRF-Predict: the forest's outputs for rows that only the requester can read."""
        return self.ring.predict(forest, self.splits, self.ring.request(rows, requester), vote)

    def without(
        self, forest: CoordinatorForest, origin: NDArray[np.int64], leavers: Sequence[str], level: int
    ) -> SharedSecrets:
        """Share the splits of the forest without the leavers, and delete theirs; at level 2 with new keys."""
        if level == 2:
            splits = self.ring.rotate(forest, leavers[0])
        else:
            splits = self.ring.share(forest, leavers)
            for leaver in leavers:
                if leaver in self.ring.keys.parties:
                    self.ring.revoke(leaver)
        return SharedSecrets(self.ring, splits, self.parts)


@dataclass(frozen=True, eq=False, repr=False)
class RevocableGrown(GrownForest):
    """A revocable forest in its parts.

    Attributes
    ----------
    revocable : RevocablePlan or None
        What it was grown by.
    rebuilding : Rebuilding or None
        The rows of its nodes, at the coordinator.
    categories : dict
        What the numbers of categorical columns stand for.
    """

    revocable: RevocablePlan | None = None
    rebuilding: Rebuilding | None = None
    categories: Categories = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"rebuilding": None}


# --- categories as numbers ---


def as_numbers(federation: Federation, categories: Categories | None) -> tuple[Federation, Categories]:
    """The federation with categories as numbers: an encrypted comparison knows nothing else.

    Parameters
    ----------
    federation : Federation
        Its parties.
    categories : dict or None
        Those of the training; None for a training, whose own they are.
    """
    found: Categories = {}
    members = {}
    for name, member in federation.members.items():
        members[name] = member
        if categories is None or name in categories:  # others have left, or never took part
            table, found[name] = table_as_numbers(member.table, None if categories is None else categories[name])
            members[name] = replace(member, table=table)
    return federation.with_members(members), found


def table_as_numbers(
    table: Table, categories: Mapping[str, tuple[str, ...]] | None
) -> tuple[Table, dict[str, tuple[str, ...]]]:
    """One table with categories as numbers; missing and unseen ones come after the last."""
    found: dict[str, tuple[str, ...]] = {}
    columns: list[Column] = []
    for name, column in zip(table.names, table.columns, strict=True):
        if isinstance(column, CategoryColumn):
            known = column.categories if categories is None else categories.get(name)
            if known is None:
                raise DataError(
                    f"column {name!r} was numeric in training and is categorical now; convert it to numbers"
                )
            found[name] = known
            place = {category: code for code, category in enumerate(known)}
            codes = np.array([*(place.get(c, len(known)) for c in column.categories), len(known)], np.float32)
            columns.append(NumericColumn(codes[column.codes]))  # a missing one has the code -1: the last
        else:
            if categories is not None and name in categories:
                raise DataError(f"column {name!r} was categorical in training and is numeric now; give it as text")
            columns.append(column)
    return Table(table.names, tuple(columns), table.n_rows, table.positional), found


# --- growing and leaving ---


def grow_revocable(
    federation: Federation,
    plan: RevocablePlan,
    labels: Labels,
    encryption: Encryption | None,
    *,
    n_jobs: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[RevocableGrown, Account]:
    """Grow a revocable forest and have its splits encrypted.

    Parameters
    ----------
    federation : Federation
        The participants.
    plan : RevocablePlan
        What to grow.
    labels : Labels
        The coordinator's labels.
    encryption : Encryption or None
        Keys to make; None leaves the splits with the participants, unencrypted.
    n_jobs : int
        Threads.
    on_progress : callable, optional
        Told how far the trees are.
    """
    ledger = Ledger(federation.observer)
    numbers, categories = as_numbers(federation, None)
    tables = _tables(numbers, labels)
    handlers = {
        name: Participant(name, t, plan=plan, key_by_party=federation.key_by_party) for name, t in tables.items()
    }
    target = _target(labels)
    with InProcessDriver(handlers, ledger=ledger) as driver:
        made: Constructed = run(
            construct(plan, tuple(handlers), target, n_jobs), driver, ledger=ledger, on_progress=on_progress
        )
    forest = _gather(federation, plan, labels, made, handlers, tables, categories, ledger, n_jobs)
    if encryption is not None:
        forest.memo.secrets = make_secrets(forest, encryption, ledger, n_jobs)
    return forest, ledger.account()


def revoke_revocable(
    federation: Federation,
    forest: RevocableGrown,
    labels: Labels,
    leavers: Sequence[str],
    level: int,
    encryption: Encryption | None,
    *,
    holder: str | None,
    patched: bool = False,
    n_jobs: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[RevocableGrown, Constructed, Account]:
    """Take participants out of a forest: their nodes, their keys, and at level 2 everything that is old.

    Parameters
    ----------
    forest : RevocableGrown
        The former forest; it is not changed, but at level 2 its ciphertexts can be used no longer.
    leavers : sequence of str
        Who leaves; their tables are not looked at. At level 2 only one.
    level : {1, 2, 3}
        Their nodes; also a new epoch of keys; or exact.
    holder : str or None
        The party that has the labels, where it is one.
    patched : bool
        Whether the last revocation from it was not exact.
    federation, labels, encryption, n_jobs, on_progress
        As for `grow_revocable`.
    """
    check_leavers(forest.coordinator.parties, holder, leavers)
    if level == 2 and len(leavers) > 1:
        raise DataError("at level 2 one participant leaves at a time: each begins a new epoch of keys")
    if forest.revocable is None:
        raise DataError("this model does not say how it was grown; fit it again")
    ledger = Ledger(federation.observer)
    numbers, _ = as_numbers(federation, forest.categories)
    tables = {
        name: t
        for name, t in _tables(numbers, labels).items()
        if name in forest.coordinator.parties and name not in leavers
    }
    absent = [p for p in forest.coordinator.parties if p not in leavers and p not in tables]
    if absent:
        raise DataError(f"{absent} are not here; regrowing needs the tables of all participants that stay")
    handlers = {
        name: Participant(
            name, t, former=forest.parts.get(name), plan=forest.revocable, key_by_party=federation.key_by_party
        )
        for name, t in tables.items()
    }
    rebuilding = forest.rebuilding
    if rebuilding is None:
        rebuilding = _rebuilding(forest, _tables(numbers, labels))
    plan, target = forest.revocable, _target(labels)
    with InProcessDriver(handlers, ledger=ledger) as driver:
        part, exact = forest.coordinator, level == 3
        protocol = regrow(plan, part, rebuilding, leavers, 3 if exact else 1, target, n_jobs, patched)
        made: Constructed = run(protocol, driver, ledger=ledger, on_progress=on_progress)
    categories = {p: c for p, c in forest.categories.items() if p not in leavers}
    grown = _gather(federation, plan, labels, made, handlers, tables, categories, ledger, n_jobs)
    if encryption is not None:
        grown.memo.secrets = _rekey(forest, grown, made, leavers, level, encryption, ledger, n_jobs)
    return grown, made, ledger.account()


def _tables(federation: Federation, labels: Labels) -> dict[str, Table]:
    """What each participant learns from."""
    tables = {}
    for name, member in federation.members.items():
        if member.known is not None:
            raise DataError(f"training needs every row at every party; {name} lacks some: use join='inner'")
        hidden = labels.hidden if name == labels.holder else ()
        tables[name] = member.table.select([c for c in member.table.names if c not in hidden])
    return tables


def _target(labels: Labels) -> Any:
    if labels.target is None:
        raise DataError("the coordinator of a revocable forest needs the labels")
    return labels.target


def _gather(
    federation: Federation,
    plan: RevocablePlan,
    labels: Labels,
    made: Constructed,
    handlers: Mapping[str, Participant],
    tables: Mapping[str, Table],
    categories: Categories,
    ledger: Ledger,
    n_jobs: int,
) -> RevocableGrown:
    """The forest in its parts, scored out of bag where that is asked for."""
    parts = {name: handler.forest for name, handler in handlers.items() if handler.forest is not None}
    oob = OutOfBagResult()
    if plan.forest.out_of_bag is not None:
        holder = labels.holder if labels.holder in tables else next(iter(tables))
        nothing = PartyForest(made.forest.structure, NO_SPLITS, (), ())  # of a holder without columns
        parties = {
            name: VerticalParty(
                name,
                tables[name],
                forest=parts.get(name, nothing),
                sampling=made.forest.sampling,
                target=labels.target if name == holder else None,
                key_by_party=federation.key_by_party,
            )
            for name in tables
            if name in parts or name == holder
        }
        with InProcessDriver(parties, ledger=ledger) as driver:
            protocol = score_out_of_bag(made.forest, holder, plan.forest.out_of_bag, n_jobs)
            oob = run(protocol, driver, ledger=ledger)
    shared = {} if federation.key_by_party else parts  # dealt from one table: everything is in one hand
    return RevocableGrown(
        made.forest,
        parts,
        shared,
        tuple(parts) if federation.key_by_party else (),
        oob.outputs,
        oob.score,
        oob.residuals,
        oob_curve=oob.curve,
        plan=plan.forest,
        revocable=plan,
        rebuilding=made.rebuilding,
        categories=categories,
    )


def _rebuilding(forest: RevocableGrown, tables: Mapping[str, Table]) -> Rebuilding:
    """The rows of all nodes, found again by letting the training's rows fall down the trees."""
    coordinator, plan = forest.coordinator, forest.revocable
    if plan is None:
        raise DataError("this model does not say how it was grown; fit it again")
    first = np.concatenate([[0], np.cumsum([len(tables[p].names) for p in coordinator.parties])])
    parts = [
        replace(part.splits, feature=part.splits.feature + np.int32(first[coordinator.parties.index(name)]))
        for name, part in forest.parts.items()
    ]
    predictor = Predictor(coordinator.structure, join_splits(parts, [0] * len(parts)), coordinator.leaves)
    columns = [check_values(p, c, tables[p]) for p in coordinator.parties for c in tables[p].names]
    leaf = predictor.apply(columns, coordinator.n_rows, 1)
    sampling = plan.sampling(coordinator.n_rows)
    rows, counts = [np.empty(0, np.uint32)], np.zeros(coordinator.structure.n_leaves, np.int64)
    for tree in range(coordinator.structure.n_trees):
        drawn = np.flatnonzero(sampling.counts(tree, coordinator.n_rows))
        rows.append(drawn[np.argsort(leaf[drawn, tree], kind="stable")].astype(np.uint32))
        counts += np.bincount(leaf[drawn, tree], minlength=len(counts))
    return Rebuilding(np.concatenate(rows), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


# --- keys ---


def make_secrets(
    forest: RevocableGrown, encryption: Encryption, ledger: Ledger, n_jobs: int
) -> Secrets | SharedSecrets:
    """Keys for all roles, and the splits hidden by them."""
    parts = dict(forest.parts)
    own = {name: _own_splits(parts, name) for name in parts}
    if encryption.scheme != "paper":
        shares = LocalShareRing(
            own,
            structure=lambda: next(iter(parts.values())).structure,  # all parties know the same one
            allow_same_host=True,  # a simulation, as below
            ledger=ledger,
        )
        return SharedSecrets(shares, shares.share(forest.coordinator), parts)
    ring = LocalKeyring(
        own,
        allow_same_host=True,  # a simulation: every role is in this process
        bits=encryption.bits,
        setting=encryption.setting,
        make=encryption.make,
        threads=n_jobs,
        ledger=ledger,
    )
    return Secrets(ring, ring.encrypt(forest.coordinator), parts)


def _own_splits(parts: dict[str, Any], name: str) -> Callable[[], Any]:
    return lambda: parts[name].splits


def _rekey(
    former: RevocableGrown,
    forest: RevocableGrown,
    made: Constructed,
    leavers: Sequence[str],
    level: int,
    encryption: Encryption,
    ledger: Ledger,
    n_jobs: int,
) -> Secrets | SharedSecrets:
    """What hides the splits of a forest that some parties have left."""
    secrets: Secrets | SharedSecrets | None = former.memo.secrets
    if secrets is None:  # keys of another process: none of them is left
        return make_secrets(forest, encryption, ledger, n_jobs)
    before = dict(secrets.parts)
    try:
        secrets.parts.clear()
        secrets.parts.update(forest.parts)
        secrets.ring.record_in(ledger)
        return secrets.without(forest.coordinator, made.origin, leavers, level)
    except BaseException:
        secrets.parts.clear()
        secrets.parts.update(before)
        raise


def predict_by_encrypted_splits(
    federation: Federation, forest: RevocableGrown, vote: Vote, n_jobs: int
) -> tuple[Answer, Account]:
    """FRF-Test: the forest's outputs for the rows of a federation, by the encrypted splits.

    Parameters
    ----------
    federation : Federation
        The rows, with categories as numbers.
    forest : RevocableGrown
        The forest, whose keys and encrypted splits are at hand.
    vote : {"soft", "majority"}
        What a tree answers.
    n_jobs : int
        Threads.
    """
    federation.check_prediction(forest)
    secrets: Secrets | SharedSecrets | None = forest.memo.secrets
    if secrets is None:
        raise DataError("this forest has no keys in this process; score it on the federation that it was fitted on")
    if isinstance(secrets, SharedSecrets):
        raise DataError(NO_TEST_OF_SHARES)
    present = federation.present(forest)
    testers = {
        name: RowTester(
            part := forest.parts[name],
            match_columns(part.names, part.codings, member.table),
            secrets.ring.providers[name].keys,
            fingerprint=secrets.splits.forest,
            known=member.known,
            sealed_only=member.sealed_only,
            threads=n_jobs,
        )
        for name, member in federation.members.items()
        if name in present
    }
    ledger = Ledger(federation.observer)
    secrets.ring.record_in(ledger)
    answer = secrets.ring.test(
        CoordinatorRevocable(forest.coordinator, secrets.splits), testers, federation.n_rows, vote
    )
    return answer, ledger.account()


def request_rows(federation: Federation, forest: RevocableGrown) -> NDArray[np.float64]:
    """The rows of all parties joined, one line per row; columns in the order of the forest's features."""
    parties = forest.coordinator.parties
    needed = [p for p in parties if p in forest.parts]
    refuse_strangers(federation.parties, parties, needed)
    absent = [p for p in needed if p not in federation.parties]
    if absent:
        raise DataError(f"an encrypted request needs the columns of every party; {absent} are not here")
    tables = {p: member.table for p, member in as_numbers(federation, forest.categories)[0].members.items()}
    return columns_of(forest, tables)


def columns_of(forest: RevocableGrown, tables: Mapping[str, Table]) -> NDArray[np.float64]:
    """Columns in the order of the forest's features, party after party, from the table of each party."""
    names = [(p, c) for p in forest.coordinator.parties if p in forest.parts for c in forest.parts[p].names]
    return np.column_stack([check_values(p, c, tables[p]) for p, c in names]).astype(np.float64)


def predict_secretly(
    forest: RevocableGrown, secrets: Secrets | SharedSecrets, rows: NDArray[np.float64], requester: str, vote: Vote
) -> tuple[NDArray[np.float64], Account]:
    """FRF-Predict: the forest's outputs for rows that only the requester can read."""
    ledger = Ledger()
    secrets.ring.record_in(ledger)
    outputs = secrets.predict(forest.coordinator, rows, requester, vote)
    return outputs, ledger.account()
