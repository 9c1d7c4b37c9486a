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
from woodlot.runtime.drivers.mpi_carrier import MpiCarrier, _Line, abort_on_error, rank, serve
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
    """Two carriers one after the other, and a large message that is in flight when the first is closed."""
    for job in (JOB, JOB[::-1]):
        if rank() != 0:
            serve(f"party {rank()}", echo(f"party {rank()}").answer)
            continue
        carrier = MpiCarrier(job)
        with CarriedDriver(carrier, carrier.parties) as driver:
            data = np.arange(50_000_000, dtype=np.uint8)
            replies = driver.ask({party: Question(number=3, data=data) for party in carrier.parties})
            assert [number_of(reply) for reply in replies.values()] == [3] * 3
    if rank() == 0:
        print("both jobs ended", flush=True)


def interrupted() -> None:
    """The coordinator leaves a round with large messages on their way in both directions."""

    def stop(party: str, data: bytes) -> None:
        raise KeyboardInterrupt

    if rank() != 0:
        serve(f"party {rank()}", lambda job, number, request: bytes(40_000_000))
        return
    carrier = MpiCarrier(JOB)
    with pytest.raises(KeyboardInterrupt):
        carrier.carry(dict.fromkeys(carrier.parties, Numbered(1, bytes(40_000_000))), stop)
    carrier.close()
    carrier.close()
    print("left and closed", flush=True)


def same_names() -> None:
    if rank() != 0:
        serve("twin", echo("twin").answer)
        return
    with pytest.raises(LocalProtocolError, match="a name of its own, not twin, twin, twin"):
        MpiCarrier(JOB)
    print("names refused", flush=True)


def wrong_reply() -> None:
    """One rank answers under another number, another sends what is no frame."""
    for wrong in ("number", "noise"):
        if rank() == 0:
            carrier = MpiCarrier(JOB)
            with CarriedDriver(carrier, carrier.parties) as driver, pytest.raises(RemoteProtocolError) as caught:
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
    carrier = MpiCarrier(JOB)
    with CarriedDriver(carrier, carrier.parties) as driver:
        driver.ask({party: Question() for party in carrier.parties})


def coordinator_fails() -> None:
    if rank() != 0:
        serve(f"party {rank()}", echo("x").answer)
        return
    MpiCarrier(JOB)
    raise ZeroDivisionError("the coordinator's own fault")


if __name__ == "__main__":
    with abort_on_error():
        for scenario in sys.argv[1:]:
            globals()[scenario]()
