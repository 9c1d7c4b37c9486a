from __future__ import annotations

import random
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.runtime.frames import HEADER_SIZE, Assembler, FrameKind, Label, Parcel, job_bytes, split

JOB = "0123456789abcdef" * 2
LABEL = Label(FrameKind.request, JOB, 7)
SMALL = HEADER_SIZE + 10
COMPRESSED = 0x80


def frame(
    magic: bytes = b"WLF\x03", kind: int = 2, job: str = JOB, number: int = 7, part: int = 0, total: int = 3
) -> bytes:
    return struct.pack("<4sB16sQIQQ", magic, kind, bytes.fromhex(job), number, part, total, 0) + b"abc"


def feed_all(assembler: Assembler, frames: list[bytes]) -> list[Parcel]:
    return [parcel for each in frames if (parcel := assembler.feed(each)) is not None]


labels = st.builds(
    Label,
    st.sampled_from(FrameKind),
    st.binary(min_size=16, max_size=16).map(bytes.hex),
    st.integers(0, 2**64 - 1),
)


@given(label=labels, data=st.binary(max_size=200), step=st.integers(1, 50))
def test_a_message_survives(label: Label, data: bytes, step: int) -> None:
    frames = list(split(label, data, frame_limit=HEADER_SIZE + step))
    assert len(frames) == max(1, -(-len(data) // step))
    assert all(len(each) <= HEADER_SIZE + step for each in frames)
    assembler = Assembler(limit=200, frame_limit=HEADER_SIZE + step)
    assert [assembler.feed(each) for each in frames[:-1]] == [None] * (len(frames) - 1)
    parcel = assembler.feed(frames[-1])
    assert parcel == Parcel(label, data, n_wire=sum(map(len, frames)))
    assert type(parcel.data) is bytes


@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_messages_may_alternate(sizes: list[int], seed: int) -> None:
    parcels = {(LABEL._replace(number=i), bytes([i]) * size) for i, size in enumerate(sizes)}
    waiting = [list(split(*parcel, frame_limit=SMALL)) for parcel in parcels]
    rng, assembler = random.Random(seed), Assembler(limit=100, frame_limit=SMALL)
    received = []
    while waiting:
        turn = rng.choice(waiting)
        received.append(assembler.feed(turn.pop(0)))
        waiting = [frames for frames in waiting if frames]
    assert {parcel[:2] for parcel in received if parcel is not None} == parcels


@pytest.mark.parametrize(("worked", "told"), [(0.0, 0.0), (1.25, 1.25), (1e300, (2**64 - 1) / 1e6)])
def test_a_reply_says_how_long_it_took_to_make(worked: float, told: float) -> None:
    for data in (b"", b"x" * 25):
        (parcel,) = feed_all(Assembler(limit=100), list(split(LABEL, data, frame_limit=SMALL, worked=worked)))
        assert parcel.worked == told


def test_the_same_label_can_be_used_again() -> None:
    assembler = Assembler(limit=100, frame_limit=SMALL)
    frames = [*split(LABEL, b"x" * 25, frame_limit=SMALL), *split(LABEL, b"y" * 25, frame_limit=SMALL)]
    assert [parcel.data for parcel in feed_all(assembler, frames)] == [b"x" * 25, b"y" * 25]


@given(
    pieces=st.lists(st.sampled_from([bytes(3000), b"abc" * 900, random.Random(0).randbytes(5000)]), max_size=12),
    step=st.sampled_from([1000, 1500, 20_000]),
)
def test_a_compressed_message_survives(pieces: list[bytes], step: int) -> None:
    data = b"".join(pieces)
    frames = list(split(LABEL, data, frame_limit=HEADER_SIZE + step, compress=True))
    whole = Parcel(LABEL, data, n_wire=sum(map(len, frames)))
    assert feed_all(Assembler(limit=10**6, frame_limit=HEADER_SIZE + step), frames) == [whole]
    assert sum(map(len, frames)) <= sum(map(len, split(LABEL, data, frame_limit=HEADER_SIZE + step)))


def test_what_shrinks_is_compressed_and_nothing_else() -> None:
    zeros, noise, short = bytes(100_000), random.Random(1).randbytes(100_000), bytes(1000)
    assert sum(map(len, split(LABEL, zeros, compress=True))) < 1000
    for data in (noise, short):
        assert list(split(LABEL, data, compress=True)) == list(split(LABEL, data))
    # the sample of a chunk shrinks, the whole does not
    mixed = noise[:60_000] + bytes(6000) + noise[:60_000]
    assert list(split(LABEL, mixed, compress=True)) == list(split(LABEL, mixed))


@pytest.mark.parametrize("grown", [101, 600, 10**6])
def test_a_chunk_that_grows_beyond_its_message_is_refused(grown: int) -> None:
    bomb = frame(kind=COMPRESSED | 2, total=100)[:HEADER_SIZE] + zlib.compress(bytes(grown), 9)
    with pytest.raises(RemoteProtocolError, match="has more than the 100 bytes that its message lacks"):
        Assembler(limit=10**9, frame_limit=10_000).feed(bomb)


def test_a_chunk_that_grows_beyond_a_frame_is_refused() -> None:
    bomb = frame(kind=COMPRESSED | 2, total=10**9)[:HEADER_SIZE] + zlib.compress(bytes(10**7), 9)
    with pytest.raises(RemoteProtocolError, match="has more than the 20,000 bytes"):
        Assembler(limit=10**9, frame_limit=20_000).feed(bomb)


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    """64 MiB in 64 kB: no more than what the message may have is ever in memory."""
    bomb = frame(kind=COMPRESSED | 2, total=100_000)[:HEADER_SIZE] + zlib.compress(bytes(64 << 20), 9)
    assembler = Assembler(limit=10**9)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="has more than the 100,000 bytes"):
            assembler.feed(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_stands_behind_a_compressed_chunk_is_refused() -> None:
    whole = frame(kind=COMPRESSED | 2, total=100)[:HEADER_SIZE] + zlib.compress(bytes(100))
    assert Assembler(limit=100).feed(whole) == Parcel(LABEL, bytes(100), n_wire=len(whole))
    for bad in (whole + b"x", whole[:-1]):
        with pytest.raises(RemoteProtocolError, match="compressed frame"):
            Assembler(limit=100).feed(bad)


def test_frames_are_made_when_they_are_asked_for() -> None:
    frames = split(LABEL, bytes(100 << 20))
    assert len(next(frames)) == 2 << 20


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"", "shorter than its header"),
        (frame()[: HEADER_SIZE - 1], "shorter than its header"),
        (frame(magic=b"WLF\x02"), "not a frame of this version"),
        (b"GET / HTTP/1.1\r\n" * 10, "not a frame of this version"),
        (frame(kind=0), "unknown kind 0"),
        (frame(kind=100), "unknown kind 100"),
        (frame(kind=COMPRESSED | 72), "unknown kind 72"),
        (frame(kind=COMPRESSED | 2), "a compressed frame is damaged"),
        (frame(part=1), "first part is missing"),
        (frame(total=2), "does not fit"),
        (frame(total=0), "does not fit"),
        (frame(total=10)[:HEADER_SIZE], "does not fit"),
        (frame(total=101), "a message of 101 bytes; the limit is 100"),
        (frame(total=2**64 - 1), "the limit is 100"),
        (frame() + bytes(1000), "the limit is 500"),
    ],
)
def test_a_malformed_frame(bad: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        Assembler(limit=100, frame_limit=500).feed(bad)


@pytest.mark.parametrize(
    "second",
    [
        frame(part=0, total=9),
        frame(part=2, total=9),
        frame(part=1, total=8),
        frame(part=1, total=9) + bytes(10),
        frame(part=1, total=9)[:HEADER_SIZE],
    ],
)
def test_a_part_that_does_not_belong(second: bytes) -> None:
    assembler = Assembler(limit=100)
    assert assembler.feed(frame(part=0, total=9)) is None
    with pytest.raises(RemoteProtocolError):
        assembler.feed(second)
    assert assembler.feed(frame(part=1, total=9)) is None
    parcel = assembler.feed(frame(part=2, total=9))
    assert parcel is not None
    assert parcel.data == b"abc" * 3


def test_too_many_unfinished_messages() -> None:
    assembler = Assembler(limit=100, max_unfinished=2)
    for number in (1, 2):
        assert assembler.feed(frame(number=number, total=9)) is None
    assert assembler.feed(frame(number=3)) is not None
    with pytest.raises(RemoteProtocolError, match="more than 2"):
        assembler.feed(frame(number=3, total=9))


def test_a_message_out_of_place_is_refused_by_its_first_frame() -> None:
    def accept(label: Label) -> None:
        if label.number != 7:
            raise RemoteProtocolError("not now")

    assembler = Assembler(limit=100, accept=accept)
    with pytest.raises(RemoteProtocolError, match="not now"):
        assembler.feed(frame(number=8, total=9))
    assert assembler.feed(frame(number=7)) is not None


@given(st.lists(st.one_of(st.binary(max_size=80), st.just(frame()), st.just(frame(total=6)))))
def test_only_the_protocol_error_escapes(frames: list[bytes]) -> None:
    assembler = Assembler(limit=50)
    for each in frames:
        try:
            assembler.feed(each)
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize("job", ["", "ab", JOB.upper(), JOB[:-1] + "g", JOB[:-2] + "  ", JOB + "00"])
def test_a_job_has_a_name_of_32_digits(job: str) -> None:
    with pytest.raises(LocalProtocolError, match="32 hexadecimal digits"):
        job_bytes(job)
