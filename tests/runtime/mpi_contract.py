"""The driver contract at rank 0, run by ``mpi_ranks.py``: requests go to real ranks, which ask the handlers here.

The contract's handlers are closures that share barriers and lists with the tests, so they stay in this process.
Each party's rank has a handler that passes every message on to its handler here, over a local socket of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection, Listener

import pytest
from mpi4py import MPI

from woodlot.protocols.core.message import Message
from woodlot.runtime import codec
from woodlot.runtime.drivers import Driver, Handler, answer
from woodlot.runtime.drivers.carried import CarriedDriver
from woodlot.runtime.drivers.mpi_carrier import MpiRanks

from .carriers import JOB
from .driver_contract import DriverContract, MakeDriver

controls: list[Connection] = []
"""To each party's rank, in the order of ranks: what it is to serve as, or nothing to sit out."""


class Relay:
    """The handler at a party's rank."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def handle(self, message: Message) -> Message:
        self._connection.send_bytes(codec.encode(message))
        return codec.decode(self._connection.recv_bytes())


def _answer(connection: Connection, handler: Handler) -> None:
    with connection:
        while True:
            try:
                request = connection.recv_bytes()
            except EOFError:
                return
            connection.send_bytes(answer(handler, request)[0])


@pytest.fixture
def make_driver() -> Iterator[MakeDriver]:
    drivers: list[Driver] = []
    opened: list[MpiRanks] = []
    threads: list[threading.Thread] = []

    def make(handlers: Mapping[str, Handler]) -> Driver:
        names = [*handlers, *[""] * (len(controls) - len(handlers))]
        with Listener() as listener:
            for control, name in zip(controls, names, strict=True):
                control.send_bytes(f"{name}|{listener.address}".encode())
            for _ in handlers:
                connection = listener.accept()
                handler = handlers[connection.recv_bytes().decode()]
                threads.append(threading.Thread(target=_answer, args=(connection, handler)))
                threads[-1].start()
        group = MPI.COMM_WORLD.Split(0, 0)
        opened.append(MpiRanks(communicator=group))
        group.Free()
        assert opened[-1].parties == tuple(handlers)
        drivers.append(CarriedDriver(opened[-1].carrier(JOB), opened[-1].parties))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()
    for ranks in opened:
        ranks.close()
    for thread in threads:
        thread.join()


class TestMpiDriver(DriverContract):
    pass
