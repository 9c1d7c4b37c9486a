"""All horizontal methods, in one place: what can be ordered, who coordinates it, and what a client does.

To add a method: a plan (a subclass of `GrowthPlan` with a tag of its own, beside its generator), the coordinator's
generator, and a client; then one member of `HorizontalPlan` and one line of `METHODS` here. In process
(`woodlot.federation.local_rows`) and between organisations (`woodlot.jobs.rows`) both go through `protocol_of` and
`client_of`, so nothing else has to know the method. A plan is all that a user orders: it is signed, and every client is
given it to compare with what the coordinator asks (`HorizontalClient.check_ordered`).

A client that releases something under differential privacy calls ``holdings.client_budget.charge(...)`` before it
answers, and answers with what the call returns: see `woodlot.privacy.client_budget.ClientBudget`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from woodlot.exceptions import DataError
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.collaborative import CollaborativeClient, CollaborativePlan, collaborative_forest
from woodlot.protocols.rows.extra_client import ExtraTreesClient
from woodlot.protocols.rows.extra_plan import ExtraTreesPlan
from woodlot.protocols.rows.extra_trees import extra_trees
from woodlot.protocols.rows.local_forests import LocalClient, LocalPlan, local_forests
from woodlot.protocols.rows.lossless import LosslessClient, LosslessPlan, lossless_forest
from woodlot.protocols.rows.private import PrivateClient, PrivatePlan, private_forest
from woodlot.protocols.rows.row_client import Holdings, HorizontalClient
from woodlot.protocols.rows.schema import Rounds

HorizontalPlan: TypeAlias = LocalPlan | CollaborativePlan | ExtraTreesPlan | LosslessPlan | PrivatePlan
"""What can be ordered; on the wire the tag ``method`` tells which."""


class Method(NamedTuple):
    """The two sides of a method.

    Attributes
    ----------
    protocol : callable
        From the plan and the names of the clients to the coordinator's generator, which returns the parts of the whole
        model; see `whole_forest`.
    client : callable
        From the plan and a client's `Holdings` to the client.
    """

    protocol: Callable[[Any, Sequence[str]], Rounds]
    client: Callable[[Any, Holdings], HorizontalClient]


def protocol_of(plan: HorizontalPlan, clients: Sequence[str]) -> Rounds:
    """The coordinator's side of a method."""
    return METHODS[type(plan)].protocol(plan, clients)


def client_of(plan: HorizontalPlan, holdings: Holdings) -> HorizontalClient:
    """A client's side of a method."""
    return METHODS[type(plan)].client(plan, holdings)


def weighs_rows(plan: HorizontalPlan) -> bool:
    """Whether clients have weights of rows."""
    return isinstance(plan, LosslessPlan | LocalPlan) and plan.row_weights is True


def counts_copies(plan: HorizontalPlan) -> bool:
    """Whether a weight of a row is the number of times that it counts, since no rows are drawn."""
    return isinstance(plan, LosslessPlan) and not plan.bootstrap


def check_division(plan: HorizontalPlan, *, by_class: bool) -> None:
    """Refuse differential privacy of rows that were divided class by class.

    A row's side then depends on the labels of others: one row, or one label, less changes which other rows take part,
    and what they tell. A guarantee for a change of one row does not hold for that.

    Raises
    ------
    DataError
        With what can be done.
    """
    leaves_only = isinstance(plan, CollaborativePlan) and plan.dp_leaf_epsilon is not None
    if by_class and (plan.protects or leaves_only):
        raise DataError(
            "rows that were divided by class are not learnt from with differential privacy: which rows are in the part "
            "depends on other rows' labels, so its epsilon would not hold. Split without stratify"
        )


def _local_client(plan: LocalPlan, own: Holdings) -> HorizontalClient:
    table, target, weights = own.table, own.target, own.target.weights
    if weights is not None and not (weights > 0).any():  # a client of no weight grows no trees, as one without rows
        table, target = table.take(np.empty(0, np.int64)), Target((), np.empty(0, np.int64), np.empty(0))
    return LocalClient(own.name, table, target, secret=own.bootstrap_secret, plan=plan, n_jobs=own.n_jobs)


def _collaborative_client(plan: CollaborativePlan, own: Holdings) -> HorizontalClient:
    return CollaborativeClient(
        own.name,
        own.table,
        own.target,
        sums=own.sum_client(plan.sums, plan.allow_two),
        secret=own.bootstrap_secret,
        plan=plan,
        n_jobs=own.n_jobs,
        client_budget=own.client_budget,
        job=own.job,
        dataset=own.dataset,
    )


def _lossless_client(plan: LosslessPlan, own: Holdings) -> HorizontalClient:
    # without the client's own secret: all clients must draw alike
    sums = own.sum_client(plan.sums, plan.allow_two, quorum=plan.needed)
    blocks = None if own.blocks is None else own.blocks()
    return LosslessClient(
        own.name,
        own.table,
        own.target,
        sums=sums,
        plan=plan,
        n_jobs=own.n_jobs,
        blocks=blocks,
        device=own.device,
    )


METHODS: dict[type[Any], Method] = {
    LocalPlan: Method(local_forests, _local_client),
    CollaborativePlan: Method(collaborative_forest, _collaborative_client),
    ExtraTreesPlan: Method(extra_trees, lambda plan, own: ExtraTreesClient(own, plan)),
    LosslessPlan: Method(lossless_forest, _lossless_client),
    PrivatePlan: Method(private_forest, lambda plan, own: PrivateClient(own, plan)),
}
