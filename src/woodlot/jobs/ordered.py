"""Holds jobs over columns to what the user has signed: a coordinator that asks for more, or otherwise, is refused.

Each class here watches the messages of one kind of order. `check` refuses a message and changes nothing; `note` is told
of every message that the party has then answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Protocol

import msgspec
import numpy as np

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.orders import PredictOrder
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Message, Role
from woodlot.protocols.linear import dealt_messages, linear_messages
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.protocols.linear.linear_train import start_of
from woodlot.protocols.revocable import growth_messages
from woodlot.protocols.revocable.key_messages import TestRows
from woodlot.protocols.sums.sum_messages import OpenSums, StartSums
from woodlot.protocols.vertical import forest_messages
from woodlot.protocols.vertical.explain_messages import AskAllSides, AskExplained, AskRowValues
from woodlot.protocols.vertical.out_of_bag import curve_sizes
from woodlot.protocols.vertical.sealed_messages import AskSealed
from woodlot.protocols.vertical.start import is_start_of, share_message
from woodlot.runtime.codec import encode

ASKED: dict[str, tuple[type[Message], ...]] = {
    "one-round": (forest_messages.AskDecisions,),
    "classical": (forest_messages.AskNodes,),
    "sealed": (OpenSums, StartSums, AskSealed),
    "encrypted-splits": (TestRows,),
}
"""What a prediction asks of a party, by how it was ordered."""

_Shuffle = tuple[int | None, int]


class PlanWatch(Protocol):
    """Compares what is asked with what was ordered."""

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        ...

    def note(self, message: Message) -> None:
        """The party has answered this message."""
        ...


class Once:
    """Lets one question through: the same one as often as it comes, and no other.

    For answers that tell a little of many labels at a time: who could ask again and again would learn each of them.
    """

    def __init__(self) -> None:
        self._asked: bytes | None = None

    @property
    def answered(self) -> bool:
        """Whether the question was answered."""
        return self._asked is not None

    def check(self, message: Message) -> None:
        """Refuse another question than the one that was answered."""
        if self._asked not in (None, _digest(message)):
            raise RemoteProtocolError(f"{type(message).__name__} is answered once in a job, and this is another one")

    def note(self, message: Message) -> None:
        """This question was answered."""
        self._asked = _digest(message)


class OrderedTraining:
    """A training does what its plan says: its trees, its rules, and at most one score out of bag."""

    def __init__(self, plan: ForestPlan, n_rows: int) -> None:
        self._plan, self._n_rows = plan, n_rows
        self._planted = 0
        self._judged = Once()

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        if not self._is_ordered(message):
            raise _not_ordered(message)
        if isinstance(message, forest_messages.OutOfBagAnswers):
            self._judged.check(message)

    def _is_ordered(self, message: Message) -> bool:
        plan, left = self._plan, self._plan.n_estimators - self._planted
        match message:
            case forest_messages.OpenTraining():
                return message.max_bins == plan.max_bins and self._planted == 0
            case forest_messages.ShareLabels():
                return _same(message, share_message(plan))
            case forest_messages.GrowthStart():
                return is_start_of(plan, message, self._n_rows)
            case forest_messages.PlantTrees():
                due = message.first_tree == self._planted and message.n_trees <= left
                return due and plan.may_try(message.candidates)
            case forest_messages.GrowLevel():
                return plan.may_try(message.candidates)
            case forest_messages.OutOfBagAnswers():
                return plan.out_of_bag is not None and left == 0 and _is_curve(message, plan.n_estimators)
            case forest_messages.AskDecisions():  # only to score out of bag
                return plan.out_of_bag is not None and _is_plain(message)
        return not isinstance(message, ASKED["classical"] + ASKED["sealed"])

    def note(self, message: Message) -> None:
        """The party has answered this message."""
        if isinstance(message, forest_messages.PlantTrees):
            self._planted += message.n_trees
        elif isinstance(message, forest_messages.OutOfBagAnswers):
            self._judged.note(message)


class OrderedRegrowing:
    """A revocation grows each tree again at most once, by the plan of its training, and scores as the training did."""

    def __init__(self, plan: ForestPlan, n_rows: int, n_trees: int) -> None:
        self._plan, self._n_rows, self._n_trees = plan, n_rows, n_trees
        self._planted: set[int] = set()
        self._judged = Once()

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        if not self._is_ordered(message):
            raise _not_ordered(message)
        if isinstance(message, forest_messages.OutOfBagAnswers):
            self._judged.check(message)

    def _is_ordered(self, message: Message) -> bool:
        match message:
            case forest_messages.OpenTraining():
                return message.max_bins == self._plan.max_bins and not self._planted
            case forest_messages.ShareLabels():
                return _same(message, share_message(self._plan))
            case forest_messages.GrowthStart():
                return is_start_of(self._plan, message, self._n_rows)
            case forest_messages.ReplantTrees():
                new = self._planted.isdisjoint(message.trees.tolist())
                return new and self._plan.may_try(message.candidates)
            case forest_messages.RegrowLevel():
                return self._plan.may_try(message.candidates)
            case forest_messages.OutOfBagAnswers():
                return self._plan.out_of_bag is not None and _is_curve(message, self._n_trees)
            case forest_messages.AskDecisions():
                return self._plan.out_of_bag is not None and _is_plain(message)
        return not isinstance(message, ASKED["classical"] + ASKED["sealed"])

    def note(self, message: Message) -> None:
        """The party has answered this message."""
        if isinstance(message, forest_messages.ReplantTrees):
            self._planted |= set(message.trees.tolist())
        elif isinstance(message, forest_messages.OutOfBagAnswers):
            self._judged.note(message)


class OrderedPrediction:
    """A prediction is asked for as was ordered: in this form, of these parties, one feature shuffled or none."""

    def __init__(self, order: PredictOrder) -> None:
        self._order = order
        self._shuffle: _Shuffle | None = None

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        order = self._order
        ordered = isinstance(message, ASKED[order.how])
        if isinstance(message, forest_messages.AskDecisions):
            ordered &= message.wire == order.wire
        if isinstance(message, forest_messages.AskDecisions | AskSealed):
            ordered &= self._may_shuffle((message.shuffled, message.seed))
        if isinstance(message, OpenSums | AskSealed):
            ordered &= set(message.clients) <= set(order.parties)
        if not ordered:
            raise _not_ordered(message)

    def _may_shuffle(self, shuffle: _Shuffle) -> bool:
        """Every way to shuffle shows other outcomes: one is paid for."""
        feature, seed = shuffle
        ordered = self._order.shuffled
        if feature is not None and (ordered is None or seed != ordered[1]):
            return False
        return self._shuffle in (None, shuffle)

    def note(self, message: Message) -> None:
        """The party has answered this message."""
        if isinstance(message, forest_messages.AskDecisions | AskSealed):
            self._shuffle = (message.shuffled, message.seed)


class OrderedExplanation:
    """An explanation asks what may be shown, for sides at all nodes and, where these are told, for values."""

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        if not isinstance(message, AskExplained | AskAllSides | AskRowValues):
            raise _not_ordered(message)

    def note(self, message: Message) -> None:
        """The party has answered this message."""


class OrderedScore:
    """Where no plan says how a forest is grown here: its rows are scored out of bag, and nothing else is asked."""

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        if not isinstance(message, forest_messages.AskDecisions) or not _is_plain(message):
            raise _not_ordered(message)

    def note(self, message: Message) -> None:
        """The party has answered this message."""


class OrderedReveal:
    """A forest that was grown hidden: its splits are asked for where all parties share the model, and nothing else."""

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        if not isinstance(message, forest_messages.RevealSplits):
            raise _not_ordered(message)

    def note(self, message: Message) -> None:
        """The party has answered this message."""


class OrderedConstruction:
    """A revocable forest is constructed once, and has as many roots as were ordered: other rows are not asked about."""

    def __init__(self, n_trees: int) -> None:
        self._left = n_trees
        self._begun = False

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        again = isinstance(message, growth_messages.OpenConstruction) and self._begun
        if again or (isinstance(message, growth_messages.ExpandLeaves) and len(message.sizes) > self._left):
            raise _not_ordered(message)

    def note(self, message: Message) -> None:
        """The party has answered this message."""
        if isinstance(message, growth_messages.ExpandLeaves):
            self._begun = True
            self._left -= len(message.sizes)


class OrderedDescent:
    """A linear model is fitted as was ordered, in at most as many steps.

    ``parties``: those of the order; residuals are opened for no others.
    """

    def __init__(self, plan: LinearPlan, parties: Collection[str]) -> None:
        self._plan, self._parties = plan, parties
        self._asked: dict[type[Message], int] = {}

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        plan, asked = self._plan, self._asked.get(type(message), 0)
        match message:
            case linear_messages.StartLinear():
                ordered = _same(message, linear_messages.StartLinear(**start_of(plan)))
            case dealt_messages.StartHidden():
                start = dealt_messages.StartHidden(**start_of(plan), columns=message.columns)
                ordered = _same(message, start) and set(message.columns) <= set(self._parties)
            case dealt_messages.OpenDealt():
                *others, last = message.parties or ("",)
                ordered = message.holder in self._parties and set(others) <= set(self._parties)
                ordered &= last == message.dealer == Role.dealer
            case linear_messages.Advance():
                ordered = asked < plan.max_iter
            case linear_messages.Descend():  # of many scores at once it would tell the products of all rows
                ordered = asked <= plan.max_iter and plan.may_score(message.residuals.shape[1])
            case dealt_messages.OpenDescent():
                ordered = plan.may_score(message.n_scores) and message.tol == plan.tol
            case dealt_messages.DescendHidden() | dealt_messages.DescendOwn() | dealt_messages.MaskSlopes():
                ordered = asked <= plan.max_iter  # once more than there are steps
            case linear_messages.AskScores():  # of the training's rows: who may predict is asked in another job
                ordered = False
            case _:
                ordered = True
        if not ordered:
            raise _not_ordered(message)

    def note(self, message: Message) -> None:
        """The party has answered this message."""
        self._asked[type(message)] = self._asked.get(type(message), 0) + 1


def _is_plain(message: forest_messages.AskDecisions) -> bool:
    return message.wire == "decisions" and message.shuffled is None


def _is_curve(message: forest_messages.OutOfBagAnswers, n_trees: int) -> bool:
    return np.array_equal(message.sizes, curve_sizes(n_trees))


def _same(message: Message, ordered: Message) -> bool:
    """Whether two messages without arrays say the same."""
    return msgspec.structs.asdict(message) == msgspec.structs.asdict(ordered)


def _digest(message: Message) -> bytes:
    return hashlib.sha256(encode(message)).digest()


def _not_ordered(message: Message) -> RemoteProtocolError:
    return RemoteProtocolError(f"the order does not ask for {type(message).__name__}, or not like this")
