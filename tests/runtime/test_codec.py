from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.message import Message, Refusal, Role
from woodlot.runtime import codec
from woodlot.runtime.codec import MAX_HEADER, decode, encode

from .samples import Answer, Everything, Question


def vectors(dtype: str) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.dtype(dtype), st.integers(0, 9))


def matrices(dtype: str) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.dtype(dtype), st.tuples(st.integers(0, 4), st.integers(0, 4)))


MESSAGES = st.builds(
    Everything,
    number=st.integers(-(2**63), 2**64 - 1),
    ratio=st.floats(allow_nan=False),
    name=st.text(max_size=9),
    flag=st.booleans(),
    blob=st.binary(max_size=9),
    mode=st.sampled_from(["grow", "adjust"]),
    role=st.sampled_from(Role),
    maybe=st.none() | st.integers(0, 5),
    numbers=st.lists(st.integers(-5, 5), max_size=4).map(tuple),
    names=st.lists(st.text(max_size=4), max_size=4),
    settings=st.dictionaries(st.text(max_size=4), st.floats(allow_nan=False), max_size=3),
    u8=vectors("|u1"),
    u16=vectors("<u2"),
    u32=vectors("<u4"),
    u64=vectors("<u8"),
    i32=vectors("<i4"),
    i64=vectors("<i8"),
    f32=vectors("<f4"),
    f64=vectors("<f8"),
    uint=st.sampled_from(["|u1", "<u2", "<u4", "<u8"]).flatmap(vectors),
    u8x2=matrices("|u1"),
    f64x2=matrices("<f8"),
    optional=st.none() | vectors("|u1"),
    several=st.lists(vectors("|u1"), max_size=3).map(tuple),
    by_name=st.dictionaries(st.text(max_size=4), vectors("<f8"), max_size=3),
)


def everything(**changes: Any) -> Everything:
    fields: dict[str, Any] = {
        "number": 1,
        "ratio": 0.5,
        "name": "Bäume",
        "flag": True,
        "blob": b"\0",
        "mode": "grow",
        "role": Role.label_holder,
        "maybe": None,
        "numbers": (1, 2),
        "names": ["a"],
        "settings": {"depth": 3.0},
        "u8": np.arange(5, dtype=np.uint8),
        "u16": np.arange(3, dtype=np.uint16),
        "u32": np.arange(3, dtype=np.uint32),
        "u64": np.arange(3, dtype=np.uint64),
        "i32": -np.arange(3, dtype=np.int32),
        "i64": -np.arange(3, dtype=np.int64),
        "f32": np.array([np.nan, np.inf, -0.0], dtype=np.float32),
        "f64": np.array([np.nan, np.inf, -0.0]),
        "uint": np.arange(3, dtype=np.uint16),
        "u8x2": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "f64x2": np.arange(6.0).reshape(3, 2),
        "several": (np.zeros(0, np.uint8), np.ones(3, np.uint8)),
        "by_name": {"x": np.ones(2)},
    }
    return Everything(**(fields | changes))


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, tuple | list) and isinstance(right, tuple | list):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(map(same, left.values(), right.values()))
    return type(left) is type(right) and left == right


def framed(header: bytes, body: bytes = b"", *, magic: bytes = b"WOOD", version: int = 1) -> bytes:
    return struct.pack("<4sIQ", magic, version, len(header)) + header + body


def question(fields: object, body: bytes = b"", name: str = "Question") -> bytes:
    """Return a message made by a peer that writes what it likes; its arrays start at a multiple of 8."""
    header = msgspec.msgpack.encode([name, fields])
    return framed(header, bytes(-len(header) % 8) + body if body else b"")


def decodes_or_refuses(data: bytes) -> None:
    try:
        message = decode(data)
    except RemoteProtocolError:
        return
    assert decode(encode(message)) is not None


@given(MESSAGES)
@settings(deadline=None, max_examples=100)
def test_round_trip(message: Everything) -> None:
    data = encode(message)
    received = decode(data)
    assert type(received) is Everything
    for field in Everything.__struct_fields__:
        assert same(getattr(received, field), getattr(message, field)), field
    assert encode(received) == data


def test_the_wire_form_is_what_the_docstring_says() -> None:
    data = encode(Question(number=7, data=np.array([1, 2], np.uint8)))
    header = msgspec.msgpack.encode(["Question", {"number": 7, "data": ["|u1", [2]]}])
    padding = bytes(-len(header) % 8)
    assert data == b"WOOD" + (1).to_bytes(4, "little") + len(header).to_bytes(8, "little") + header + padding + b"\1\2"


def test_arrays_are_readonly_aligned_views() -> None:
    data = encode(everything())
    received = np.frombuffer(data, np.uint8)
    message = decode(data)
    assert isinstance(message, Everything)
    for array in (
        message.u8,
        message.f64,
        message.u8x2,
        message.f64x2,
        message.several[1],
        message.by_name["x"],
    ):
        assert np.shares_memory(array, received)
        assert array.ctypes.data % 8 == 0
        assert array.flags.aligned
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_a_memoryview_that_is_not_aligned() -> None:
    data = encode(everything())
    message = decode(memoryview(b"." + data)[1:])
    assert isinstance(message, Everything)
    assert message.f64.flags.aligned
    assert not message.f64.flags.writeable
    assert encode(message) == data


def test_a_writable_buffer_is_decoded_to_readonly_arrays() -> None:
    message = decode(memoryview(bytearray(encode(everything()))))
    assert isinstance(message, Everything)
    assert not message.u8.flags.writeable


def test_arrays_that_are_not_contiguous() -> None:
    matrix = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    message = decode(encode(everything(u8=np.arange(10, dtype=np.uint8)[::-2], f64x2=matrix)))
    assert isinstance(message, Everything)
    assert message.u8.tolist() == [9, 7, 5, 3, 1]
    assert message.f64x2.tolist() == matrix.tolist()


def test_listeners_hear_every_message() -> None:
    heard: list[bytes] = []
    codec.listeners.append(heard.append)
    try:
        sent = [encode(Question(number=1)), encode(Answer(party="bank"))]
    finally:
        codec.listeners.remove(heard.append)
    encode(Question(number=2))
    assert heard == sent


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_fuzz_bytes(data: bytes) -> None:
    decodes_or_refuses(data)
    decodes_or_refuses(framed(data))
    decodes_or_refuses(framed(b"\x92\xa8Question" + data))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ARRAYS = st.tuples(
    st.sampled_from(["|u1", "<f8", ">u4", "|O", "<U1", ""]),
    st.lists(st.integers(-1, 9) | st.just(2**64 - 1), max_size=3),
)


@given(
    st.dictionaries(st.sampled_from(Everything.__struct_fields__), VALUES | ARRAYS),
    st.binary(max_size=20),
)
@settings(deadline=None, max_examples=200)
def test_fuzz_fields(fields: dict[str, object], body: bytes) -> None:
    decodes_or_refuses(question(fields, body))
    decodes_or_refuses(question(fields, body, name="Everything"))


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_fuzz_damage(draw: st.DataObject) -> None:
    data = bytearray(encode(everything()))
    for position in draw.draw(st.lists(st.integers(0, 8 * len(data) - 1), min_size=1, max_size=4)):
        data[position // 8] ^= 1 << position % 8
    decodes_or_refuses(bytes(data))


def test_every_truncation_and_extension_is_refused() -> None:
    data = encode(everything())
    for length in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode(data[:length])
    for more in (b"\0", b"x", bytes(8), data):
        with pytest.raises(RemoteProtocolError, match="too many"):
            decode(data + more)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too short"),
        (framed(b"", magic=b"WOLF"), "not a Woodlot message"),
        (framed(b"", version=2), "version 2"),
        (struct.pack("<4sIQ", b"WOOD", 1, 2**64 - 1), "header of"),
        (struct.pack("<4sIQ", b"WOOD", 1, MAX_HEADER + 1) + bytes(MAX_HEADER + 1), "header of"),
        (question({}, name="Nobody"), "unknown message"),
        (question({}, name="Message"), "unknown message"),
        (question([1, None]), "Expected `object`"),
        (question({"number": 1, "rows": 2}), "unknown field"),
        (question({"number": "1"}), "Expected `int`"),
        (question({"number": True}), "Expected `int`"),
        (question({"number": None}), "Expected `int`"),
        (question({"kind": "data"}, name="Refusal"), "missing required field"),
        (question({"kind": "other", "reason": ""}, name="Refusal"), "Invalid enum value"),
        (question({"kind": "data", "reason": "x" * 2_001}, name="Refusal"), "at most 2000"),
        (question({"data": 3}), "not the dtype and shape"),
        (question({"data": ["|u1", 3]}), "not the dtype and shape"),
        (question({"data": ["|u1", [1], 0]}, b"x"), "not the dtype and shape"),
        (question({"data": [["|u1"], [1]]}, b"x"), "not the dtype and shape"),
        (question({"data": ["|O", [1]]}, bytes(8)), "not the dtype and shape"),
        (question({"data": [">u4", [1]]}, bytes(4)), "not the dtype and shape"),
        (question({"data": ["<U1", [1]]}, bytes(4)), "not the dtype and shape"),
        (question({"data": ["u1", [1]]}, b"x"), "not the dtype and shape"),
        (question({"data": ["|u1", [-1]]}, b"x"), "none negative"),
        (question({"data": ["|u1", [True]]}, b"x"), "none negative"),
        (question({"data": ["|u1", [1.0]]}, b"x"), "none negative"),
        (question({"data": ["|u1", [2**64 - 1] * 100_000]}), "a few lengths"),
        (question({"data": ["|u1", [2**32, 2**32]]}), "larger than a message"),
        (question({"data": ["|u1", [0, 2**62]]}), "larger than a message"),
        (question({"data": ["|u1", [2]]}, b"x"), "longer than the message"),
        (question({"data": ["|u1", [1]]}, b"xy"), "1 bytes too many"),
        (question({"data": None}, b"x"), "too many"),
        (question({"data": ["<u2", [1]]}, b"xy"), "'data' of message Question: expected an array of dtype"),
        (question({"data": ["|u1", [1, 1]]}, b"x"), "'data' of message Question: expected an array of 1 dim"),
        (question({"data": ["|u1", []]}, b"x"), "'data' of message Question: expected an array of 1 dim"),
        (framed(b"\x93\xa8Question\x80\x80"), "array` of length 2"),
        (framed(b"\x92\xa8Question\x80\x80"), "trailing"),
        (framed(b"\x92\xa8Question\x81\xa4data" + b"\x91" * 100_000), "malformed message"),
        (framed(b"\x92\xa8Question" + b"\x91" * 100_000), "malformed message"),
        (framed(b"\x92\xa8Question\x81\xa1\xff\x00"), "malformed message"),
        (framed(b"\x92\xa1\xff\x80"), "malformed message"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(data: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words) as caught:
        decode(data)
    assert len(str(caught.value)) <= 300


def test_padding_hides_nothing() -> None:
    data = bytearray(encode(Question(number=7, data=np.array([1, 2], np.uint8))))
    assert data[-3] == 0
    data[-3] = 1
    with pytest.raises(RemoteProtocolError, match="hidden"):
        decode(bytes(data))


def test_errors_do_not_repeat_what_the_peer_wrote_at_length() -> None:
    for data in (question({}, name="N" * 100_000), question({"f" * 100_000: 1})):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(data)
        assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(
    "header",
    [
        b"\x92\xa8Question\x81\xa4data\x92\xa3|u1\xdd\xff\xff\xff\xff\x01",
        b"\x92\xa8Question\x81\xa4data\xdf\xff\xff\xff\xff\x01",
        b"\x92\xaaEverything\x81\xa7numbers\xdd\x0f\xff\xff\xff\x01",
        b"\x92\xaaEverything\x81\xa5names\xdd\x0f\xff\xff\xff\xa1a",
        b"\x92\xaaEverything\x81\xa4name\xdb\x7f\xff\xff\xffa",
        b"\x92\xaaEverything\x81\xa4blob\xc6\x7f\xff\xff\xffa",
        b"\xdd\xff\xff\xff\xff\x01",
        b"\x92\xa8Question\x81\xa4data\x92\xa3|u1\x91\xce\x3f\xff\xff\xff",
    ],
)
def test_no_memory_is_taken_for_what_a_length_claims(header: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode(framed(header))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_the_limit_counts_every_byte() -> None:
    message = Question(data=np.zeros(1_000, np.uint8))
    data = encode(message)
    assert encode(message, limit=len(data)) == data
    assert isinstance(decode(data, limit=len(data)), Question)
    with pytest.raises(RemoteProtocolError, match="too large"):
        decode(data, limit=len(data) - 1)
    with pytest.raises(LocalProtocolError, match="Question is too large"):
        encode(message, limit=len(data) - 1)


def test_a_header_that_nobody_would_accept_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="too large"):
        encode(Answer(party="x" * MAX_HEADER))


@pytest.mark.parametrize("thing", [None, {"number": 1}, Question, "Question"])
def test_only_messages_travel(thing: Any) -> None:
    with pytest.raises(LocalProtocolError, match="only messages travel"):
        encode(thing)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_a_number_that_does_not_fit(number: int) -> None:
    with pytest.raises(LocalProtocolError, match="Question cannot be encoded"):
        encode(Question(number=number))


def test_a_refusal_travels() -> None:
    received: Message = decode(encode(Refusal(kind="policy", reason="no labels leave")))
    assert isinstance(received, Refusal)
    assert (received.kind, received.reason) == ("policy", "no labels leave")
