"""What the messages of a prediction tell: the outcomes of splits."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2

from woodlot.estimators.forest import FederatedForestClassifier
from woodlot.experiments.leaks.case import Case, Finding, Tape
from woodlot.experiments.leaks.partitions import leaves_of_rows, sides_at
from woodlot.protocols.messages.sealed import SealedLeaves
from woodlot.protocols.messages.vertical import Decisions
from woodlot.protocols.part_files import COORDINATOR


def prediction_attack(case: Case, model: FederatedForestClassifier, sealed: bool) -> Finding:
    """How many outcomes of a party's splits the coordinator reads from one prediction, per row and tree."""
    tape, federation = Tape(), case.federation()
    federation.observer = tape.record
    model.predict(federation, sealed=sealed)
    victim, leaf = case.passive, leaves_of_rows(case, model)
    on_path = float(np.abs(sides_at(model.forest_.coordinator, victim, leaf)[0]).sum() / leaf.size)
    got = [message for sender, _, message in tape.messages if sender == victim]
    setting, measure = f"{'sealed' if sealed else 'plain'} prediction", "split outcomes told per row and tree"
    if not sealed:
        bits = sum(64 * int(message.lengths.sum()) for message in got if isinstance(message, Decisions))
        value = bits / leaf.size
        return Finding(
            "outcomes at prediction",
            setting,
            COORDINATOR,
            measure,
            value,
            on_path,
            value > 1.05 * on_path,
            f"{victim} tells its side at every node that a row could reach by its own splits; the path alone has the "
            "second figure",
        )
    numbers = np.concatenate([m.values for m in got if isinstance(m, SealedLeaves)] or [np.zeros(0, np.uint64)])
    seen = np.bincount((numbers >> np.uint64(56)).astype(np.int64), minlength=256)
    statistic = float(((seen - seen.mean()) ** 2 / max(seen.mean(), 1e-9)).sum())
    uniform = statistic < chi2.isf(1e-6, 255)
    return Finding(
        "outcomes at prediction",
        setting,
        COORDINATOR,
        measure,
        on_path,
        on_path,
        not uniform,
        f"the coordinator learns the leaf, so the outcomes on the path; {victim}'s {len(numbers):,} numbers are "
        f"{'uniform' if uniform else 'NOT uniform'} (chi2 {statistic:.0f} of 255)",
    )
