"""``woodlot drift``: have new rows compared with those that a forest was grown on."""

from __future__ import annotations

from typing import Annotated

import typer

from woodlot.cli._client import (
    Access,
    AsJson,
    CoordinatorOption,
    IdentityOption,
    JobFile,
    JobFileOption,
    TablesOption,
    parse_tables,
    print_json,
    reach,
    reporting,
    run_for_me,
)
from woodlot.cli._rows import SplitOption, SplitSeedOption, check_split
from woodlot.cli.predict import tables_of
from woodlot.cli.train import AlignMethod, AlignOption
from woodlot.exceptions import ConfigError


def drift(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name or id of the forest.")],
    tables: TablesOption = None,
    split: SplitOption = None,
    split_seed: SplitSeedOption = None,
    align: AlignOption = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Compare new rows with those of a forest's training: population stability of columns and of answers.

    Each owner compares its own columns with what it has kept of the training, and the label holder the answers with
    those out of bag. All of it is sealed to you: the coordinator does not read it. Below 0.1 a column is called stable,
    above 0.25 shifted. Parties must allow it, with "drift" among the protocols of their policy since the training.

    Example: woodlot drift risk --tables customers_in_may
    """
    with reporting(as_json):
        if tables is None:
            raise ConfigError("name the tables of the new rows, such as --tables customers_in_may")
        check_split(split, split_seed)
        access = Access.find(coordinator, identity, JobFile.read(job))
        from woodlot.connected import ConnectedFederation
        from woodlot.connected.drifted_rows import read_drift
        from woodlot.connected.scores import vote_of
        from woodlot.evaluation.drift import told_drift

        with reach(access) as client:
            found = client.find_model(model)
            if found.layout == "rows":
                raise ConfigError("this model is over rows; drift is watched for forests over columns")
            federation = ConnectedFederation(
                client, tables_of(found, parse_tables(tables), None), (align or AlignMethod.keyed_hash).value, "inner"
            )
            if split is not None:
                _, federation = federation.split(split, seed=split_seed or 0)
            order, keys = federation.drift_order(found.model, vote_of(found))
            moved = told_drift(read_drift(run_for_me(federation, order), keys))
        if as_json:
            shifted = list(moved.shifted)
            print_json({"job": order.job, "model": found.model, "drift": moved.to_dict(), "shifted": shifted})
            return
        from woodlot.cli import _show as show

        show.stdout().print(repr(moved), markup=False, highlight=False, soft_wrap=True)
