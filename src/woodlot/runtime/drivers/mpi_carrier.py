"""The carrier for one cluster: rank 0 coordinates, every other rank is a party (extra ``mpi``).

All ranks are started together, trust each other's network, and end together::

    with abort_on_error():
        if rank() == 0:
            with MpiRanks() as ranks, CarriedDriver(ranks.carrier(job), ranks.parties) as driver:
                ...
        else:
            serve("bank", sessions.answer)

MPI itself cannot bring back a rank that has died: ``mpirun`` then ends all of them, and a journalled run is
resumed by starting them again.
"""

from __future__ import annotations

import array
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from woodlot.exceptions import ConfigError, LocalProtocolError, RemoteProtocolError
from woodlot.runtime.codec import DEFAULT_LIMIT
from woodlot.runtime.drivers import check_names
from woodlot.runtime.drivers.carried import Numbered, Reply, Travel, travel_of
from woodlot.runtime.frames import NO_JOB, Assembler, FrameKind, Label, Parcel, split

logger = logging.getLogger(__name__)

FRAME_BYTES = 1 << 24
"""The longest piece of a message that is sent at once; MPI counts up to 2^31."""

_MAX_NAME = 1_000
_IN_FLIGHT = 2  # pieces to one rank that are on their way: enough to keep it busy, and little memory
_TAG_FRAME, _TAG_STOP = 1, 2
_EAGER_TURNS = 200  # looks at an empty line before the first rest: most answers come within microseconds
_REST_SECONDS = 0.0005
_EXCHANGE_REST_SECONDS = 0.01


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # the latter where mpi4py finds no MPI library
        raise ConfigError(
            "MPI cannot be used: install the extra with pip install 'woodlot[mpi]', and an MPI library "
            f"such as Open MPI ({error})"
        ) from error
    return MPI


def rank(communicator: Any = None) -> int:
    """Return this process's rank; 0 is the coordinator.

    Raises
    ------
    ConfigError
        If the extra ``mpi`` or the MPI library is not installed.

    """
    return int((communicator or _mpi().COMM_WORLD).Get_rank())


def n_ranks() -> int:
    """How many ranks ``mpirun`` has started."""
    return int(_mpi().COMM_WORLD.Get_size())


def check_threads() -> None:
    """Refuse an MPI library whose calls must all come from one thread: jobs have threads of their own.

    Raises
    ------
    ConfigError
        The message says what is needed.

    """
    mpi = _mpi()
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise ConfigError(
            "this MPI library takes calls from the main thread only; use one with MPI_THREAD_SERIALIZED or more, such "
            "as Open MPI"
        )


@contextmanager
def abort_on_error(communicator: Any = None) -> Iterator[None]:
    """End all ranks when an error leaves this block, since the others would wait for this one for ever."""
    world = communicator or _mpi().COMM_WORLD
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        logger.critical("rank %d ends all ranks", world.Get_rank(), exc_info=error)
        world.Abort(1)
        raise


def exchange(data: bytes, communicator: Any = None) -> list[bytes]:
    """Tell all ranks something, and return what each of them tells, in the order of ranks.

    Every rank must call it. A rank that waits here rests: MPI's own waiting takes a core.
    """
    mpi = _mpi()
    world = communicator or mpi.COMM_WORLD
    own, sizes = array.array("q", [len(data)]), array.array("q", bytes(8 * world.Get_size()))
    _rest_until(world.Iallgather([own, mpi.INT64_T], [sizes, mpi.INT64_T]))
    told, starts = bytearray(sum(sizes)), [0, *itertools.accumulate(sizes)]
    _rest_until(world.Iallgatherv([data, mpi.BYTE], [told, (list(sizes), starts[:-1]), mpi.BYTE]))
    return [bytes(told[start:end]) for start, end in itertools.pairwise(starts)]


def _rest_until(request: Any) -> None:
    while not request.Test():
        time.sleep(_EXCHANGE_REST_SECONDS)


class MpiRanks:
    """Rank 0's lines to the other ranks, all of which must call `serve`. Jobs side by side share them.

    Parameters
    ----------
    communicator : mpi4py.MPI.Comm, optional
        The ranks that take part; all that ``mpirun`` has started, unless told otherwise.
    limit : int
        The largest message that is accepted, in bytes.

    Attributes
    ----------
    parties : tuple of str
        The names that the other ranks gave, in the order of ranks.

    Raises
    ------
    LocalProtocolError
        If there are no parties, two have the same name, or this is not rank 0. The parties have been stopped.

    """

    parties: tuple[str, ...]

    def __init__(self, *, communicator: Any = None, limit: int = DEFAULT_LIMIT) -> None:
        world = communicator or _mpi().COMM_WORLD
        if world.Get_rank() != 0:
            raise LocalProtocolError("only rank 0 coordinates; the other ranks call serve()")
        self._line = _Line(world, limit)
        self._closed = False
        self._turn = threading.Lock()
        self._expected: dict[int, Label] = dict.fromkeys(self._line.others, Label(FrameKind.greeting, NO_JOB, 0))
        # Of rounds that were left before their end: a rank answers all requests, and in their order.
        self._given_up: dict[int, deque[Label]] = {other: deque() for other in self._line.others}
        try:
            names = {source: parcel.data.decode(errors="replace") for source, parcel in self._receive(lambda: False)}
            self.parties = tuple(names[source] for source in self._line.others)
            check_names(self.parties)
            if len(set(self.parties)) < len(self.parties):
                raise LocalProtocolError(f"each party needs a name of its own, not {', '.join(self.parties)}")
        except BaseException:
            self.close()
            raise

    def carrier(self, job: str) -> MpiCarrier:
        """What carries the requests of one job: 32 hexadecimal digits."""
        return MpiCarrier(self, job)

    def carry(
        self,
        job: str,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        is_closed: Callable[[], bool],
    ) -> Travel:
        """Carry one round of a job, unless another job's is being carried: then after it. See `Carrier`."""
        replies = []
        with self._turn:
            since = time.perf_counter()
            try:
                for party, request in requests.items():
                    receiver = 1 + self.parties.index(party)
                    self._expected[receiver] = Label(FrameKind.reply, job, request.number)
                    self._line.send(receiver, Label(FrameKind.request, job, request.number), request.data)
                for source, parcel in self._receive(is_closed):
                    party = self.parties[source - 1]
                    n_sent = len(requests[party].data)  # nothing is compressed here
                    replies.append(Reply(time.perf_counter() - since, parcel.worked, n_sent + parcel.n_wire))
                    on_reply(party, parcel.data)
            finally:
                for receiver, label in self._expected.items():
                    self._given_up[receiver].append(label)
                self._expected.clear()
        return travel_of(replies)

    def _receive(self, is_closed: Callable[[], bool]) -> Iterator[tuple[int, Parcel]]:
        """What is expected, as it arrives."""
        while self._expected:
            if self._closed or is_closed():
                raise LocalProtocolError("this carrier is closed")
            source, parcel = self._line.turn()
            if parcel is None:
                continue
            given_up = self._given_up[source]
            if given_up and parcel.label == given_up[0]:
                given_up.popleft()
                continue
            if parcel.label != self._expected.pop(source, None):
                raise RemoteProtocolError(f"rank {source} has sent what was not expected: {parcel.label}")
            yield source, parcel

    def close(self) -> None:
        """Stop the parties; return when each has ended what it is at work on. Closing twice does nothing."""
        self._closed = True
        with self._turn:
            self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MpiCarrier:
    """Carries the requests of one job over `MpiRanks`, which go on with others when it is closed."""

    def __init__(self, ranks: MpiRanks, job: str) -> None:
        self._ranks = ranks
        self._job = job
        self._closed = False

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> Travel:
        """Send all requests at once and hand on the replies as they arrive; see `Carrier`. No rank can be away."""
        return self._ranks.carry(self._job, requests, on_reply, lambda: self._closed)

    def close(self) -> None:
        """Carry no more; see `Carrier`."""
        self._closed = True


def serve(
    party: str,
    answer: Callable[[str, int, bytes], bytes],
    *,
    communicator: Any = None,
    limit: int = DEFAULT_LIMIT,
) -> None:
    """Answer rank 0 at a party's rank until it says that no more will come.

    Whatever `answer` raises ends all ranks, with the error in this rank's log.

    Parameters
    ----------
    party : str
        This party's name.
    answer : callable
        Returns the encoded reply to a job, a number and an encoded request: `Sessions.answer`.
    communicator : mpi4py.MPI.Comm, optional
        The ranks that take part, as at rank 0.
    limit : int
        The largest message that is accepted, in bytes.

    """
    world = communicator or _mpi().COMM_WORLD
    with abort_on_error(world):
        name = party.encode()
        if world.Get_rank() == 0 or len(name) > _MAX_NAME:
            raise LocalProtocolError("rank 0 cannot be a party, and a name is short")
        line = _Line(world, limit)
        line.send(0, Label(FrameKind.greeting, NO_JOB, 0), name)
        while not line.stopped:
            _, parcel = line.turn()
            if parcel is None:
                continue
            kind, job, number = parcel.label
            if kind is not FrameKind.request:
                raise RemoteProtocolError(f"rank 0 has sent a {kind.name}, not a request")
            since = time.perf_counter()
            reply = answer(job, number, parcel.data)
            line.send(0, Label(FrameKind.reply, job, number), reply, worked=time.perf_counter() - since)
        line.close()


class _Line:
    """The frames between this rank and the others: rank 0 has a line to each, the others one to rank 0."""

    def __init__(self, world: Any, limit: int) -> None:
        self._mpi = _mpi()
        self._ranks = world.Dup()  # so that nothing else that the program sends is mistaken for a frame
        self._leads = world.Get_rank() == 0
        self.others = range(1, world.Get_size()) if self._leads else range(1)
        self.stopped: set[int] = set()
        self._assemblers = {other: Assembler(limit, frame_limit=FRAME_BYTES) for other in self.others}
        self._outgoing: dict[int, Iterator[bytes]] = {}
        self._in_flight: dict[int, list[tuple[Any, bytes]]] = {other: [] for other in self.others}
        self._quiet = 0

    def send(self, receiver: int, label: Label, data: bytes, *, worked: float = 0.0) -> None:
        """Put a message on its way; the frames leave in `turn`."""
        frames = split(label, data, frame_limit=FRAME_BYTES, worked=worked)
        self._outgoing[receiver] = itertools.chain(self._outgoing.get(receiver, ()), frames)

    def turn(self) -> tuple[int, Parcel | None]:
        """Move what can be moved; return what has arrived, if it is complete."""
        source, frame = self._move()
        return source, None if frame is None else self._assemblers[source].feed(frame)

    def _move(self) -> tuple[int, bytes | None]:
        """Send and receive once, and rest a little when nothing moves."""
        sent = self._push()
        source, frame = self._pull()
        if sent or frame is not None:
            self._quiet = 0
        else:
            self._quiet += 1
            time.sleep(0 if self._quiet < _EAGER_TURNS else _REST_SECONDS)
        return source, frame

    def _push(self) -> bool:
        """Send further frames wherever few are on their way."""
        moved = False
        for receiver, flying in self._in_flight.items():
            flying[:] = [pair for pair in flying if not pair[0].Test()]
            while receiver in self._outgoing and len(flying) < _IN_FLIGHT:
                frame = next(self._outgoing[receiver], None)
                if frame is None:
                    del self._outgoing[receiver]
                else:
                    # MPI reads the frame until the request is done, so the two are kept together.
                    flying.append((self._ranks.Isend([frame, self._mpi.BYTE], receiver, _TAG_FRAME), frame))
                    moved = True
        return moved

    def _pull(self) -> tuple[int, bytes | None]:
        """The next frame that has arrived, and from whom."""
        status = self._mpi.Status()
        message = self._ranks.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status)
        if message is None:
            return 0, None
        source, size = status.Get_source(), status.Get_count(self._mpi.BYTE)
        if size > FRAME_BYTES:  # before anything is allocated for it
            raise RemoteProtocolError(
                f"rank {source} has sent {size:,} bytes at once; at most {FRAME_BYTES:,} are sent"
            )
        frame = bytearray(size)
        message.Recv([frame, self._mpi.BYTE])
        if status.Get_tag() == _TAG_STOP:
            self.stopped.add(source)
            return source, None
        return source, bytes(frame)

    def close(self) -> None:
        """Say that no more will come, and take in what the others still send until they have said so too."""
        if self._ranks is None:
            return
        # What has begun to leave must arrive whole before the stop; what is left of the message is of no more use.
        self._outgoing = {} if self._leads else self._outgoing
        while self._outgoing or any(self._in_flight.values()):
            self._move()
        stops = [self._ranks.Isend([b"", self._mpi.BYTE], other, _TAG_STOP) for other in self.others]
        while not all(stop.Test() for stop in stops) or len(self.stopped) < len(self.others):
            self._move()
        self._ranks.Free()
        self._ranks = None
