"""Forgetting rows of a fitted vertical forest, with a receipt."""

from __future__ import annotations

import copy
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from woodlot.estimators.revoking import digests, signer_of, training_of
from woodlot.exceptions import DataError, WoodlotError
from woodlot.federation import GrownForest
from woodlot.federation.local_forgetting import LocalMemory, RowsForgotten
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
from woodlot.trees.parallel import effective_jobs

if TYPE_CHECKING:
    from woodlot.estimators.base import FederatedForest


def forget(
    model: FederatedForest, ids: Any, data: Any, identity: str | os.PathLike[str] | Identity | None, prove: bool
) -> ErasureReceipt:
    """Take rows out of a forest that was grown in this process; see `FederatedForest.forget`."""
    check_is_fitted(model, "forest_")
    began = time.perf_counter()
    if not hasattr(model, "bootstrap_by"):
        raise DataError(
            f"{type(model).__name__} forgets no rows: its encrypted splits, and the keys and shares of others, are of "
            "the forest on all rows; train it again without the rows"
        )
    if data is not None or model.forest_.memo.memory is None:
        training = training_of(model, data)
        elsewhere = training.federation.forget_elsewhere(
            model.forest_, training.labels, ids, identity=identity, prove=prove
        )
        if elsewhere is not None:
            forest, receipt = elsewhere
            forest.memo.training = training
            return _become(model, replace(forest, epoch=model.forest_.epoch + 1), receipt)
    memory = _memory(model, data)
    n_jobs = effective_jobs(model.n_jobs)
    rows, names, unknown = memory.find(ids)
    former = model.forest_
    before = former.memo.digests or digests(former)
    former.memo.memory = None  # should anything fail, it is made again from the training
    result = memory.forget(former, rows, n_jobs)
    forest = result.forest
    if len(rows):
        forest = replace(_in_given_order(result), epoch=former.epoch + 1)
        forest.memo.training = result.memory.remaining
    after = digests(forest) if len(rows) else before
    if prove:
        _prove(result, after, n_jobs)
    key = fresh_key()
    nodes = former.coordinator.structure.n_nodes, forest.coordinator.structure.n_nodes
    statement = ErasureStatement(
        model=before["coordinator"], created=now(), rows=len(rows), unknown=unknown, ids=digests_of(names, key),
        before=before, after=after, rows_left=forest.coordinator.n_rows, again=result.reason,
        searched=0 if result.done is None else result.done.searched,
        stood=0 if result.done is None else result.done.stood, trees=_changes(model, result), nodes_before=nodes[0],
        nodes_after=nodes[1], seconds=round(time.perf_counter() - began, 6), proved=prove, not_reached=NOT_REACHED,
    )  # fmt: skip
    receipt = make_erasure(statement, signer_of(identity), key)
    forest.memo.memory, forest.memo.digests = result.memory, after
    return _become(model, forest, receipt)


def _become(model: FederatedForest, forest: GrownForest, receipt: ErasureReceipt) -> ErasureReceipt:
    """The model has forgotten."""
    changed = copy.copy(model)  # the model itself changes at the very end, all at once
    changed._set_forest(forest)
    if hasattr(changed, "classes_"):
        kept = [str(name) for name in forest.coordinator.classes]
        changed.classes_ = changed.classes_[np.isin(np.array([str(c) for c in changed.classes_]), kept)]
        changed.n_classes_ = len(changed.classes_)
    changed.erasures_ = (*getattr(model, "erasures_", ()), receipt)
    model.__dict__.update(changed.__dict__)
    return receipt


def _memory(model: FederatedForest, data: Any) -> LocalMemory:
    """What is remembered of the training, or is made of what it was fitted on."""
    memory: LocalMemory | None = model.forest_.memo.memory
    if data is None and memory is not None:
        return memory
    plan = model.forest_.plan
    if plan is None:
        raise DataError("this model does not say how it was grown, so rows cannot be taken out of it; fit it again")
    training = training_of(model, data)
    return training.federation.remember(training.labels, plan)


def _in_given_order(result: RowsForgotten) -> Any:
    """The forest with out-of-bag answers in the order of the rows that were given to ``fit``."""
    forest = result.forest
    if forest.oob_outputs is None:
        return forest
    drawn = result.memory.remaining.federation.drawn
    if drawn is None:
        return forest
    return replace(forest, oob_outputs=forest.oob_outputs[drawn.in_given_order])


def _prove(result: RowsForgotten, after: dict[str, str], n_jobs: int) -> None:
    """Grow the forest without the rows, and compare."""
    memory = result.memory
    again, _ = memory.remaining.federation.fit_forest(
        memory.plan, memory.remaining.labels, settings=dict, n_jobs=n_jobs
    )
    if digests(again) != after:
        raise WoodlotError(
            "the forest without the rows is not the one that grows without them; the model was left as it was: fit it "
            "again without the rows, and report this"
        )


def _changes(model: FederatedForest, result: RowsForgotten) -> Any:
    if result.done is not None:
        return tree_changes(result.done.removed.tolist(), result.done.regrown.tolist())
    old, new = model.forest_.coordinator.structure, result.forest.coordinator.structure
    return tree_changes(np.diff(old.offset).tolist(), np.diff(new.offset).tolist())
