"""A party, and the label holder that leads, in a hidden training between organisations."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.jobs.hidden.ordered_hidden import OrderedHidden
from woodlot.jobs.home import TakenOrder
from woodlot.jobs.led.dealing import DealtSigner
from woodlot.jobs.orders import TrainOrder
from woodlot.protocols.core.agreement import Entropy
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.hidden.hidden_messages import KeepSplits
from woodlot.protocols.hidden.hidden_party import HiddenParty
from woodlot.protocols.hidden.hidden_train import HiddenLeader

HIDDEN = tuple(HiddenParty.handlers)
"""What a party is asked in a hidden training."""


class HiddenPart:
    """A party that is not the label holder.

    Parameters
    ----------
    taken : TakenOrder
        What was ordered.
    rows : int64 array
        Its own row of each common row.
    table : Table
        These rows of its features.

    """

    def __init__(self, taken: TakenOrder[TrainOrder], rows: NDArray[np.int64], table: Table) -> None:
        home, order, n_rows = taken.home, taken.order, len(rows)
        rules = order.plan.rules(n_rows, n_rows)
        self._watch = OrderedHidden(order, n_rows)
        self._party = HiddenParty(
            home.identity.name,
            table,
            job=order.job,
            signer=DealtSigner(home.identity, home.trust, lambda: home.replays(order.job), order.coordinator),
            min_node=max(rules.min_samples_split, 2 * rules.min_samples_leaf),
            **_own(taken, rows),
        )

    def handle(self, message: Message) -> Message:
        """Answer what was ordered."""
        self._watch.check(message)
        reply = self._party.handle(message)
        self._watch.note(message)
        return reply

    def grown(self, message: Message) -> PartyForest | None:
        """This party's part of the forest, where this message has told it."""
        return self._party.grown_forest() if isinstance(message, KeepSplits) else None


def hidden_leader(taken: TakenOrder[TrainOrder], rows: NDArray[np.int64], table: Table, target: Target) -> HiddenLeader:
    """The label holder, who leads; parameters as for `HiddenPart`."""
    return HiddenLeader(taken.home.identity.name, table, target, **_own(taken, rows))


def _own(taken: TakenOrder[TrainOrder], rows: NDArray[np.int64]) -> dict[str, Any]:
    home = taken.home
    return {
        "entropy": _entropy(taken, rows),
        "secret": home.store.secret_for("forest", "codes"),
        "shares_model": home.policy.share_model,
        "n_jobs": home.n_jobs,
    }


def _entropy(taken: TakenOrder[TrainOrder], rows: NDArray[np.int64]) -> Entropy:
    """This party's secrets in the job: others for other data, so that no two contents are hidden alike."""
    part, store = taken.part, taken.home.store
    about = hashlib.sha256(f"{taken.loaded.digest} {part.label!r} {part.weight!r} ".encode() + rows.tobytes())
    return lambda purpose: store.secret_for(taken.job, f"hidden {purpose} {about.hexdigest()}")
