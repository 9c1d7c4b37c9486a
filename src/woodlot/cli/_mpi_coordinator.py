"""Rank 0 of ``woodlot mpi``: runs the training, keeps the coordinator's part, and says what came of it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from woodlot.cli import _show
from woodlot.cli._client import plain, print_json
from woodlot.cli._forest import make_estimator, plan_for
from woodlot.cli._mpi_party import part_folder
from woodlot.cli.train import grown_facts
from woodlot.estimators.estimator_settings import settings_of
from woodlot.estimators.loading import fitted
from woodlot.exceptions import ConfigError, ModelFileError
from woodlot.federation import GrownForest
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_jobs import train_job
from woodlot.jobs.columns.common_rows import Trained, model_facts
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.kind import CoordinatorHost
from woodlot.jobs.order_seal import new_job
from woodlot.jobs.orders import TrainOrder
from woodlot.protocols.core.message import Progress
from woodlot.protocols.core.part_files import COORDINATOR
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.carried import CarriedDriver
from woodlot.runtime.drivers.mpi_carrier import MpiCarrier
from woodlot.runtime.run import run
from woodlot.trees.parallel import effective_jobs

if TYPE_CHECKING:
    from woodlot.cli.mpi import MpiJob


class RankZero:
    """The coordinator of one cluster.

    Parameters
    ----------
    job : MpiJob
        What is to be done; the parameters of the forest are checked now.

    """

    def __init__(self, job: MpiJob) -> None:
        self._job = job
        self._estimator = make_estimator(job.config.job.task, job.config.forest, str(job.path))
        self._plan = plan_for(self._estimator, str(job.path))

    def run(self, secret: bytes, *, as_json: bool) -> None:
        """Run the training; the secret of the parties is not known here."""
        config, ledger = self._job.config, Ledger()
        order = TrainOrder(
            job=new_job(),
            created=time.time(),
            federation="",
            coordinator="",
            parties=self._job.parties,
            sealed={},
            method=config.align.method,
            holder=config.job.y.partition(".")[0],
            plan=self._plan,
            settings=json.dumps(settings_of(self._estimator)),
            name=config.job.name or "",
        )
        # One owner: there is nobody to convince.
        opening = msg.OpenJob(order=b"", signature=b"", certificate=b"", coordinator=b"", passed=b"")
        carrier = MpiCarrier(order.job)
        with (
            tempfile.TemporaryDirectory(prefix="woodlot-") as folder,
            closing(JobStore(Path(folder))) as store,
            CarriedDriver(carrier, carrier.parties, ledger=ledger) as driver,
            _show.watch_job() as show,
        ):
            if carrier.parties != self._job.parties:
                raise ConfigError("the ranks have different job files; give the same one to all")
            watch = _Watch(order, ledger, show)
            host = CoordinatorHost(store, effective_jobs(self._estimator.n_jobs))
            trained = run(
                train_job(order, opening, host),
                driver,
                ledger=ledger,
                on_progress=watch.progress,
                on_phase=watch.phase,
            )
        self._save(trained, ledger)
        facts = watch.ended(trained)
        self._say(facts, model_facts(order, facts, trained, ledger.account().to_json()), as_json)

    def _save(self, trained: Trained, ledger: Ledger) -> None:
        """Put the coordinator's part beside those that the parties have written, if they see the same disk."""
        forest = GrownForest(
            trained.forest,
            {},
            trained.shared,
            trained.unwilling,
            trained.oob.outputs,
            trained.oob.score,
            trained.oob.residuals,
            oob_curve=trained.oob.curve,
        )
        model = fitted(self._estimator, forest, ledger.account(), self._job.config.job.y)
        folder = self._job.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as scratch:
                model.save(Path(scratch) / "model")
                (Path(scratch) / "model" / COORDINATOR).rename(folder / COORDINATOR)
        except OSError as error:
            raise ModelFileError(f"the model cannot be written to {folder}: {error.strerror}") from None

    def _say(self, facts: msg.JobFacts, model: msg.ModelFacts, as_json: bool) -> None:
        job = self._job
        if as_json:
            print_json(plain(facts) | {"out": str(job.folder), "forest": plain(model)})
            return
        console = _show.stdout(terminal=False)  # mpirun gives ranks a terminal, whoever reads its own output
        told = {name: value for name, value in grown_facts(facts, model).items() if name not in ("model", "name")}
        told["model"] = f"{job.folder}/coordinator, and a folder of each party's rank"
        console.print(Text(f"Forest {model.name} has grown.".replace("  ", " ")), end="\n\n")
        console.print(_show.facts_grid(told))
        parts = ", ".join(repr(str(job.folder / part_folder(party))) for party in job.parties)
        _show.next_commands(
            console, [f"model = woodlot.load({str(job.folder)!r})", f"whole = model.combine([{parts}])"]
        )
        if self._estimator.random_state is not None and job.secret_file is None:
            console.print(
                "\nCodes of columns and the order of rows follow from a secret that was drawn for this run. With "
                "--secret FILE the same random_state gives the same forest again.",
                markup=False,
            )


class _Watch:
    """Keeps the facts of the run, as a coordinator would tell them."""

    def __init__(self, order: TrainOrder, ledger: Ledger, show: Callable[[msg.JobFacts | None], None]) -> None:
        self._ledger = ledger
        self._show = show
        self._facts = msg.JobFacts(
            job=order.job, kind="train", user="", state="running", version=1, created=order.created,
            started=order.created, parties=order.parties, name=order.name,
        )  # fmt: skip

    def _change(self, **fields: Any) -> msg.JobFacts:
        self._facts = msgspec.structs.replace(self._facts, **fields)
        return self._facts

    def progress(self, progress: Progress) -> None:
        cost = self._ledger.cost()
        now = self._change(
            done=progress.done, total=progress.total, note=progress.note, rounds=cost.rounds,
            bytes_by_party=cost.bytes_by_party, network_seconds=cost.network_seconds,
        )  # fmt: skip
        self._show(now)

    def phase(self, phase: str) -> None:
        self._show(self._change(phase=phase, done=0, total=0, note=""))

    def ended(self, trained: Trained) -> msg.JobFacts:
        cost, aligned = self._ledger.cost(), trained.aligned
        return self._change(
            state="done", ended=time.time(), rounds=cost.rounds, bytes_by_party=cost.bytes_by_party,
            network_seconds=cost.network_seconds, n_rows=aligned.n_rows, rows=aligned.rows,
            common=aligned.common, score=trained.oob.score,
        )  # fmt: skip
