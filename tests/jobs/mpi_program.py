"""What every rank runs in the tests of the MPI host: ``mpi_program.py STEP FOLDER``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import woodlot as wl
from woodlot.cli.train import order_maker
from woodlot.connected import ConnectedFederation
from woodlot.connected.scores import vote_of
from woodlot.engines.mpi import MpiJob, run_ranks
from woodlot.exceptions import JobFailed
from woodlot.jobs.job_messages import JobFacts
from woodlot.service.config import JobConfig

step, folder = sys.argv[1], Path(sys.argv[2])
LINEAR = {"max_iter": 20}


def killed(federation: ConnectedFederation) -> str:
    """Begin a training, and end as by kill -9 while trees grow."""

    def news(facts: JobFacts) -> None:
        if facts.phase == "grow":
            os.kill(os.getpid(), signal.SIGKILL)

    order = order_maker(JobConfig.load(folder / "job.toml"), "job.toml")(federation)
    return federation.run(order, news).model


def resumed(federation: ConnectedFederation) -> str:
    """Go on with the training, predict with its forest, and with a linear model; then ask for what is not allowed."""
    client = federation.client
    (stopped,) = client.jobs()
    assert (stopped.state, stopped.error) == ("stopped", "the ranks ended before it did")
    model = client.find_model(client.finish(client.resume(stopped.job).job).model)
    asked = federation.predict_order(model.model, "bank.default", deliver_to="bank", vote=vote_of(model))
    predicted = federation.run(asked)
    linear = wl.FederatedLogisticRegression(**LINEAR).fit(federation, y="bank.default")
    answered = federation.run(federation.predict_linear_order(linear.linear_.model))
    try:
        wl.FederatedForestClassifier(min_samples_leaf=1).fit(federation, y="bank.default")
    except JobFailed as error:
        print(f"refused: {error}", flush=True)
    np.savez(
        folder / "outcome.npz",
        forest=client.predictions(predicted.job).outputs,
        linear=client.predictions(answered.job).outputs,
        score=predicted.score,
        fingerprint=model.forest,
    )
    return model.model


if __name__ == "__main__":
    job = lambda: MpiJob(folder / "job.toml", folder / "state", folder / "secret")  # noqa: E731
    print(f"model {run_ranks(job, {'killed': killed, 'resumed': resumed}[step])}", flush=True)
