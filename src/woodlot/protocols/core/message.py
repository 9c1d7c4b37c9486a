"""What every wire message is made of: typed fields, checked arrays, and a statement of what it discloses.

A message is a frozen struct with keyword-only fields. It is checked when it is built and again when it is
decoded, so a handler never meets a field of another type, an array of another dtype, or a message that says
nothing about who learns what. The meaning of a message never changes: a new meaning is a new message.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeAlias,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.decoding import converted, converter
from woodlot.exceptions import (
    ApprovalPendingError,
    DataError,
    JournalError,
    LocalProtocolError,
    MissingExtraError,
    PartyAwayError,
    PolicyError,
    RemoteProtocolError,
    WoodlotError,
)


class Role(StrEnum):
    """Who a message comes from or goes to."""

    coordinator = "coordinator"
    party = "party"
    label_holder = "label holder"
    user = "user"
    helper = "helper"
    key_service = "key service"
    second_server = "second server"
    dealer = "dealer"


TO_PARTY = (Role.coordinator, Role.party)
FROM_PARTY = (Role.party, Role.coordinator)
TO_HOLDER = (Role.coordinator, Role.label_holder)
FROM_HOLDER = (Role.label_holder, Role.coordinator)
TO_USER = (Role.coordinator, Role.user)
FROM_USER = (Role.user, Role.coordinator)
"""Sender and receiver, as a `Disclosure` begins."""


@dataclass(frozen=True)
class Disclosure:
    """What a message tells its receiver.

    Parameters
    ----------
    sender, receiver : Role
        Who sends the message and who reads it.
    reveals : str
        In plain words, what the receiver learns.
    form : {"clear", "encoded", "encrypted"}
        Whether the values travel as they are, under a secret code (permuted, masked, hashed), or encrypted.

    """

    sender: Role
    receiver: Role
    reveals: str
    form: Literal["clear", "encoded", "encrypted"]


# --- arrays as fields ---


ARRAY_DTYPES = frozenset({"|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8"})
"""Every dtype that may travel: little endian, plain numbers."""


@dataclass(frozen=True)
class ArraySpec:
    """The dtypes and the number of dimensions that an array field accepts."""

    dtypes: tuple[str, ...]
    ndim: int = 1

    def __post_init__(self) -> None:
        unknown = set(self.dtypes) - ARRAY_DTYPES
        if unknown or not self.dtypes:
            raise TypeError(f"dtypes that cannot travel: {sorted(unknown)}; use some of {sorted(ARRAY_DTYPES)}")

    def check(self, value: object) -> None:
        """Raise ``ValueError`` unless `value` is an array of one of these dtypes and this many dimensions."""
        if not isinstance(value, np.ndarray):
            raise ValueError(f"expected an array, got {type(value).__name__}")
        if value.dtype.str not in self.dtypes:
            raise ValueError(f"expected an array of dtype {' or '.join(self.dtypes)}, got {value.dtype.str}")
        if value.ndim != self.ndim:
            raise ValueError(f"expected an array of {self.ndim} dimension(s), got {value.ndim}")


U8: TypeAlias = Annotated[NDArray[np.uint8], ArraySpec(("|u1",))]
U16: TypeAlias = Annotated[NDArray[np.uint16], ArraySpec(("<u2",))]
U32: TypeAlias = Annotated[NDArray[np.uint32], ArraySpec(("<u4",))]
U64: TypeAlias = Annotated[NDArray[np.uint64], ArraySpec(("<u8",))]
I32: TypeAlias = Annotated[NDArray[np.int32], ArraySpec(("<i4",))]
I64: TypeAlias = Annotated[NDArray[np.int64], ArraySpec(("<i8",))]
F32: TypeAlias = Annotated[NDArray[np.float32], ArraySpec(("<f4",))]
F64: TypeAlias = Annotated[NDArray[np.float64], ArraySpec(("<f8",))]
UInt: TypeAlias = Annotated[NDArray[np.unsignedinteger[Any]], ArraySpec(("|u1", "<u2", "<u4", "<u8"))]
U8x2: TypeAlias = Annotated[NDArray[np.uint8], ArraySpec(("|u1",), ndim=2)]
F64x2: TypeAlias = Annotated[NDArray[np.float64], ArraySpec(("<f8",), ndim=2)]


# --- what users send ---


_LARGEST = sys.float_info.max

Finite: TypeAlias = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
"""A number that is neither infinite nor NaN, which compares with nothing and so passes by every later limit."""

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=200)]
"""What a job, a model or a party is asked for by: it comes back in errors and logs."""


def _unaliased(hint: Any) -> Any:
    """Return what an alias made by a ``type`` statement stands for, and any other type as it is.

    Such an alias (a ``TypeAliasType``) hides what it names from `get_origin` and `get_args`. ``NDArray`` is one from
    NumPy 2.5 on. It is known by its attributes, since Python 3.11 has no such class, only ``typing_extensions`` has.
    """
    alias = get_origin(hint) or hint
    if not (hasattr(alias, "__value__") and hasattr(alias, "__type_params__")):
        return hint
    value = alias.__value__
    given = dict(zip(alias.__type_params__, get_args(hint), strict=False))
    # Parameters by name: the right side of an alias may use them in another order than the left side lists them.
    parameters: tuple[Any, ...] = getattr(value, "__parameters__", ())
    if given and parameters:
        value = value[tuple(given.get(parameter, parameter) for parameter in parameters)]
    return _unaliased(given.get(value, value))


def _check_bounds(hint: Any) -> None:
    """Refuse, in what users send, a type that lets in numbers or texts without bounds."""
    hint = _unaliased(hint)
    if hint is float:
        raise TypeError("users could send NaN: declare it as Finite")
    if hint is str:
        raise TypeError("users could send a text of any length: declare it as Name")
    if get_origin(hint) is Annotated:
        notes = [note for note in hint.__metadata__ if isinstance(note, msgspec.Meta)]
        bounded = {
            float: any(None not in (note.ge, note.le) for note in notes),
            str: any(note.max_length is not None for note in notes),
        }
        parts = () if bounded.get(hint.__origin__) else (hint.__origin__,)
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        parts = tuple(get_type_hints(hint, include_extras=True).values())
    else:
        parts = () if get_origin(hint) is Literal else get_args(hint)
    for part in parts:
        _check_bounds(part)


def _holds_array(hint: Any) -> bool:
    """Whether an array can occur in a value of this type; refuses types that a decoder could not check."""
    hint = _unaliased(hint)
    if hint is Any or hint is object:
        raise TypeError("a field of any type cannot be checked; name its type")
    if hint is np.ndarray or get_origin(hint) is np.ndarray:
        return True
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        if not (hint.__struct_config__.frozen and hint.__struct_config__.forbid_unknown_fields):
            raise TypeError(f"{hint.__name__} must be frozen and forbid unknown fields, as messages do")
        parts = [*get_type_hints(hint, include_extras=True).values()]
    elif get_origin(hint) is Annotated:
        parts = [hint.__origin__]
    else:
        parts = [part for part in get_args(hint) if part is not Ellipsis and get_origin(hint) is not Literal]
    return any(_holds_array(part) for part in parts)


def _checker(hint: Any) -> Callable[[Any], object]:
    """Return a function that raises ``ValueError`` for a value that does not have this type."""
    hint = _unaliased(hint)
    if not _holds_array(hint):
        return converter(hint)  # its error is a ValueError
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for note in hint.__metadata__:
            if isinstance(note, ArraySpec):
                return note.check
    elif origin in (Union, types.UnionType) and len(arguments) == 2 and types.NoneType in arguments:
        present = _checker(next(arm for arm in arguments if arm is not types.NoneType))
        return lambda value: None if value is None else present(value)
    elif origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return functools.partial(_check_each, _checker(arguments[0]))
    elif origin is dict and arguments[0] is str:
        return functools.partial(_check_values, _checker(arguments[1]))
    raise TypeError(
        "arrays travel as one of the aliases (U8, F64, ...), alone, optional, in a tuple[U8, ...] "
        f"or in a dict[str, U8]; not as {hint}"
    )


def _check_each(check: Callable[[Any], object], value: Any) -> None:
    if not isinstance(value, tuple):
        raise ValueError(f"expected a tuple of arrays, got {type(value).__name__}")
    for item in value:
        check(item)


def _check_values(check: Callable[[Any], object], value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"expected a dict of arrays, got {type(value).__name__}")
    for key, item in value.items():
        converted(key, str)
        check(item)


# --- messages ---


_registry: dict[str, type[Message]] = {}
_checks: dict[type, tuple[tuple[str, Callable[[Any], object]], ...]] = {}


class _MessageMeta(msgspec.StructMeta):
    """Makes every field keyword-only, and registers every message that is not declared abstract."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        abstract: bool = False,
        **config: Any,
    ) -> _MessageMeta:
        # kw_only is the one setting that msgspec does not hand down to subclasses.
        cls = super().__new__(mcls, name, bases, namespace, kw_only=True, **config)
        if not abstract:
            _register(cls)
        return cls


def _register(cls: Any) -> None:
    name = cls.__name__
    if cls.__post_init__ is not Message.__post_init__:
        raise TypeError(f"message {name} must put its own checks into check(), not into __post_init__")
    if not isinstance(getattr(cls, "discloses", None), Disclosure):
        raise TypeError(f"message {name} must say what it discloses (or be declared abstract=True)")
    if name in _registry:
        raise TypeError(f"message {name} of {cls.__module__} exists already in {_registry[name].__module__}")
    hints = get_type_hints(cls, include_extras=True)
    checks = []
    for field in cls.__struct_fields__:
        try:
            checks.append((field, _checker(hints[field])))
            if cls.discloses.sender is Role.user:
                _check_bounds(hints[field])
        except TypeError as error:
            raise TypeError(f"field {field!r} of message {name}: {error}") from None
    _checks[cls] = tuple(checks)
    _registry[name] = cls


# Decorated for type checkers only: they see the defaults that the metaclass sets.
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, metaclass=_MessageMeta, frozen=True, forbid_unknown_fields=True, eq=False, abstract=True):
    """Base of everything that travels between a coordinator and its parties.

    A subclass sets `discloses` and declares its fields; its class name is its name on the wire. Arrays are
    declared by the aliases of this module (``U8``, ``F64``, ...), alone, as ``U8 | None``, ``tuple[U8, ...]``
    or ``dict[str, U8]``. A base class that never travels is declared with ``abstract=True``. What a user sends has
    numbers that are `Finite`, and for texts a `Name`.

    Messages compare by identity, since arrays have no single truth value: compare their encodings instead.

    Raises
    ------
    LocalProtocolError
        When a message is built with a field of the wrong type.

    """

    discloses: ClassVar[Disclosure]
    repeatable: ClassVar[bool] = False
    """Whether a party gives the same answer however often it is asked, and no later answer depends on it: its bytes,
    and those of the answer, are then not kept in journals, and a job that is rebuilt after a crash goes without it."""

    brief_reply: ClassVar[bool] = False
    """Whether the reply to this request has no arrays, so that a long one is refused before it is received."""

    def __post_init__(self) -> None:
        cls = type(self)
        if cls not in _checks:
            raise TypeError(f"{cls.__name__} is abstract: it never travels")
        for field, check in _checks[cls]:
            try:
                check(getattr(self, field))
            except ValueError as error:
                raise LocalProtocolError(f"field {field!r} of message {cls.__name__}: {error}") from None
        try:
            self.check()
        except ValueError as error:
            raise LocalProtocolError(f"message {cls.__name__}: {error}") from None

    def check(self) -> None:
        """Raise ``ValueError`` where fields, each of the right type, do not go together; for subclasses."""


def registered() -> Mapping[str, type[Message]]:
    """Return every message that can travel, by its name on the wire, in the order of definition."""
    return types.MappingProxyType(_registry)


# --- refusals ---


MAX_REASON = 2_000
"""Characters of why something was not done."""


class Refusal(Message):
    """What a party answers instead of a result: it did not do what was asked, and its state is as before."""

    discloses = Disclosure(
        sender=Role.party,
        receiver=Role.coordinator,
        reveals="that the party refused, and why in its own words; of an internal failure only its type",
        form="clear",
    )

    kind: Literal["data", "protocol", "policy", "internal"]
    reason: str

    def check(self) -> None:
        """A reason is for people to read, not a way to fill the coordinator's logs."""
        if len(self.reason) > MAX_REASON:
            raise ValueError(f"a reason has at most {MAX_REASON} characters, not {len(self.reason)}")

    @classmethod
    def from_exception(cls, error: Exception) -> Self:
        """Return what a party tells the coordinator about `error`.

        The words of Woodlot's own errors are written for the other side; those of any other error may quote
        the party's data, so only its type is told.
        """
        kind: Literal["data", "protocol", "policy"]
        match error:
            case DataError() | MissingExtraError():
                kind = "data"
            case RemoteProtocolError():
                kind = "protocol"
            case PolicyError():
                kind = "policy"
            case _:
                return cls(kind="internal", reason=type(error).__name__[:MAX_REASON])
        return cls(kind=kind, reason=str(error)[:MAX_REASON])

    def to_exception(self, party: str) -> WoodlotError:
        """Return the error that the coordinator raises, as this refusal came from `party`."""
        match self.kind:
            case "data":
                return DataError(f"party {party!r}: {self.reason}")
            case "policy":
                return PolicyError(f"party {party!r}: {self.reason}")
            case "protocol":
                # The party calls its peer wrong, and its peer is this side.
                return LocalProtocolError(f"party {party!r}: {self.reason}")
            case "internal":
                return RemoteProtocolError(f"party {party!r} failed: {self.reason}")


class Unanswered(Refusal):
    """What a party sends when it cannot answer now: the request stays open, and the same number may be asked again.

    Unlike a refusal it is no part of the run: neither side journals it, and a run that it has stopped can be
    resumed when its cause is gone.
    """

    discloses = Disclosure(
        sender=Role.party,
        receiver=Role.coordinator,
        reveals="that the party cannot answer now, and why in general words",
        form="clear",
    )

    def to_exception(self, party: str) -> WoodlotError:
        """Return the error that the coordinator raises, as this came from `party`."""
        if self.kind == "internal":
            return JournalError(f"party {party!r}: {self.reason}")
        return super().to_exception(party)


class Away(Unanswered):
    """Stands for the answer of a party that a round has been ended without (see `Sparing`).

    It is made at the coordinator and journalled there, so that a run that is repeated goes the same way.
    """

    discloses = Disclosure(
        sender=Role.party,
        receiver=Role.coordinator,
        reveals="nothing: it is not sent, but noted by the coordinator in place of an answer that did not come",
        form="clear",
    )

    @classmethod
    def noted(cls) -> Self:
        """Return what is noted: always the same, whatever was waited for and how long."""
        return cls(kind="internal", reason="it was away")

    def to_exception(self, party: str) -> WoodlotError:
        """Return the error of a run that cannot go on without `party`."""
        return PartyAwayError(f"party {party!r}: {self.reason}", (party,))


class ApprovalPending(Unanswered):
    """What a party sends while its owner has yet to approve a job: the request is asked again later.

    As `Unanswered` it is no part of the run. No round goes on without a party that says this.
    """

    discloses = Disclosure(
        sender=Role.party,
        receiver=Role.coordinator,
        reveals="that a person at the party has yet to approve the job; the coordinator tells its user",
        form="clear",
    )

    @classmethod
    def told(cls) -> Self:
        """Return what a party sends: the same for every order."""
        return cls(kind="policy", reason="its owner has not approved this job yet")

    def to_exception(self, party: str) -> WoodlotError:
        """Return the error of a run that waits for the owner of `party`."""
        return ApprovalPendingError(f"party {party!r}: {self.reason}", (party,))


# --- what a protocol yields ---


@dataclass(frozen=True)
class Progress:
    """How far a protocol has come: `done` of `total` steps of a phase, and a few words on the present one.

    Protocols leave the phase out: it is that of the round, and `woodlot.runtime.run` adds it.
    """

    done: int
    total: int
    note: str
    phase: str = ""


@dataclass(frozen=True)
class Sparing:
    """How a round goes on without some of its parties.

    A party that is away for `seconds` stands among the replies with `Away`, and one that refuses with its
    `Refusal`; nothing is raised, unless fewer than `least` parties answer since others are away. Then the round
    fails as any other, and can be resumed. A party that the run went on without cannot be asked again in it.

    Parameters
    ----------
    seconds : float
        For how long a party may be away. One that is connected and at work is waited for.
    least : int
        How many parties must answer.

    """

    seconds: float
    least: int


@dataclass(frozen=True)
class Round:
    """One exchange, yielded by a protocol: a request for each named party, all sent at once.

    Parameters
    ----------
    phase : str
        The part of the protocol that the time of this round counts for.
    requests : dict of str to Message
        At most one request per party.
    progress : Progress, optional
        How far the protocol has come when it yields this round.
    sparing : Sparing, optional
        For a protocol that can do without some of the parties; otherwise a round needs all of them.

    """

    phase: str
    requests: dict[str, Message]
    progress: Progress | None = None
    sparing: Sparing | None = None
