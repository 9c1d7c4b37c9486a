"""Messages of any length in frames of limited length, and back.

::

    0   magic "WLF" and version 3   4 bytes
    4   kind                        1 byte, its highest bit set if the chunk is compressed
    5   job                         16 bytes
    21  number                      8 bytes, little endian
    29  part                        4 bytes, little endian: 0, 1, 2, ...
    33  length of the message       8 bytes, little endian, the same in every part; not compressed
    41  working time                8 bytes, little endian, the same in every part: of a reply, the microseconds from
                                    when its sender had the whole request until it had the reply; else 0
    49  a chunk of the message      the rest of the frame

The frames of one message come in order. Those of several messages may alternate, so that a large one does not
hold up the small ones. A chunk is compressed (zlib) by itself, where that makes it shorter; it has then at most as many
bytes as a frame may have, and as its message still lacks, or it is refused before there are more.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from woodlot.exceptions import LocalProtocolError, RemoteProtocolError

FRAME_LIMIT = 2 << 20
"""The longest frame, in bytes, header included."""

LARGE = 8 << 20
"""Bytes above which a message is large: of these, a connection carries one at a time in each direction."""

MAX_UNFINISHED = 64
"""How many messages of one connection may be on their way at the same time."""

SHORTEST_COMPRESSED = 1024
"""Bytes of a chunk below which compressing it is not worth the work."""
SAMPLE = 4096
"""Bytes from the middle of a chunk that are compressed to see whether the whole would get shorter."""
PAYS = 0.75
"""How long a compressed chunk may be, of its length, to be sent so. A core compresses about four times as fast as a
line of 100 Mb/s carries, so that a quarter less pays there (docs/results/compression.md)."""

_MAGIC = b"WLF\x03"
_COMPRESSED = 0x80
_HEADER = struct.Struct("<4sB16sQIQQ")
HEADER_SIZE = _HEADER.size
_PER_SECOND = 1_000_000
_LONGEST_WORK = 2**64 - 1


class FrameKind(IntEnum):
    """What a message is to the transport."""

    greeting = 1
    """From the coordinator, once, when a connection opens."""
    request = 2
    reply = 3
    failure = 4
    """In place of a reply: the other side could not make one. The message is the name of the error."""


class Label(NamedTuple):
    """What tells one message of a connection from another."""

    kind: FrameKind
    job: str
    number: int


class Parcel(NamedTuple):
    """One whole message."""

    label: Label
    data: bytes
    worked: float = 0.0
    """Seconds that the sender says it took to make the reply."""
    n_wire: int = 0
    """Bytes of its frames, as they came."""


NO_JOB = "0" * 32
"""The job of messages that belong to none."""


def job_bytes(job: str) -> bytes:
    """The sixteen bytes of a job's name.

    Raises
    ------
    LocalProtocolError
        If `job` is anything else than 32 lower-case hexadecimal digits.

    """
    try:
        name = bytes.fromhex(job)
    except ValueError:
        name = b""
    if name.hex() != job or len(name) != 16:
        raise LocalProtocolError(f"a job is named by 32 hexadecimal digits, not by {job!r}")
    return name


def split(
    label: Label, data: bytes, *, frame_limit: int = FRAME_LIMIT, compress: bool = False, worked: float = 0.0
) -> Iterator[bytes]:
    """Yield the frames of a message, each made when it is asked for.

    Parameters
    ----------
    label : Label
        What the message is.
    data : bytes
        The message.
    frame_limit : int
        The longest frame, in bytes, header included.
    compress : bool
        Whether to compress chunks where it pays: for lines that leave the machine.
    worked : float
        Of a reply, the seconds that it took to make.

    Yields
    ------
    bytes
        At least one frame, also for an empty message.

    """
    job = job_bytes(label.job)
    step = frame_limit - HEADER_SIZE
    view = memoryview(data)
    microseconds = min(round(worked * _PER_SECOND), _LONGEST_WORK)
    for part, start in enumerate(range(0, max(len(data), 1), step)):
        chunk: bytes | memoryview = view[start : start + step]
        kind = int(label.kind)
        if compress and (shorter := _shorter(chunk)) is not None:
            chunk, kind = shorter, kind | _COMPRESSED
        yield b"".join((_HEADER.pack(_MAGIC, kind, job, label.number, part, len(data), microseconds), chunk))


def _shorter(chunk: bytes | memoryview) -> bytes | None:
    """The chunk compressed, or None where it would not become shorter: masked and encrypted numbers never do."""
    if len(chunk) < SHORTEST_COMPRESSED:
        return None
    if len(chunk) > 2 * SAMPLE:
        sample = chunk[(len(chunk) - SAMPLE) // 2 :][:SAMPLE]
        if len(zlib.compress(sample, 1)) > PAYS * SAMPLE:
            return None
    packed = zlib.compress(chunk, 1)
    return packed if len(packed) < PAYS * len(chunk) else None


def _restored(packed: memoryview, most: int) -> bytes:
    """A chunk that was compressed; one of more bytes than may be is refused before it is there."""
    reader = zlib.decompressobj()
    try:
        chunk = reader.decompress(packed, most + 1)
    except zlib.error:
        raise RemoteProtocolError("a compressed frame is damaged") from None
    if len(chunk) > most or not reader.eof or reader.unused_data:
        raise RemoteProtocolError(f"a compressed frame has more than the {most:,} bytes that its message lacks")
    return chunk


@dataclass
class _Unfinished:
    total: int
    # Its getvalue() hands out the buffer itself, so that a large message is in memory once.
    buffer: io.BytesIO = field(default_factory=io.BytesIO)
    parts: int = 0
    n_wire: int = 0


class Assembler:
    """Puts the frames of one connection together again, and trusts none of them.

    Parameters
    ----------
    limit : int
        The longest message, in bytes. A longer one is refused by its first frame.
    accept : callable, optional
        Called with the label of every new message; raises `RemoteProtocolError` for one that is out of place.
    frame_limit : int
        The longest frame, in bytes.
    max_unfinished : int
        How many messages may be incomplete at the same time.

    """

    def __init__(
        self,
        limit: int,
        *,
        accept: Callable[[Label], None] | None = None,
        frame_limit: int = FRAME_LIMIT,
        max_unfinished: int = MAX_UNFINISHED,
    ) -> None:
        self._limit = limit
        self._accept = accept
        self._frame_limit = frame_limit
        self._max_unfinished = max_unfinished
        self._unfinished: dict[Label, _Unfinished] = {}

    def begins(self, frame: bytes) -> tuple[Label, int] | None:
        """Which message a frame begins, and how long that is, for who makes room before it is fed; else None.

        Raises
        ------
        RemoteProtocolError
            As `feed` does, of a frame that is malformed, or whose message is out of place or too long.

        """
        label, part, total, _, _ = self._read_header(frame)
        if label in self._unfinished:
            return None
        self._check_new(label, part, total)
        if len(self._unfinished) >= self._max_unfinished:
            raise self._too_many()
        return label, total

    def feed(self, frame: bytes) -> Parcel | None:
        """Take one frame.

        Parameters
        ----------
        frame : bytes
            As received.

        Returns
        -------
        Parcel or None
            The message that this frame completes.

        Raises
        ------
        RemoteProtocolError
            If the frame is malformed, too long or out of order, or its message is out of place or too long. The
            connection that it came from is then of no more use.

        """
        label, part, total, worked, compressed = self._read_header(frame)
        message = self._unfinished.get(label)
        if message is None:
            self._check_new(label, part, total)
            if len(frame) - HEADER_SIZE == total and not compressed:
                return Parcel(label, frame[HEADER_SIZE:], worked, len(frame))
            message = _Unfinished(total)
        if part != message.parts or total != message.total:
            raise RemoteProtocolError(
                f"part {part} of a message of {total:,} bytes came instead of part {message.parts} of one of "
                f"{message.total:,} bytes"
            )
        chunk: bytes | memoryview = memoryview(frame)[HEADER_SIZE:]
        if compressed:
            chunk = _restored(memoryview(chunk), min(total - message.buffer.tell(), self._frame_limit))
        received = message.buffer.tell() + len(chunk)
        if received > total or len(chunk) == 0:
            raise RemoteProtocolError(f"a frame does not fit its message of {total:,} bytes")
        message.buffer.write(chunk)
        message.parts += 1
        message.n_wire += len(frame)
        if received < total:
            if label not in self._unfinished and len(self._unfinished) >= self._max_unfinished:
                raise self._too_many()
            self._unfinished[label] = message
            return None
        self._unfinished.pop(label, None)
        return Parcel(label, message.buffer.getvalue(), worked, message.n_wire)

    def _too_many(self) -> RemoteProtocolError:
        return RemoteProtocolError(f"more than {self._max_unfinished} messages at the same time")

    def _read_header(self, frame: bytes) -> tuple[Label, int, int, float, bool]:
        if len(frame) > self._frame_limit:
            raise RemoteProtocolError(f"a frame of {len(frame):,} bytes; the limit is {self._frame_limit:,}")
        if len(frame) < HEADER_SIZE:
            raise RemoteProtocolError(f"a frame of {len(frame)} bytes is shorter than its header")
        magic, kind, job, number, part, total, microseconds = _HEADER.unpack_from(frame)
        if magic != _MAGIC:
            raise RemoteProtocolError("what was received is not a frame of this version of Woodlot")
        compressed, kind = bool(kind & _COMPRESSED), kind & ~_COMPRESSED
        if kind not in FrameKind.__members__.values():
            raise RemoteProtocolError(f"a frame of unknown kind {kind}")
        return Label(FrameKind(kind), job.hex(), number), part, total, microseconds / _PER_SECOND, compressed

    def _check_new(self, label: Label, part: int, total: int) -> None:
        if part != 0:
            raise RemoteProtocolError(f"part {part} of a message whose first part is missing")
        if total > self._limit:
            raise RemoteProtocolError(
                f"a message of {total:,} bytes; the limit is {self._limit:,} (raise the message limit on both sides)"
            )
        if self._accept is not None:
            self._accept(label)
