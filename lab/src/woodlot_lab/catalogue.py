"""The experiments by name, in the order of the papers."""

from __future__ import annotations

from importlib import import_module

from woodlot.exceptions import DataError
from woodlot_lab.experiment import Experiment

MODULES = {
    "data-sets": "data_sets",
    "ff-accuracy": "ff_accuracy",
    "ff-domains": "ff_domains",
    "ff-convergence": "ff_convergence",
    "ff-prediction": "ff_prediction",
    "fet-accuracy": "fet_accuracy",
    "fet-settings": "fet_settings",
    "rev-revocations": "rev_revocations",
    "rev-cost": "rev_cost",
    "rev-rebuilding": "rev_rebuilding",
    "rev-convergence": "rev_convergence",
    "collaborative-accuracy": "collaborative_accuracy",
    "privacy-accuracy": "privacy_accuracy",
    "protection-cost": "protection_cost",
    "cost-scaling": "cost_scaling",
    "revocation-cost": "revocation_cost",
}
"""Name of each experiment, and its module; modules are imported when they are needed."""
ALL = "all"


def find(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in MODULES:
        raise DataError(f"there is no experiment {name!r}; `woodlot reproduce --list` shows {', '.join(MODULES)}")
    experiment: Experiment = import_module(f"woodlot_lab.{MODULES[name]}").EXPERIMENT
    return experiment


def choose(names: list[str]) -> list[Experiment]:
    """The experiments of these names; ``all`` stands for every one."""
    chosen = [found for name in names for found in (MODULES if name == ALL else [name])]
    return [find(name) for name in dict.fromkeys(chosen)]
