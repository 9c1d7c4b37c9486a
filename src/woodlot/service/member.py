"""The processes of helper and key service: they dial the coordinator as parties do, and have no tables."""

from __future__ import annotations

import socket

from woodlot.data.whole_files import state_folder
from woodlot.exceptions import ConfigError
from woodlot.jobs.approvals import Approvals
from woodlot.jobs.hidden.helper_dealing import DealerBook
from woodlot.jobs.key_store import KEYS_FOLDER, KeyStore
from woodlot.jobs.member_job import MemberHome, MemberJob, MemberRole
from woodlot.jobs.restored import Restored
from woodlot.service.agent import Agent
from woodlot.service.config import MemberConfig
from woodlot.trees.parallel import effective_jobs


class MemberService(Agent):
    """One helper or key service.

    Parameters
    ----------
    config : MemberConfig
        Whom to dial, and who may order what.
    role : {"helper", "key service"}
        Which of the two.

    Raises
    ------
    ConfigError
        If it would run on the coordinator's host without having been asked to by name.

    """

    def __init__(self, config: MemberConfig, role: MemberRole) -> None:
        super().__init__(config, role)
        host = config.coordinator.host
        if not config.allow_same_host and is_this_host(host):
            raise ConfigError(
                f"the coordinator, {host}, is on this host, and with what the {role} has it could read splits and "
                f"requests; run the {role} elsewhere, or set allow_same_host = true for a trial"
            )
        state_folder(config.state)
        self._approvals = Approvals(config.state, config.policy.approval_days)
        home = MemberHome(
            role=role,
            identity=self.identity,
            trust=self.trust,
            policy=config.policy,
            store=KeyStore(config.state / KEYS_FOLDER, forgets=role == "key service"),
            dealt=DealerBook(config.state),
            n_jobs=effective_jobs(config.n_jobs),
            replays=lambda job: self._sessions.replays(job),
            tally=self.tally,
            approvals=self._approvals,
            restored=Restored(config.state),
        )
        try:
            self._connect(config, lambda job: MemberJob(home, job, self._sessions.end))
        except BaseException:
            self._approvals.close()
            raise

    def close(self) -> None:
        """Hang up, when what is being worked on is done."""
        super().close()
        self._approvals.close()


def is_this_host(host: str) -> bool:
    """Whether a name or address is one of this machine's own: then, and only then, one can listen at it."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except OSError:
        return False  # to dial it will fail too, and say why
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False
