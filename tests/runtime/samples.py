"""Messages for the tests of the runtime: one with every kind of field, and a small question and answer."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from woodlot.protocols.core.message import (
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Disclosure,
    F64x2,
    Message,
    Role,
    U8x2,
    UInt,
)


class Everything(Message):
    """Has every kind of field that a message may have."""

    discloses = Disclosure(Role.coordinator, Role.party, "everything there is", "clear")

    number: int
    ratio: float
    name: str
    flag: bool
    blob: bytes
    mode: Literal["grow", "adjust"]
    role: Role
    maybe: int | None
    numbers: tuple[int, ...]
    names: list[str]
    settings: dict[str, float]
    u8: U8
    u16: U16
    u32: U32
    u64: U64
    i32: I32
    i64: I64
    f32: F32
    f64: F64
    uint: UInt
    u8x2: U8x2
    f64x2: F64x2
    optional: U8 | None = None
    several: tuple[U8, ...] = ()
    by_name: dict[str, F64] = msgspec.field(default_factory=dict)


class Look(Message):
    """Asks a party for what it can tell again at any time."""

    discloses = Disclosure(Role.coordinator, Role.party, "a number", "clear")
    repeatable: ClassVar[bool] = True

    number: int


class Question(Message):
    """Asks a party for something."""

    discloses = Disclosure(Role.coordinator, Role.party, "what is asked", "clear")

    number: int = 0
    data: U8 | None = None


class Answer(Message):
    """Answers a question."""

    discloses = Disclosure(Role.party, Role.coordinator, "the answer | and no more", "encoded")

    number: int = 0
    party: str = ""
    data: U8 | None = None
