"""The driver contract inside an NVFlare job: requests are tasks of real sites, which ask the handlers here.

The contract's handlers are closures that share barriers and lists with the tests, so they stay in the process of the
controller, which runs the tests. Each site has a handler that passes every message on over a local socket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import pytest
from nvflare.apis.executor import Executor
from nvflare.apis.impl.controller import Controller

from runtime.driver_contract import DriverContract, MakeDriver
from woodlot.jobs.order_seal import new_job
from woodlot.protocols.core.message import Message
from woodlot.runtime import codec
from woodlot.runtime.drivers import Driver, Handler, answer
from woodlot.runtime.drivers.carried import CarriedDriver, Carrier, Numbered
from woodlot.runtime.drivers.nvflare_carrier import NvflareCarrier, answer_task
from woodlot.runtime.sessions import Sessions


class Relay:
    """The handler of a job at a site."""

    def __init__(self, address: str, site: str, job: str) -> None:
        self._connection = Client(address)
        self._connection.send_bytes(f"{site} {job}".encode())

    def handle(self, message: Message) -> Message:
        self._connection.send_bytes(codec.encode(message))
        return codec.decode(self._connection.recv_bytes())


class ContractExecutor(Executor):
    """At a site: hands every request to its relay."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._sessions: Sessions | None = None

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        if self._sessions is None:
            site = fl_ctx.get_identity_name()
            self._sessions = Sessions(site, lambda job: Relay(self._address, site, job))
        return answer_task(shareable, self._sessions.answer)


class Renamed:
    """A carrier for the names of the contract; sites have names of their own."""

    def __init__(self, carrier: Carrier, sites: Mapping[str, str]) -> None:
        self._carrier = carrier
        self._sites = dict(sites)
        self._parties = {site: party for party, site in sites.items()}

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> None:
        named = {self._sites[party]: request for party, request in requests.items()}
        self._carrier.carry(named, lambda site, data: on_reply(self._parties[site], data), wait_seconds=wait_seconds)

    def close(self) -> None:
        self._carrier.close()


class Stage:
    """What the tests, which pytest imports and runs, know of the job in which they are run."""

    sites: tuple[str, ...] = ()
    handlers: dict[tuple[str, str], Handler] = {}  # noqa: RUF012 - the one of this process
    make_carrier: Callable[[str], Carrier]


class ContractController(Controller):
    """At the server: runs the contract's tests, and leaves the report where it was told to."""

    def __init__(self, address: str, report: str) -> None:
        super().__init__()
        self._address = address
        self._report = report

    def start_controller(self, fl_ctx: Any) -> None: ...

    def stop_controller(self, fl_ctx: Any) -> None: ...

    def process_result_of_unknown_task(self, *args: Any, **kwargs: Any) -> None: ...

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        Stage.sites = tuple(client.name for client in fl_ctx.get_engine().get_clients())
        Stage.make_carrier = lambda job: NvflareCarrier(self, fl_ctx, abort_signal, job)
        with Listener(self._address) as listener:
            threading.Thread(target=_accept, args=(listener,), daemon=True).start()
            # -W: NVFlare's own threads run in this process too, and may warn.
            options = ["-p", "no:xdist", "--color=no", "-s", "-W", "default", f"--junitxml={self._report}"]
            failed = pytest.main([str(Path(__file__)), *options])
        if failed:
            self.system_panic(f"the contract does not hold: {failed}", fl_ctx)


def _accept(listener: Listener) -> None:
    while True:
        connection = listener.accept()
        site, job = connection.recv_bytes().decode().split()
        threading.Thread(target=_answer, args=(connection, Stage.handlers[site, job]), daemon=True).start()


def _answer(connection: Connection, handler: Handler) -> None:
    with connection:
        while True:
            connection.send_bytes(answer(handler, connection.recv_bytes())[0])


@pytest.fixture
def make_driver() -> Iterator[MakeDriver]:
    from engines.nvflare_contract import Stage as stage  # noqa: N813 - pytest imports this file under another name

    drivers: list[Driver] = []

    def make(handlers: Mapping[str, Handler]) -> Driver:
        job, sites = new_job(), dict(zip(handlers, stage.sites, strict=False))
        assert len(sites) == len(handlers)
        stage.handlers.update({(sites[party], job): handler for party, handler in handlers.items()})
        drivers.append(CarriedDriver(Renamed(stage.make_carrier(job), sites), tuple(handlers)))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


class TestNvflareDriver(DriverContract):
    pass
