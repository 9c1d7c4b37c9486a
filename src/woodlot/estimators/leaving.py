"""Taking a client out of a fitted horizontal forest, with a receipt."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from woodlot.estimators.input_tables import class_array
from woodlot.estimators.parameters import require
from woodlot.estimators.progress import progress_bar
from woodlot.estimators.revoking import become, signer_of
from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation, GrownForest
from woodlot.federation.local_rows import RowFederation
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import (
    CostOf,
    Receipt,
    RevocationScores,
    SignedRequest,
    Statement,
    check_request,
    cost_of,
    make_receipt,
    make_request,
    now,
    tree_changes,
)
from woodlot.protocols.core.leavers import check_leaver
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.rows.methods import HorizontalPlan
from woodlot.protocols.rows.row_leaving import Left, drop_trees
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.vertical.files import fingerprint_of, forest_id_of
from woodlot.runtime.audit import Account
from woodlot.trees.parallel import effective_jobs

if TYPE_CHECKING:
    from woodlot.estimators.whole import WholeForest

LEVELS = (1, 3)
CHANGEABLE = ("allow_two", "sums", "spare_after", "quorum", "n_jobs", "verbose")
"""Parameters that may be changed between fit and revocation: the forest does not depend on them."""


@dataclass(frozen=True, eq=False)
class RowTraining:
    """What a forest was fitted on, as long as the estimator that fitted it lives.

    Attributes
    ----------
    federation : AnyFederation
        The clients.
    targets : mapping
        Their labels, where they are in this process.
    label : str or None
        The labels' column; None for one table whose rows were dealt.
    plan : HorizontalPlan
        What was grown.
    params : mapping
        The estimator's parameters then.
    weight : str or None
        The column of the weights of rows, where the clients have one.
    """

    federation: AnyFederation
    targets: Mapping[str, Target]
    label: str | None
    plan: HorizontalPlan
    params: Mapping[str, Any]
    weight: str | None = None


@dataclass(frozen=True, eq=False)
class _Without:
    """The model without the client, what became of the nodes, and what that took."""

    model: WholeForest
    trees: tuple[Any, ...]
    cost: CostOf


def revoke_client(
    model: WholeForest,
    client: str,
    level: int,
    holdout: tuple[Any, Any] | None,
    identity: str | os.PathLike[str] | Identity | None,
    request: SignedRequest | None,
) -> Receipt:
    """Take a client out of a forest; see `WholeForest.revoke`."""
    check_is_fitted(model, "forest_")
    client = str(client)
    require(level in LEVELS, "level", level, f"one of {list(LEVELS)}: 1 what is its own, 3 exact")
    former = model.forest_
    training: RowTraining | None = former.memo.training
    if training is None:
        raise DataError(
            "a client is taken out by the model that was fitted with it, in the same process; this one was loaded or "
            "copied: fit it again on the federation without the client"
        )

    def here(federation: RowFederation) -> Receipt:
        return _revoke_here(model, training, federation, client, level, holdout, identity, request)

    def keep(forest: GrownForest, account: Account, rest: AnyFederation, receipt: Receipt) -> None:
        changed = copy.copy(model)
        changed._keep(training.plan, forest, account)
        become_forest(changed, model, changed.forest_, replace(training, federation=rest))
        become(model, changed, receipt)

    return training.federation.take_out_client(
        former, training.plan, training.label, client, level, weight=training.weight, here=here, keep=keep
    )


def _revoke_here(
    model: WholeForest,
    training: RowTraining,
    federation: RowFederation,
    client: str,
    level: int,
    holdout: tuple[Any, Any] | None,
    identity: str | os.PathLike[str] | Identity | None,
    request: SignedRequest | None,
) -> Receipt:
    """Take a client out of a forest in this process, keep the forest, and sign the receipt."""
    former = model.forest_
    check_leaver(federation.parties, None, client)
    key, signer = forest_id_of(former.coordinator), signer_of(identity)
    if request is None:
        request = make_request(client, level, key, signer)
    check_request(request, client, level, key)
    held = None if holdout is None else float(model.score(*holdout))
    without = _without(model, training, federation, client, level)
    changed = without.model  # the model itself changes at the very end, all at once
    forest = changed.forest_
    scores = None
    if held is not None and holdout is not None:
        measure: Literal["accuracy", "R2"] = "accuracy" if model._task == "classes" else "R2"
        scores = RevocationScores(measure=measure, rows="held out", before=held, after=float(changed.score(*holdout)))
    staying = tuple(name for name in federation.parties if name != client)
    statement = Statement(
        party=client, level=1 if level == 1 else 3, model=key, created=now(),
        parties_before=federation.parties, parties_after=staying,
        before=whole_digests(former), after=whole_digests(forest),
        epoch_before=former.epoch, epoch_after=forest.epoch, keys_before=0, keys_after=0, trees=without.trees,
        nodes_before=former.coordinator.structure.n_nodes, nodes_after=forest.coordinator.structure.n_nodes,
        cost=without.cost, scores=scores, notified=staying, revoked_key="", rows="of those who stay",
    )  # fmt: skip
    receipt = make_receipt(statement, request, signer)
    become(model, changed, receipt)
    return receipt


def _without(model: WholeForest, training: RowTraining, federation: RowFederation, client: str, level: int) -> _Without:
    former, plan = model.forest_, training.plan
    changed = copy.copy(model)
    changed.__dict__.update({name: value for name, value in training.params.items() if name not in CHANGEABLE})
    rest = federation.without(client)
    targets = {name: target for name, target in training.targets.items() if name != client}
    begun = time.perf_counter()
    if level == 1 and isinstance(plan, LocalPlan):
        left = drop_trees(former.coordinator, former.parts[HOLDER], federation.parties.index(client), rest.n_rows)
        cost = CostOf(rounds=0, bytes=0, seconds=round(time.perf_counter() - begun, 6), nodes_searched=0)
    elif (
        level == 1
        and isinstance(plan, CollaborativePlan)
        and isinstance(now_plan := changed._plan(plan.seed), CollaborativePlan)
    ):
        with progress_bar(model.verbose, "growing trees") as show:
            left, account = federation.grow_without(
                former, client, now_plan, targets, label=training.label, n_jobs=effective_jobs(model.n_jobs),
                on_progress=show,
            )  # fmt: skip
        cost = cost_of(account.cost, int(left.regrown.sum()))
    else:
        changed._grow(rest, targets, training.label, plan.seed, training.weight)
        structure = changed.forest_.coordinator.structure
        become_forest(changed, model, changed.forest_, changed.forest_.memo.training)
        counts = (
            whole_sizes(former.coordinator.structure, structure),
            whole_sizes(structure, former.coordinator.structure),
        )
        return _Without(changed, tree_changes(*counts), cost_of(changed.cost_, structure.n_nodes))
    parts = {HOLDER: left.part}
    become_forest(
        changed, model, GrownForest(left.forest, parts, parts), replace(training, federation=rest, targets=targets)
    )
    return _Without(changed, _changes(left), cost)


def become_forest(changed: WholeForest, model: WholeForest, forest: GrownForest, training: RowTraining | None) -> None:
    """Make an estimator the one of this forest."""
    forest = replace(forest, epoch=model.forest_.epoch + 1)
    forest.memo.training = training
    if hasattr(changed, "classes_"):
        changed.classes_ = class_array(forest.coordinator.classes, changed.classes_.dtype)
    changed._set_forest(forest)


def whole_sizes(own: Any, other: Any) -> list[int]:
    """Nodes of each tree, as many trees as the larger of two forests has."""
    sizes = np.diff(own.offset)
    return [*sizes.tolist(), *[0] * max(0, other.n_trees - own.n_trees)]


def _changes(left: Left) -> tuple[Any, ...]:
    return tree_changes(left.removed.tolist(), left.regrown.tolist())


def whole_digests(forest: GrownForest) -> dict[str, str]:
    """SHA-256 of the parts of a whole forest."""
    return {"coordinator": forest_id_of(forest.coordinator), "whole forest": fingerprint_of(forest.parts[HOLDER])}
