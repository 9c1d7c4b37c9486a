"""How a scoring is opened, at the coordinator."""

from __future__ import annotations

from collections.abc import Generator

from woodlot.jobs.job_messages import OpenJob
from woodlot.jobs.kind import CoordinatorHost
from woodlot.jobs.orders import ScoreOrder
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.vertical import score_messages as msg
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.protocols.vertical.score import Scorer


def open_job(
    order: ScoreOrder, opening: OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Scorer]:
    """Bring the order to every party, and have those that split nodes get ready."""
    forest = host.store.forest(order.model).coordinator
    scorer = Scorer(forest, order.parties, order.vote)
    if host.rows is None:  # else the coordinator has done that, and a party leads
        yield Round("open", dict.fromkeys(order.parties, opening))
    ready = msg.OpenScoring(model=order.model, forest=forest_id_of(forest))
    if scorer.asked:
        yield Round("score", dict.fromkeys(scorer.asked, ready))
    return scorer
