"""Taking a party out of a fitted vertical forest, with a receipt."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from woodlot.data.labels import check_weights
from woodlot.data.tables import read_table
from woodlot.estimators.input_tables import check_table_again
from woodlot.estimators.parameters import require
from woodlot.estimators.progress import progress_bar
from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation, Federation, GrownForest, Labels, as_federation
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import (
    FreshKey,
    MemberKey,
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
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.leavers import check_leavers, usual_level
from woodlot.protocols.vertical.files import fingerprint_of, forest_id_of
from woodlot.trees.parallel import effective_jobs

if TYPE_CHECKING:
    from woodlot.estimators.base import FederatedForest

HoldOut = tuple[Any, Any] | AnyFederation


@dataclass(frozen=True, eq=False)
class Training:
    """What a forest was fitted on, as long as the estimator that fitted it lives."""

    federation: AnyFederation
    labels: Labels


def revoke(
    model: FederatedForest,
    party: str,
    level: int | None,
    holdout: HoldOut | None,
    data: Any,
    identity: str | os.PathLike[str] | Identity | None,
    request: SignedRequest | None,
) -> Receipt:
    """Take a party out of a forest that was grown in this process; see `FederatedForest.revoke`."""
    return revoke_together(model, (party,), level, holdout, data, identity, request)[0]


def revoke_together(
    model: FederatedForest,
    leavers: Sequence[str],
    level: int | None,
    holdout: HoldOut | None,
    data: Any,
    identity: str | os.PathLike[str] | Identity | None,
    request: SignedRequest | None,
) -> tuple[Receipt, ...]:
    """Take some parties out of a forest at once: it is grown again in part only once, and each gets a receipt."""
    check_is_fitted(model, "forest_")
    leavers = tuple(str(party) for party in leavers)
    require(level in (None, *model._levels), "level", level, f"one of {list(model._levels)}: 1 its nodes only, 3 exact")
    training, plan = training_of(model, data), model.forest_.plan
    chosen = usual_level(hidden=plan is not None and plan.protection == "hidden") if level is None else level

    def here(federation: Federation) -> tuple[Receipt, ...]:
        return _revoke_here(model, federation, training.labels, leavers, chosen, holdout, identity, request)

    def keep(forest: GrownForest, leaver: str, receipt: Receipt) -> None:
        forest.memo.training = training
        changed = copy.copy(model)
        _replace_forest(changed, forest, leaver)
        become(model, changed, receipt)

    return training.federation.take_out(model.forest_, training.labels, leavers, level, here=here, keep=keep)


def _revoke_here(
    model: FederatedForest,
    federation: Federation,
    labels: Labels,
    leavers: tuple[str, ...],
    level: int,
    holdout: HoldOut | None,
    identity: str | os.PathLike[str] | Identity | None,
    request: SignedRequest | None,
) -> tuple[Receipt, ...]:
    """Regrow a forest in this process, keep it, and sign the receipts."""
    former = model.forest_
    check_leavers(former.coordinator.parties, model._label_holder(labels), leavers)
    key = forest_id_of(former.coordinator)
    signer = signer_of(identity)
    requests = {p: make_request(p, level, key, signer) if request is None else request for p in leavers}
    for party, asked in requests.items():
        check_request(asked, party, level, key)
    held = None if holdout is None else _score(model, holdout)
    before, epoch = digests(former), former.memo.key_epoch()
    keys = {party: former.memo.key_fingerprint(party) for party in leavers}
    with progress_bar(model.verbose, "regrowing trees") as show:
        forest, regrown, account = model._regrow(federation, labels, leavers, level, show)
    forest = replace(forest, plan=former.plan, epoch=former.epoch + 1)
    rest = federation
    for party in leavers:
        rest = rest.without(party)
    forest.memo.training = Training(rest, labels)
    changed = copy.copy(model)  # the model itself changes at the very end, all at once
    for party in leavers:
        _replace_forest(changed, forest, party)
    scores = _scores(changed, former, forest, held, None if holdout is None else _score(changed, holdout))
    common = dict[str, Any](
        level=1 if level == 1 else 2 if level == 2 else 3, model=key, created=now(),
        parties_before=former.coordinator.parties, parties_after=forest.coordinator.parties,
        before=before, after=digests(forest), epoch_before=former.epoch, epoch_after=forest.epoch,
        keys_before=epoch, keys_after=forest.memo.key_epoch(), scores=scores, notified=forest.coordinator.parties,
        **changes(former.coordinator, regrown), cost=cost_of(account.cost, regrown.searched), rows="of the training",
    )  # fmt: skip
    receipts = tuple(
        make_receipt(Statement(party=party, revoked_key=keys[party], **common), asked, signer)
        for party, asked in requests.items()
    )
    become(model, changed, *receipts)
    return receipts


def digests(forest: GrownForest) -> dict[str, str]:
    """SHA-256 of every part at hand."""
    found = {p: fingerprint_of(part) for p, part in forest.parts.items()}
    return {"coordinator": forest_id_of(forest.coordinator)} | forest.memo.secret_digests() | found


class Change(Protocol):
    """What became of the nodes."""

    @property
    def forest(self) -> CoordinatorForest: ...
    @property
    def removed(self) -> NDArray[np.int64]: ...
    @property
    def regrown(self) -> NDArray[np.int64]: ...
    @property
    def searched(self) -> int: ...


def changes(former: CoordinatorForest, regrown: Change) -> dict[str, Any]:
    """What a receipt says of the nodes."""
    return {
        "trees": tree_changes(regrown.removed.tolist(), regrown.regrown.tolist()),
        "nodes_before": former.structure.n_nodes,
        "nodes_after": regrown.forest.structure.n_nodes,
    }


def training_of(model: FederatedForest, data: Any) -> Training:
    """What the forest was fitted on: as remembered since then, or given again."""
    training = _training_given(model, data)
    plan = model.forest_.plan
    if data is None or plan is None or getattr(model, "bootstrap_by", "draw") != "row":
        return training
    return Training(*training.federation.drawn_by_row(plan, training.labels))


def _training_given(model: FederatedForest, data: Any) -> Training:
    if data is None:
        training: Training | None = model.forest_.memo.training
        if training is None:
            raise DataError(
                "regrowing needs the tables of the training, which a loaded or copied model does not have; give them "
                "again: revoke(party, data=federation), or data=(X, y)"
            )
        return training
    origin = model._origin
    federation = as_federation(data)
    if federation is not None:
        if origin.label is None:
            raise DataError("this model was not fitted on a federation; give data=(X, y)")
        labels = federation.labels_for_training(origin.label, origin.weight, model._make_target)
        return Training(federation, labels)
    if origin.dealing is None:
        raise DataError("this model was fitted on a federation; give the federation again as data")
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise DataError("data must be (X, y) or (X, y, sample_weight), what the model was fitted on")
    X, y, *weights = data
    table = check_table_again(model, X, origin.names)
    target = model._make_target(np.asarray(y), check_weights(weights[0] if weights else None, np.asarray(y)))
    return Training(Federation.dealt(table, origin.dealing), Labels(next(iter(origin.dealing)), target=target))


def signer_of(identity: str | os.PathLike[str] | Identity | None) -> MemberKey | FreshKey:
    """Who signs: a member of a federation, or by default a fresh key."""
    if identity is None:
        return FreshKey()
    return MemberKey(identity if isinstance(identity, Identity) else Identity.load(identity))


def become(model: Any, changed: Any, *receipts: Receipt) -> None:
    """Make a model the changed one, all at once; receipts of those who left are kept with it."""
    changed.receipts_ = (*getattr(model, "receipts_", ()), *receipts)
    model.__dict__.update(changed.__dict__)


def _score(model: FederatedForest, holdout: HoldOut) -> float:
    """Score on rows that the trees have not seen; of a table the columns that the model knows."""
    if as_federation(holdout) is not None:
        return float(model._score(holdout, None, None, None))
    if not isinstance(holdout, tuple | list) or len(holdout) != 2:
        raise DataError("holdout must be (X, y), rows that the trees have not seen, or a federation")
    X, y = holdout
    table = read_table(X)
    names = model._origin.names
    if not set(names) <= set(table.names):
        raise DataError(f"the held-out rows lack columns of the model: {sorted(set(names) - set(table.names))}")
    outputs = model.combine().outputs(table.select(list(names)), model._vote, effective_jobs(model.n_jobs))
    return float(model._score_outputs(outputs, y))


def _scores(
    model: FederatedForest, former: GrownForest, forest: GrownForest, held: float | None, holds: float | None
) -> RevocationScores | None:
    measure: Literal["accuracy", "R2"] = "accuracy" if model._task == "classes" else "R2"
    if held is not None and holds is not None:
        return RevocationScores(measure=measure, rows="held out", before=held, after=holds)
    if former.oob_score is not None and forest.oob_score is not None:
        before, after = former.oob_score, forest.oob_score
        if np.isfinite([before, after]).all():
            return RevocationScores(measure=measure, rows="out of bag", before=before, after=after)
    return None


def _replace_forest(model: FederatedForest, forest: GrownForest, leaver: str) -> None:
    """The model is from now on the one without the leaver: it expects a table without the leaver's columns."""
    origin = model._origin
    if origin.dealing is not None:
        gone = set(origin.dealing[leaver])
        names = tuple(name for name in origin.names if name not in gone)
        model._origin = replace(origin, names=names, dealing={p: c for p, c in origin.dealing.items() if p != leaver})
        if hasattr(model, "feature_names_in_"):
            model.feature_names_in_ = np.array(names, dtype=object)
    model.n_features_in_ = len(forest.coordinator.feature_keys)
    model._set_forest(forest)
