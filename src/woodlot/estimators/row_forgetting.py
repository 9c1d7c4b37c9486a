"""Forgetting rows of a fitted horizontal forest, with a receipt."""

from __future__ import annotations

import copy
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from woodlot.estimators.leaving import CHANGEABLE, RowTraining, become_forest, whole_digests, whole_sizes
from woodlot.estimators.origin import SeenRows
from woodlot.estimators.parameters import is_int
from woodlot.estimators.progress import progress_bar
from woodlot.estimators.revoking import signer_of
from woodlot.exceptions import DataError, WoodlotError
from woodlot.federation import AnyFederation, GrownForest, as_federation
from woodlot.federation.local_rows import RowFederation, WithoutRows
from woodlot.identity.erasure import (
    NOT_REACHED,
    ErasureReceipt,
    ErasureStatement,
    digests_of,
    fresh_key,
    make_erasure,
)
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import now, tree_changes
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.rows.row_forgetting import check_forgets
from woodlot.runtime.audit import Account
from woodlot.trees.parallel import effective_jobs

if TYPE_CHECKING:
    from woodlot.estimators.whole import WholeForest

AGAIN = "all clients grow the forest again without the rows"
"""Why no tree was kept, as receipts say."""


def forget_rows(
    model: WholeForest,
    ids: Any,
    data: Any,
    identity: str | os.PathLike[str] | Identity | None,
    *,
    prove: bool,
) -> ErasureReceipt:
    """Take rows out of a forest; see `WholeForest.forget`."""
    check_is_fitted(model, "forest_")
    training = _training_of(model, data)
    check_forgets(training.plan)

    def here(federation: RowFederation) -> ErasureReceipt:
        return _forget_here(model, replace(training, federation=federation), federation, ids, identity, prove=prove)

    def keep(forest: GrownForest, account: Account, rest: AnyFederation, receipt: ErasureReceipt) -> None:
        changed = copy.copy(model)
        changed._keep(training.plan, forest, account)
        become_forest(changed, model, changed.forest_, replace(training, federation=rest))
        _become(model, changed, receipt)

    return training.federation.forget_rows(
        model.forest_, ids, training.label, weight=training.weight, here=here, keep=keep,
        only_here=identity is not None or prove,
    )  # fmt: skip


def _forget_here(
    model: WholeForest,
    training: RowTraining,
    federation: RowFederation,
    ids: Any,
    identity: str | os.PathLike[str] | Identity | None,
    *,
    prove: bool,
) -> ErasureReceipt:
    """Grow the forest without the rows in this process, keep it, and sign the receipt."""
    began = time.perf_counter()
    former = model.forest_
    without = federation.without_rows(ids, training.targets)
    before = after = whole_digests(former)
    changed = copy.copy(model)  # the model itself changes at the very end, all at once
    kept: tuple[int, ...] = ()
    if without.rows:
        kept = _grow_again(changed, training, without)
        become_forest(changed, model, changed.forest_, changed.forest_.memo.training)
        if not federation.numbered:
            changed._seen = SeenRows(without.federation)
        after = whole_digests(changed.forest_)
    forest = changed.forest_
    if prove:
        _prove(changed.forest_.memo.training or training, after, effective_jobs(model.n_jobs))
    old, new = former.coordinator.structure, forest.coordinator.structure
    sizes = [_but(own, kept) for own in (whole_sizes(old, new), whole_sizes(new, old))]
    key = fresh_key()
    statement = ErasureStatement(
        model=before["coordinator"], created=now(), rows=without.rows, unknown=without.unknown,
        ids=digests_of(without.ids, key), before=before, after=after, rows_left=forest.coordinator.n_rows,
        again="" if kept or not without.rows else AGAIN, searched=sum(sizes[1]) if kept else 0, stood=0,
        trees=tree_changes(*sizes) if without.rows else (),
        nodes_before=old.n_nodes, nodes_after=new.n_nodes, seconds=round(time.perf_counter() - began, 6),
        proved=prove, not_reached=NOT_REACHED,
    )  # fmt: skip
    receipt = make_erasure(statement, signer_of(identity), key)
    _become(model, changed, receipt)
    return receipt


def _grow_again(changed: WholeForest, training: RowTraining, without: WithoutRows) -> tuple[int, ...]:
    """Make a model the one of the rows that are left; returns the trees that stand as they were."""
    rest, targets, plan = without.federation, without.targets, training.plan
    verbose, n_jobs, former = changed.verbose, effective_jobs(changed.n_jobs), changed.forest_
    changed.__dict__.update({name: value for name, value in training.params.items() if name not in CHANGEABLE})
    if not isinstance(plan, LocalPlan):
        changed._grow(rest, targets, training.label, plan.seed, training.weight)
        return ()
    with progress_bar(verbose, "growing trees") as show:
        forest, account, kept = rest.grow_without_rows(
            former, plan, targets, without.gone, label=training.label, weight=training.weight, n_jobs=n_jobs,
            on_progress=show,
        )  # fmt: skip
    changed._keep(plan, forest, account)
    changed._remember(plan, rest, targets, training.label, training.weight)
    return kept


def _but(sizes: list[int], kept: tuple[int, ...]) -> list[int]:
    """Nodes of the trees that do not stand as they were."""
    stand = set(kept)
    return [0 if tree in stand else size for tree, size in enumerate(sizes)]


def _become(model: WholeForest, changed: WholeForest, receipt: ErasureReceipt) -> None:
    """The model has forgotten, all at once."""
    changed.erasures_ = (*getattr(model, "erasures_", ()), receipt)
    model.__dict__.update(changed.__dict__)


def _prove(training: RowTraining, after: dict[str, str], n_jobs: int) -> None:
    """Grow the forest without the rows, and compare."""
    again, _ = training.federation.grow(
        training.plan, training.targets, label=training.label, weight=training.weight, settings=dict, n_jobs=n_jobs
    )
    if whole_digests(again) != after:
        raise WoodlotError(
            "the forest without the rows is not the one that grows without them; the model was left as it was: fit it "
            "again without the rows, and report this"
        )


def _training_of(model: WholeForest, data: Any) -> RowTraining:
    """What the forest was fitted on: as remembered since then, or given again."""
    if data is None:
        training: RowTraining | None = model.forest_.memo.training
        if training is None:
            raise DataError(
                "forgetting needs the tables of the training, which a loaded or copied model does not have; give them "
                "again: forget(ids, data=federation), or data=(X, y)"
            )
        return training
    if not is_int(model.random_state):
        raise DataError("this model was fitted without random_state, so it cannot be grown again; fit a new one")
    again: WholeForest = clone(model)
    if as_federation(data) is None:
        if not isinstance(data, tuple | list) or len(data) not in (2, 3):
            raise DataError("data must be (X, y) or (X, y, sample_weight), what the model was fitted on")
        again.fit(*data)
    elif model._origin.label is None:
        raise DataError("this model was not fitted on a federation with a column of labels; give data=(X, y)")
    else:
        again.fit(data, y=model._origin.label)
    if whole_digests(again.forest_) != whole_digests(model.forest_):
        raise DataError(
            "these rows do not give this model: give the clients' tables of the training in their order, without rows "
            "that it has forgotten since"
        )
    found: RowTraining = again.forest_.memo.training
    return found
