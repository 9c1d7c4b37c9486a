"""What the coordinator of every host does with a forest: grow it, judge it, share it, and ask it for answers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Literal, NamedTuple

from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, splitting_parties
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.leavers import Level
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.vertical.forest_messages import Wire
from woodlot.protocols.vertical.out_of_bag import OutOfBagResult, score_out_of_bag
from woodlot.protocols.vertical.predict import Prediction, predict_in_one_round, predict_node_by_node
from woodlot.protocols.vertical.regrow import Regrown, regrow
from woodlot.protocols.vertical.reveal import reveal_splits
from woodlot.protocols.vertical.sealed import predict_sealed
from woodlot.protocols.vertical.train import train
from woodlot.trees.predict import Vote
from woodlot.trees.sampling import DrawsByRow

How = Literal["one-round", "classical", "sealed"]
"""How parties are asked for what their parts of a forest answer."""


class CompletedForest(NamedTuple):
    """A forest that has grown, and what is known of it.

    Attributes
    ----------
    forest : CoordinatorForest
        The coordinator's part.
    oob : OutOfBagResult
        How good it is, where the plan asks for it.
    unwilling : tuple of str
        Those of the parties with splits that do not share the model.
    shared : dict of str to PartyForest
        Their parts, where all of them do.

    """

    forest: CoordinatorForest
    oob: OutOfBagResult
    unwilling: tuple[str, ...]
    shared: dict[str, PartyForest]


def grow_forest(
    plan: ForestPlan,
    parties: tuple[str, ...],
    holder: str,
    n_jobs: int,
    *,
    reveal: bool = True,
    by_row: DrawsByRow | None = None,
) -> Generator[Round, dict[str, Message], CompletedForest]:
    """Grow a forest and complete it; parameters as for `train` and `complete_forest`."""
    forest = yield from train(plan, parties, holder, n_jobs, by_row)
    return (yield from complete_forest(plan, forest, holder, n_jobs, reveal=reveal))


def regrow_forest(
    plan: ForestPlan,
    former: CoordinatorForest,
    leaver: str,
    level: Level,
    holder: str,
    n_jobs: int,
    patched: bool,
    *,
    reveal: bool = True,
    by_row: DrawsByRow | None = None,
) -> Generator[Round, dict[str, Message], tuple[Regrown, CompletedForest]]:
    """Regrow a forest without one of its parties and complete it; parameters as for `regrow`."""
    regrown = yield from regrow(plan, former, leaver, level, holder, n_jobs, patched, by_row)
    return regrown, (yield from complete_forest(plan, regrown.forest, holder, n_jobs, reveal=reveal))


def complete_forest(
    plan: ForestPlan, forest: CoordinatorForest, holder: str, n_jobs: int, *, reveal: bool = True
) -> Generator[Round, dict[str, Message], CompletedForest]:
    """Score a forest out of bag, and get the splits of its parties where all agree.

    Parameters
    ----------
    plan : ForestPlan
        What it was grown by.
    forest : CoordinatorForest
        The coordinator's part.
    holder : str
        The label holder.
    n_jobs : int
        Threads.
    reveal : bool
        Whether the splits are asked for at all.

    """
    oob = yield from score_out_of_bag(forest, holder, plan.out_of_bag, n_jobs)
    unwilling = tuple(party for party in splitting_parties(forest) if party not in forest.sharing)
    shared = (yield from reveal_splits(forest)) if reveal and not unwilling else {}
    return CompletedForest(forest, oob, unwilling, shared)


def predict_forest(
    forest: CoordinatorForest,
    present: Sequence[str],
    n_rows: int,
    *,
    how: How,
    wire: Wire,
    vote: Vote,
    n_jobs: int,
    shuffled: tuple[int, int] | None = None,
) -> Generator[Round, dict[str, Message], Prediction]:
    """Outputs of every row, and which rows are uncertain; other parameters as for `predict_in_one_round`.

    Parameters
    ----------
    how : {"one-round", "classical", "sealed"}
        All splits at once, node by node as in the paper, or under seal.

    """
    if how == "classical":
        return (yield from predict_node_by_node(forest, present, n_rows, vote))
    if how == "sealed":
        return (yield from predict_sealed(forest, present, n_rows, vote, shuffled))
    return (yield from predict_in_one_round(forest, present, n_rows, wire, vote, n_jobs, shuffled))
