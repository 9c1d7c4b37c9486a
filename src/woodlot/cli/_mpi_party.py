"""The other ranks of ``woodlot mpi``: a party's table, its place in alignment and forest, and its part of the model."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from woodlot.data.labels import check_classes, check_targets, check_weights
from woodlot.data.values import natural_type
from woodlot.exceptions import ConfigError, DataError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.protocols.align import AlignParty
from woodlot.protocols.core.forest_parts import forget_values
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.part_files import PARTY
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical import forest_messages
from woodlot.protocols.vertical.blind_party import BlindParty
from woodlot.protocols.vertical.blind_proof import LabelVoucher
from woodlot.protocols.vertical.files import save_own_part
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.runtime.drivers.mpi_carrier import serve
from woodlot.runtime.sessions import Sessions
from woodlot.service.config import AlignmentConfig
from woodlot.trees.parallel import effective_jobs

if TYPE_CHECKING:
    from woodlot.cli.mpi import MpiJob
    from woodlot.data.sources import LoadedTable, TableSource


class Rank:
    """A party's rank.

    Parameters
    ----------
    job : MpiJob
        What is to be done.
    name : str
        The party.

    """

    def __init__(self, job: MpiJob, name: str) -> None:
        self._job = job
        self._name = name
        self._configured = AlignmentConfig(secret_file=job.secret_file).read_secret()

    def run(self, secret: bytes, *, as_json: bool) -> None:
        """Answer rank 0 until it ends; the parties' secret is the configured one, or else that of this run."""
        job = self._job.config.job
        holder, _, label = job.y.partition(".")
        weight = None if job.sample_weight is None else job.sample_weight.partition(".")[2]

        def open_job(name: str) -> RankParty:
            return RankParty(
                self._name,
                name,
                self._job.config.mpi[self._name],
                holder=holder,
                labels=(label, weight) if self._name == holder else None,
                task="classes" if job.task == "classification" else "targets",
                encrypted=self._job.config.forest.get("labels") == "encrypted",
                alone=len(self._job.parties) == 1,
                secret=self._configured or secret,
                folder=self._job.folder,
                n_jobs=effective_jobs(self._job.config.forest.get("n_jobs")),
            )

        serve(self._name, Sessions(self._name, open_job).answer)


class RankParty:
    """Answers the messages of a training at a party's rank.

    All ranks are of one owner, so nothing is signed, no policy is asked, and errors say what they would say at home.

    Parameters
    ----------
    name, job : str
        The party, and the run.
    source : TableSource
        Its table.
    holder : str
        The label holder.
    labels : tuple of str and (str or None), optional
        At the label holder, its columns of labels and weights.
    task : {"classes", "targets"}
        What is learnt.
    encrypted : bool
        Whether labels stay encrypted.
    alone : bool
        Whether there is nobody to align with.
    secret : bytes
        Of all parties' ranks, and not of rank 0.
    folder : Path
        Where parts of the model go.
    n_jobs : int
        Threads.

    """

    def __init__(
        self,
        name: str,
        job: str,
        source: TableSource,
        *,
        holder: str,
        labels: tuple[str, str | None] | None,
        task: str,
        encrypted: bool,
        alone: bool,
        secret: bytes,
        folder: Path,
        n_jobs: int,
    ) -> None:
        self.name = name
        self._labels = labels
        self._task = task
        self._kind: Callable[..., VerticalParty] = VerticalParty
        if encrypted:
            self._kind = partial(BlindParty, voucher=LabelVoucher(name, holder, job, shared_secret=secret))
        self._secret = secret
        self._folder = folder
        self._n_jobs = n_jobs
        self._loaded = _read(source, labels)
        self._forest: VerticalParty | None = None
        drawn = os.urandom(32)
        self._align: AlignParty | None = None
        if not alone:
            self._align = AlignParty(
                name,
                self._loaded.ids,
                entropy=lambda purpose: hmac.new(drawn, purpose.encode(), hashlib.sha256).digest(),
                shared_secret=secret,
                job=job,
            )

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        match message:
            case msg.OpenJob():
                return msg.JobOpened(
                    n_aligned=self._loaded.n_rows if self._align is None else None, fingerprint=self._loaded.digest
                )
            case forest_messages.OpenTraining():
                self._forest = self._open_forest()
            case msg.KeepModel():
                return self._keep(message.forest)
        if type(message) in AlignParty.handlers and self._align is not None:
            return self._align.handle(message)
        return self._training().handle(message)

    def _training(self) -> VerticalParty:
        if self._forest is None:
            raise RemoteProtocolError("no training is open here")
        return self._forest

    def _open_forest(self) -> VerticalParty:
        rows = np.arange(self._loaded.n_rows) if self._align is None else self._align.rows
        table = self._loaded.table().take(rows)
        target = None
        if self._labels is not None:
            label, weight = self._labels
            weights = None if weight is None else self._loaded.values(weight)[rows]
            target = _target(natural_type(self._loaded.values(label)[rows]), weights, self._task)
        return self._kind(
            self.name,
            table.select([column for column in self._loaded.features if column not in (self._labels or ())]),
            target=target,
            secret=hmac.new(self._secret, f"codes {self.name}".encode(), hashlib.sha256).digest(),
            n_jobs=self._n_jobs,
        )

    def _keep(self, forest: str) -> msg.ModelKept:
        part = forget_values(self._training().grown_forest())
        folder = self._folder / part_folder(self.name)
        try:
            return msg.ModelKept(digest=save_own_part(folder, self.name, forest, part))
        except OSError as error:
            raise DataError(f"its part cannot be written to {folder}: {error.strerror}") from None


def part_folder(party: str) -> str:
    """The folder of a party's part, as `save` names it."""
    return f"{PARTY}{quote(party, safe=' ')}"


def _read(source: TableSource, labels: tuple[str, str | None] | None) -> LoadedTable:
    try:
        loaded = source.read()
    except ConfigError as error:
        raise DataError(str(error)) from None
    for column in labels or ():
        if column is not None and column not in loaded.columns:
            raise DataError(f"{source} has no column {column!r}, or it may not be used; it has {list(loaded.columns)}")
    return loaded


def _target(labels: Any, weights: Any, task: str) -> Target:
    checked = check_weights(weights, labels)
    if task == "classes":
        return Target.of_classes(check_classes(labels), checked)
    return Target.of_values(check_targets(labels), checked)
