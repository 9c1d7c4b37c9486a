"""The carrier for organisations that run NVFlare (extra ``nvflare``): requests are tasks, replies their results.

The server's ``Controller`` makes an `NvflareCarrier` and gives it to a `CarriedDriver`; a site's ``Executor`` hands
each task to `answer_task`. Both are in `woodlot.engines.nvflare`; provisioning, mutual TLS, authorisation and the
start of both are NVFlare's.

NVFlare does not bring back a site that has died: it ends the job, and a journalled run is resumed by submitting the
job again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from woodlot.exceptions import ConfigError, LocalProtocolError, PartyAwayError, RemoteProtocolError
from woodlot.runtime.drivers.carried import Numbered, Reply, Travel, travel_of

logger = logging.getLogger(__name__)

TASK = "woodlot"
"""The name of every task: what is asked is in the message."""

TASK_REQUEST_SECONDS = 0.01
"""How often a site asks for its next task; NVFlare's own 2 s would be the time of every round."""

_JOB, _NUMBER, _MESSAGE, _WORKED = "job", "number", "message", "worked"
_WAKE_SECONDS = 0.2


def missing_extra(error: ImportError) -> ConfigError:
    """What is said where NVFlare is not installed."""
    return ConfigError(
        f"NVFlare cannot be used: install the extra with pip install 'woodlot[nvflare]' at the server and at every "
        f"site ({error})"
    )


class NvflareCarrier:
    """Carries the requests of one job from NVFlare's server to its sites, which have the parties' names.

    Parameters
    ----------
    controller : nvflare.apis.impl.controller.Controller
        Whose ``control_flow`` runs the protocol.
    fl_ctx : nvflare.apis.fl_context.FLContext
        What the control flow was given.
    abort_signal : nvflare.apis.signal.Signal
        What the control flow was given; ends every wait when triggered.
    job : str
        The job: 32 hexadecimal digits. It is not NVFlare's, which is another at every submission.

    Raises
    ------
    ConfigError
        If NVFlare is not installed.

    """

    def __init__(self, controller: Any, fl_ctx: Any, abort_signal: Any, job: str) -> None:
        try:
            from nvflare.apis import controller_spec, fl_constant, shareable
        except ImportError as error:
            raise missing_extra(error) from error
        self._spec = controller_spec
        self._ok = fl_constant.ReturnCode.OK
        self._shareable = shareable.Shareable
        self._controller = controller
        self._fl_ctx = fl_ctx
        self._abort = abort_signal
        self._job = job
        self._closed = threading.Event()

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> Travel:
        """Send all requests at once and hand on the replies as they arrive; see `Carrier`.

        Whether a site is away, and since when that counts, is NVFlare's to say.
        """
        arrived: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        replies: list[Reply] = []
        since = time.perf_counter()
        tasks = {party: self._send(party, request, arrived) for party, request in requests.items()}
        try:
            while tasks:
                try:
                    party, result = arrived.get(timeout=_WAKE_SECONDS)
                except Empty:
                    self._check(list(tasks))
                    continue
                # Before the monitor of NVFlare finds out, which takes a while: the site gets its next task at once.
                self._controller.cancel_task(tasks.pop(party), self._spec.TaskCompletionStatus.OK, self._fl_ctx)
                data = self._read(party, requests[party], result)
                # What NVFlare puts around a message is not known here.
                n_bytes = len(requests[party].data) + len(data)
                replies.append(Reply(time.perf_counter() - since, result[_WORKED], n_bytes))
                on_reply(party, data)
        finally:
            for task in tasks.values():
                self._controller.cancel_task(task, self._spec.TaskCompletionStatus.CANCELLED, self._fl_ctx)
        return travel_of(replies)

    def _send(self, party: str, request: Numbered, arrived: SimpleQueue[tuple[str, Any]]) -> Any:
        """Have one site asked. A task of its own for each: what one party is asked is not for the others."""
        data = self._shareable()
        data.update({_JOB: self._job, _NUMBER: request.number, _MESSAGE: request.data})

        def receive(client_task: Any, fl_ctx: Any) -> None:
            result, client_task.result = client_task.result, None
            arrived.put((party, result))

        task = self._spec.Task(TASK, data, result_received_cb=receive)
        self._controller.send(task, self._fl_ctx, targets=[party], send_order=self._spec.SendOrder.ANY)
        return task

    def _check(self, waiting: Sequence[str]) -> None:
        """Raise if there is nothing to wait for any more."""
        if self._closed.is_set():
            raise LocalProtocolError("this carrier is closed")
        names = ", ".join(waiting)
        if self._abort is not None and self._abort.triggered:
            # It names no party, so that no round goes on without one.
            raise PartyAwayError(f"NVFlare has ended the job before {names} answered; submit it again to go on", ())
        away = tuple(party for party in waiting if self._controller.get_client_disconnect_time(party))
        if away:
            raise PartyAwayError(f"{', '.join(away)} cannot be reached any more, says NVFlare", away)

    def _read(self, party: str, request: Numbered, result: Any) -> bytes:
        code = result.get_return_code()
        if code != self._ok:
            raise RemoteProtocolError(f"party {party!r} failed ({code}); the log of its site says why")
        is_reply = result.get(_NUMBER) == request.number and isinstance(result.get(_MESSAGE), bytes)
        if not is_reply or not isinstance(result.get(_WORKED), float):
            raise RemoteProtocolError(f"party {party!r} sent an unexpected reply to request {request.number}")
        return bytes(result[_MESSAGE])

    def close(self) -> None:
        """Carry no more."""
        self._closed.set()


def answer_task(shareable: Any, answer: Callable[[str, int, bytes], bytes]) -> Any:
    """Answer a task at a site.

    Parameters
    ----------
    shareable : nvflare.apis.shareable.Shareable
        What the executor was given.
    answer : callable
        Returns the encoded reply to a job, a number and an encoded request: `Sessions.answer`.

    Returns
    -------
    nvflare.apis.shareable.Shareable
        What the executor returns.

    """
    job, number, message = (shareable.get(name) for name in (_JOB, _NUMBER, _MESSAGE))
    if not (isinstance(job, str) and isinstance(number, int) and isinstance(message, bytes)):
        raise RemoteProtocolError("this is not a task of Woodlot: job, number or message is missing")
    since = time.perf_counter()
    answered = answer(job, number, message)
    reply = type(shareable)()
    reply.update({_NUMBER: number, _MESSAGE: answered, _WORKED: time.perf_counter() - since})
    return reply
