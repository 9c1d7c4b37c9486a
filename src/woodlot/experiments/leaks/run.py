"""One job after the other, and all attacks on each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from woodlot.estimators.forest import FederatedForestClassifier
from woodlot.experiments.leaks.alignment import id_attack
from woodlot.experiments.leaks.case import LABEL, Case, Finding, Tape
from woodlot.experiments.leaks.partitions import drawn_rows, leaves_of_rows
from woodlot.experiments.leaks.prediction import prediction_attack
from woodlot.experiments.leaks.training import label_code_attack, leaf_attack, order_attack

LabelSetting = Literal["shared", "encrypted"]
LABEL_SETTINGS: tuple[LabelSetting, ...] = ("shared", "encrypted")


def run_leak_test(
    case: Case,
    params: Mapping[str, Any] | None = None,
    settings: Iterable[LabelSetting] = LABEL_SETTINGS,
    say: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Train, predict and align under every setting, and attack all of it.

    Parameters
    ----------
    case : Case
        The data.
    params : mapping, optional
        Parameters of the forest, such as ``n_estimators`` and ``max_depth``.
    settings : iterable of {"shared", "encrypted"}
        How labels are shared.
    say : callable
        Told what is being done.

    Returns
    -------
    list of Finding
        By attack and setting.

    """
    chosen = {"n_estimators": 20, "random_state": 0, **(params or {})}
    findings: list[Finding] = []
    grown: FederatedForestClassifier | None = None
    for labels in settings:
        say(f"training with labels={labels!r}")
        tape, federation = Tape(), case.federation()
        federation.observer = tape.record
        model = FederatedForestClassifier(**{**chosen, "labels": labels})
        model.fit(federation, y=f"{case.holder}.{LABEL}")
        leaf, drawn = leaves_of_rows(case, model), drawn_rows(model, len(case.labels))
        findings += label_code_attack(case, tape, labels)
        findings += leaf_attack(case, tape, labels, np.where(drawn, leaf, -1))
        if grown is None:
            grown = model
            findings += order_attack(case, model, leaf)
    if grown is not None:
        for sealed in (False, True):
            say(f"predicting, {'sealed' if sealed else 'plain'}")
            findings.append(prediction_attack(case, grown, sealed))
    say("aligning ids")
    findings += id_attack(np.arange(100_000, 100_000 + 2_000) if case.ids is None else case.ids)
    return findings
