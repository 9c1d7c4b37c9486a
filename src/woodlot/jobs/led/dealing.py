"""The coordinator as the dealer of a job that a party leads.

The protocol that the leader runs may ask `DEALER` as it asks a party. Such a request is not sealed: it goes to the
coordinator, inside the connection that only the two have, and so does the answer. Parties see neither. The kind of the
job makes what answers (`Kind.dealer`), once for each run of the relay. It is asked what the leader has asked, in the
same order, so its state is rebuilt after a restart by the relay's journal. What it answers must follow from these
requests, from the order, and from the coordinator's lasting secret: the leader refuses a request that was answered
before and comes with other numbers.

A dealer learns what the leader tells it, and it must not work together with any party of the job. An order may name a
helper as the dealer: then the leader asks that one, by sealed frames as it asks parties, and the coordinator deals
nothing (`woodlot.jobs.hidden.helper_dealing`).
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.home import JobSigner
from woodlot.jobs.job_store import JobStore
from woodlot.protocols.core.agreement import Entropy
from woodlot.protocols.core.message import Role
from woodlot.runtime.drivers import Handler, answer
from woodlot.runtime.faults import wordless

logger = logging.getLogger(__name__)

DEALER = Role.dealer.value
"""What protocols call the dealer; no party of a job that has one may have this name."""


@dataclass(frozen=True, eq=False)
class DealerSeat:
    """What the coordinator, or a helper, has as the dealer of one job.

    Attributes
    ----------
    identity, trust
        Who the dealer is, and whom it believes.
    entropy : Entropy
        Its secrets: the same for the same job and purpose, also after a restart.
    again : bool
        Whether the job was begun before: certificates may have expired since.
    n_rows : int or None
        The common rows of the parties, as the coordinator has had them found. None: at a helper, which is told later.
    store : JobStore, optional
        The coordinator's record of former jobs.

    """

    identity: Identity
    trust: Trust
    entropy: Entropy
    again: bool
    n_rows: int | None
    store: JobStore | None = None

    @property
    def signer(self) -> JobSigner:
        """The dealer in agreements on keys, among parties."""
        return JobSigner(self.identity, self.trust, lambda: self.again)


def dealer_entropy(store: JobStore, job: str) -> Entropy:
    """The dealer's secrets in a job: they follow from the lasting secret of the coordinator."""
    return lambda purpose: store.secret.of(job, f"dealer {purpose}")


@dataclass(frozen=True, eq=False)
class DealtSigner(JobSigner):
    """A party in agreements on keys in which the coordinator may take part as the dealer.

    Attributes
    ----------
    coordinator : str
        The name in its certificate: the one that the user's order is for.

    """

    coordinator: str

    def verify(self, name: str, certificate: bytes, purpose: str, data: bytes, signature: bytes) -> None:
        """Check that another party, or the coordinator as the dealer, has signed."""
        if name != DEALER:
            super().verify(name, certificate, purpose, data, signature)
            return
        peer = self.trust.verify(certificate, purpose, data, signature, role="coordinator", again=self.replays())
        if peer.name != self.coordinator:
            raise RemoteProtocolError(
                f"coordinator {peer.name!r} has signed as the dealer, and the order is for {self.coordinator!r}"
            )


def begin_dealing(dealer: Handler, request: NDArray[np.uint8]) -> Future[NDArray[np.uint8]]:
    """Have the dealer answer while the parties work; what it refuses is an answer, too."""
    dealt: Future[NDArray[np.uint8]] = Future()

    def work() -> None:
        try:
            reply, error = answer(dealer, request.data)
            if error is not None:
                logger.warning("a request to the dealer is refused: %s", type(error).__name__, exc_info=wordless(error))
            dealt.set_result(np.frombuffer(reply, np.uint8))
        except BaseException as error:  # noqa: BLE001 - raised where the answer is needed
            dealt.set_exception(error)

    threading.Thread(target=work, name="woodlot-dealer", daemon=True).start()
    return dealt
