"""What a job may tell whom: the disclosures of the messages that its kind can send, for whoever decides about an order.

The lines are those of docs/who-sees-what.md: both are made from the messages. A kind may send fewer of them than are
listed, by its settings, and no others.
"""

from __future__ import annotations

from types import ModuleType

import msgspec

from woodlot.jobs import job_messages as jobs
from woodlot.jobs import row_job_messages
from woodlot.jobs.catalog import catalog_messages
from woodlot.jobs.delete import delete_messages
from woodlot.jobs.drift import drift_messages
from woodlot.jobs.evaluate import evaluate_messages, pooled_messages
from woodlot.jobs.explain import explanation_messages
from woodlot.jobs.forget import forget_messages
from woodlot.jobs.kind import kind_of
from woodlot.jobs.led import led_messages
from woodlot.jobs.orders import Order
from woodlot.protocols.align import align_messages
from woodlot.protocols.core.message import Message, Role, registered
from woodlot.protocols.core.stakes import STAKES, Stake, stake_of
from woodlot.protocols.hidden import hidden_messages
from woodlot.protocols.linear import dealt_messages, linear_messages
from woodlot.protocols.revocable import growth_messages, key_messages, share_messages
from woodlot.protocols.rows import extra_messages, row_messages
from woodlot.protocols.rows.lossless import lossless_messages
from woodlot.protocols.rows.private import private_messages
from woodlot.protocols.sums import sum_messages
from woodlot.protocols.vertical import explain_messages, forest_messages, score_messages, sealed_messages

_ALWAYS = (jobs.JobOpened,)
_ANSWERS = (jobs.UseModel, jobs.TakeAnswers, jobs.AnswersTaken, jobs.Predictions)
_KEYS = (key_messages, share_messages)
_FOREST = (align_messages, forest_messages, sealed_messages)
_LINEAR = (align_messages, linear_messages)
_ROWS = (row_messages, extra_messages, lossless_messages, private_messages, sum_messages)

_SENDS: dict[str, tuple[ModuleType | type[Message], ...]] = {
    "align": (align_messages,),
    "train": (*_FOREST, hidden_messages, jobs.ModelPart),
    "predict": (*_FOREST, *_KEYS, *_ANSWERS),
    "revoke": (*_FOREST, hidden_messages, jobs.UseModel, jobs.ModelPart, jobs.ReceiptText),
    "forget": (*_FOREST, jobs.ModelPart, forget_messages, jobs.ReceiptText),
    "evaluate": (*_FOREST, *_KEYS, *_ANSWERS, evaluate_messages),
    "explain": (*_FOREST, *_ANSWERS, explain_messages, explanation_messages),
    "drift": (*_FOREST, *_ANSWERS, drift_messages),
    "score": (*_FOREST, score_messages, jobs.UseModel),
    "catalog": (catalog_messages,),
    "delete": (delete_messages,),
    "train-linear": (*_LINEAR, dealt_messages, jobs.ModelPart),
    "predict-linear": (*_LINEAR, *_ANSWERS),
    "evaluate-linear": (*_LINEAR, *_ANSWERS, evaluate_messages),
    "train-revocable": (*_FOREST, growth_messages, *_KEYS, jobs.ModelPart),
    "revoke-revocable": (*_FOREST, growth_messages, *_KEYS, jobs.UseModel, jobs.ModelPart, jobs.ReceiptText),
    "keys": _KEYS,
    "predict-encrypted": (*_KEYS, jobs.Predictions),
    "train-rows": (*_ROWS, jobs.ModelPart),
    "revoke-rows": (*_ROWS, jobs.ModelPart, jobs.ReceiptText),
    "forget-rows": (*_ROWS, jobs.ModelPart, forget_messages, jobs.ReceiptText),
    "predict-rows": (row_job_messages,),
    "evaluate-rows": (row_job_messages, pooled_messages, sum_messages),
}
"""By the name of the kind, the modules of messages and the single messages that its jobs can send."""

_OPEN_ONLY = {module.__name__ for module in (forest_messages, sealed_messages, linear_messages)}
_HIDDEN_ONLY = {module.__name__ for module in (hidden_messages, dealt_messages)}


class ToldLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one message of a job tells.

    Attributes
    ----------
    message : str
        Its type.
    sender, receiver : str
        Who sends it to whom: roles, and the name of the party that leads in place of the coordinator.
    form : {"clear", "encoded", "encrypted"}
        How it travels.
    stake : {"rows", "numbers"}
        Whether single rows can be worked out from it, or only numbers and names.
    reveals : str
        What the receiver learns.

    """

    message: str
    sender: str
    receiver: str
    form: str
    stake: Stake
    reveals: str


def told_by(order: Order) -> tuple[ToldLine, ...]:
    """What a job may tell whom, the worst first; messages that tell nothing of anybody's data are left out."""
    hidden = getattr(getattr(order, "plan", None), "protection", "open") == "hidden"
    lines = []
    for message in messages_of(order):
        if message.__module__ in (_OPEN_ONLY if hidden else _HIDDEN_ONLY) and order.kind != "revoke":
            continue
        told, stake = message.discloses, stake_of(message.__name__)
        if stake == "nothing":
            continue
        sender, receiver = (_named(role, order, message) for role in (told.sender, told.receiver))
        lines.append(
            ToldLine(
                message=message.__name__,
                sender=sender,
                receiver=receiver,
                form=told.form,
                stake=stake,
                reveals=told.reveals,
            )
        )
    return tuple(sorted(lines, key=lambda line: STAKES.index(line.stake)))


def messages_of(order: Order) -> tuple[type[Message], ...]:
    """The messages that jobs of the order's kind can send, of the kinds of another package all that it declares."""
    every = tuple(registered().values())
    sends = _SENDS.get(order.kind)
    if sends is None:
        package = type(order).__module__.partition(".")[0]
        return _ALWAYS + tuple(message for message in every if message.__module__.partition(".")[0] == package)
    led = (led_messages,) if kind_of(order).led and order.leader is not None else ()
    modules = {part.__name__ for part in (*sends, *led) if isinstance(part, ModuleType)}
    single = {part for part in sends if isinstance(part, type)} | set(_ALWAYS)
    return tuple(message for message in every if message.__module__ in modules or message in single)


def _named(role: Role, order: Order, message: type[Message]) -> str:
    """A role in words: where a party leads, it has the coordinator's part in all that is not relayed openly."""
    relayed = message.__module__ in (align_messages.__name__, led_messages.__name__, jobs.__name__)
    if role is Role.coordinator and order.leader is not None and not relayed:
        return f"{order.leader} (leads)"
    return role.value
