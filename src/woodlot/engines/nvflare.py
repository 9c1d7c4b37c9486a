"""A Woodlot job as an NVFlare job: the server's controller and the sites' executor (extra ``nvflare``).

What runs is installed at the server and the sites, not sent with the job; each of them has its settings in the folder
``local`` of its NVFlare workspace: ``coordinator.toml`` at the server, ``party.toml`` at a site. No job can point
elsewhere. A site has the name of its party.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from woodlot.engines.one_job import EngineCoordinator, export_model
from woodlot.engines.signed_order import SignedOrder
from woodlot.exceptions import ConfigError, WoodlotError
from woodlot.jobs.kind import outcome_of
from woodlot.runtime.drivers.nvflare_carrier import NvflareCarrier, answer_task, missing_extra
from woodlot.service.config import CoordinatorConfig, PartyConfig
from woodlot.service.party import Party
from woodlot.service.settings import read_toml

try:
    from nvflare.apis.event_type import EventType
    from nvflare.apis.executor import Executor
    from nvflare.apis.impl.controller import Controller
except ImportError as error:
    raise missing_extra(error) from error

logger = logging.getLogger(__name__)

COORDINATOR_FILE = "coordinator.toml"
PARTY_FILE = "party.toml"
MODEL = "model"
"""The folder of the model in the job's results."""

_NOWHERE = "nvflare:0"  # where a party would dial, if it did


class OrderController(Controller):  # type: ignore[misc]
    """At the server: runs a user's order, and leaves the model among the results of the job.

    Submitted again, the same order goes on where it was.

    Parameters
    ----------
    order : str
        The signed order, as `SignedOrder.encode` has it.

    """

    def __init__(self, order: str) -> None:
        super().__init__()
        self._order = order

    def start_controller(self, fl_ctx: Any) -> None:
        """Nothing is to be done before the run."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the job; a failure ends NVFlare's job as such, and its log has the words."""
        try:
            self._run(abort_signal, fl_ctx)
        except WoodlotError as error:
            self.system_panic(f"Woodlot: {error}", fl_ctx)

    def _run(self, abort_signal: Any, fl_ctx: Any) -> None:
        signed = SignedOrder.decode(self._order)
        workspace = fl_ctx.get_workspace()
        path = Path(workspace.get_site_config_dir()) / COORDINATOR_FILE
        sites = [client.name for client in fl_ctx.get_engine().get_clients()]
        with EngineCoordinator(
            CoordinatorConfig.load(path),
            lambda job: NvflareCarrier(self, fl_ctx, abort_signal, job),
            sites,
        ) as coordinator:
            facts = coordinator.run(signed)
            if facts.state != "done":
                self.system_panic(f"Woodlot: job {facts.job} {facts.standing}: {facts.error}", fl_ctx)
            elif facts.model and outcome_of(facts.kind) == "model":
                export_model(coordinator, facts.model, Path(workspace.get_run_dir(fl_ctx.get_job_id())) / MODEL)

    def stop_controller(self, fl_ctx: Any) -> None:
        """Nothing is left open."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: Any
    ) -> None:
        """Drop a reply that nobody waits for any more; the site has it in its journal."""


class PartyExecutor(Executor):  # type: ignore[misc]
    """At a site: the party, which checks every order against its own policy and keeps its own journal."""

    def __init__(self) -> None:
        super().__init__()
        self._party: Party | None = None

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Open the party when the run starts, and close it when it ends."""
        if event_type == EventType.START_RUN:
            try:
                self._party = _open_party(fl_ctx)
            except WoodlotError as error:
                # Its words may name files: they are for the site's own log, and not among the errors, which NVFlare
                # may send to the server.
                logger.warning("the party cannot take part", exc_info=error)
                self.system_panic("Woodlot: the party of this site cannot take part; its log says why", fl_ctx)
        elif event_type == EventType.END_RUN and self._party is not None:
            self._party.close()
            self._party = None

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Answer one request."""
        if self._party is None:
            raise ConfigError("the party of this site could not take part")
        return answer_task(shareable, self._party.answer)


def _open_party(fl_ctx: Any) -> Party:
    path = Path(fl_ctx.get_workspace().get_site_config_dir()) / PARTY_FILE
    raw = {"coordinator": _NOWHERE, **read_toml(path)}
    party = Party(PartyConfig.parse(raw, folder=path.absolute().parent, origin=str(path)))
    if party.identity.name != fl_ctx.get_identity_name():
        party.close()
        raise ConfigError(
            f"{path}: the identity is that of party {party.identity.name!r}, but NVFlare calls this site "
            f"{fl_ctx.get_identity_name()!r}; a site needs the name of its party"
        )
    return party
