"""What every rank runs in the tests of the MPI driver: mpirun -n 4 python mpi_ranks.py SCENARIO ..."""

from __future__ import annotations

import sys
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from mpi4py import MPI

from runtime import mpi_contract
from runtime.carriers import JOB
from runtime.driver_contract import Party, number_of
from runtime.samples import Question
from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.runtime.drivers.carried import CarriedDriver, Numbered
from woodlot.runtime.drivers.mpi_carrier import MpiRanks, _Line, abort_on_error, exchange, rank, serve
from woodlot.runtime.frames import NO_JOB, FrameKind, Label
from woodlot.runtime.sessions import Sessions

WORLD = MPI.COMM_WORLD


def contract() -> None:
    """Rank 0 runs the contract's tests; each of them tells the others what to serve as."""
    if rank() == 0:
        with Listener() as listener:
            address = listener.address
            assert isinstance(address, str)
            for other in range(1, WORLD.Get_size()):
                WORLD.Send([address.encode(), MPI.BYTE], other)
                mpi_contract.controls.append(listener.accept())
        failed = pytest.main([str(Path(mpi_contract.__file__)), "-p", "no:xdist", "--color=no"])
        for control in mpi_contract.controls:
            control.close()
        assert not failed
        return
    status = MPI.Status()
    WORLD.Probe(0, 0, status)
    address_ = bytearray(status.Get_count(MPI.BYTE))
    WORLD.Recv([address_, MPI.BYTE], 0)
    with Client(address_.decode()) as control:
        while True:
            try:
                name, _, relay = control.recv_bytes().decode().partition("|")
            except EOFError:
                return
            if name:
                connection = Client(relay)
                connection.send_bytes(name.encode())
            group = WORLD.Split(0 if name else 1, rank())
            if name:
                with connection:
                    handler = mpi_contract.Relay(connection)
                    serve(name, Sessions(name, lambda job, handler=handler: handler).answer, communicator=group)
            group.Free()


def echo(name: str) -> Sessions:
    return Sessions(name, lambda job: Party(name))


def two_jobs() -> None:
    """Twice: two jobs over the same ranks, with large messages; and what all ranks tell each other in between."""
    for again in range(2):
        told = exchange(bytes([rank()]) * 1_000 * rank())
        assert told == [bytes([other]) * 1_000 * other for other in range(WORLD.Get_size())]
        if rank() != 0:
            serve(f"party {rank()}", echo(f"party {rank()}").answer)
            continue
        with MpiRanks() as ranks:
            for job in (JOB, JOB[::-1]):
                with CarriedDriver(ranks.carrier(job), ranks.parties) as driver:
                    data = np.arange(50_000_000 if again else 5, dtype=np.uint8)
                    replies = driver.ask({party: Question(number=3, data=data) for party in ranks.parties})
                    assert [number_of(reply) for reply in replies.values()] == [3] * 3
    if rank() == 0:
        print("both jobs ended", flush=True)


def left() -> None:
    """A round that is left before its end: what its ranks still answer is not taken for another round's."""
    if rank() != 0:
        serve(f"party {rank()}", lambda job, number, request: request + str(number).encode())
        return
    with MpiRanks() as ranks:

        def close(party: str, data: bytes) -> None:
            carrier.close()

        for number in (1, 2):
            carrier = ranks.carrier(JOB)
            with pytest.raises(LocalProtocolError, match="this carrier is closed"):
                carrier.carry(dict.fromkeys(ranks.parties, Numbered(number, b"left")), close)
        replies: dict[str, bytes] = {}
        for number in (2, 3):  # the second is carried again
            ranks.carrier(JOB).carry(dict.fromkeys(ranks.parties, Numbered(number, b"now")), replies.__setitem__)
            assert set(replies.values()) == {b"now" + str(number).encode()}
    print("went on", flush=True)


def interrupted() -> None:
    """The coordinator leaves a round with large messages on their way in both directions."""

    def stop(party: str, data: bytes) -> None:
        raise KeyboardInterrupt

    if rank() != 0:
        serve(f"party {rank()}", lambda job, number, request: bytes(40_000_000))
        return
    ranks = MpiRanks()
    with pytest.raises(KeyboardInterrupt):
        ranks.carrier(JOB).carry(dict.fromkeys(ranks.parties, Numbered(1, bytes(40_000_000))), stop)
    ranks.close()
    ranks.close()
    print("left and closed", flush=True)


def same_names() -> None:
    if rank() != 0:
        serve("twin", echo("twin").answer)
        return
    with pytest.raises(LocalProtocolError, match="a name of its own, not twin, twin, twin"):
        MpiRanks()
    print("names refused", flush=True)


def wrong_reply() -> None:
    """One rank answers under another number, another sends what is no frame."""
    for wrong in ("number", "noise"):
        if rank() == 0:
            with (
                MpiRanks() as ranks,
                CarriedDriver(ranks.carrier(JOB), ranks.parties) as driver,
                pytest.raises(RemoteProtocolError) as caught,
            ):
                driver.ask({"party 2": Question()})
            print(caught.value, flush=True)
        elif rank() == 2:
            # A line of the rank's own making, since `serve` does none of this.
            line = _Line(WORLD, 1_000_000)
            line.send(0, Label(FrameKind.greeting, NO_JOB, 0), b"party 2")
            while not line.stopped:
                _, parcel = line.turn()
                if parcel is not None and wrong == "number":
                    line.send(0, Label(FrameKind.reply, JOB, 7), b"")
                elif parcel is not None:
                    line._ranks.Send([b"noise" * 20, MPI.BYTE], 0, 1)
            line.close()
        else:
            serve(f"party {rank()}", echo(f"party {rank()}").answer)


def party_fails() -> None:
    def fail(job: str, number: int, request: bytes) -> bytes:
        raise ZeroDivisionError("the party's own fault")

    if rank() != 0:
        serve(f"party {rank()}", fail if rank() == 1 else echo("x").answer)
        return
    with MpiRanks() as ranks, CarriedDriver(ranks.carrier(JOB), ranks.parties) as driver:
        driver.ask({party: Question() for party in ranks.parties})


def coordinator_fails() -> None:
    if rank() != 0:
        serve(f"party {rank()}", echo("x").answer)
        return
    MpiRanks()
    raise ZeroDivisionError("the coordinator's own fault")


if __name__ == "__main__":
    with abort_on_error():
        for scenario in sys.argv[1:]:
            globals()[scenario]()
