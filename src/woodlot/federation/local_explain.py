"""Explanations of a forest's answers by parties in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from woodlot.protocols.vertical.explain import ExplainedRows, explain_forest
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.runtime.audit import Account, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.predict import Vote

if TYPE_CHECKING:
    from woodlot.federation.grown import GrownForest
    from woodlot.federation.interface import OnProgress
    from woodlot.federation.local import Federation
    from woodlot.federation.local_revocable import Categories


def explain_here(
    federation: Federation, forest: GrownForest, vote: Vote, n_jobs: int, on_progress: OnProgress
) -> tuple[ExplainedRows, Account]:
    """Explain the answers for a federation's rows; a party's policy is asked as ever."""
    from woodlot.federation.local_revocable import RevocableGrown, as_numbers

    federation.check_prediction(forest)
    names: Categories = {}
    if isinstance(forest, RevocableGrown) and federation.key_by_party:
        federation, names = as_numbers(federation, forest.categories)
    present = federation.present(forest)
    handlers = {
        name: VerticalParty(
            name,
            federation.members[name].table,
            forest=forest.parts[name],
            known=federation.members[name].known,
            key_by_party=federation.key_by_party,
            sealed_only=federation.members[name].sealed_only,
            explains=federation.members[name].explains,
            n_jobs=federation.threads_of_a_party(n_jobs),
        )
        for name in present
    }
    ledger = Ledger(federation.observer)
    with InProcessDriver(handlers, ledger=ledger) as driver:
        protocol = explain_forest(forest.coordinator, present, federation.n_rows, vote=vote, n_jobs=n_jobs)
        found = run(protocol, driver, ledger=ledger, on_progress=on_progress)
    return _with_categories(found, names), ledger.account()


def _with_categories(found: ExplainedRows, names: Categories) -> ExplainedRows:
    """A revocable forest's categories are numbers; what is shown to people are their names."""
    texts = dict(found.texts)
    for number, column in found.texts.items():
        party, name = found.features[number]
        known = names.get(party, {}).get(name or "")
        if known is not None:
            words = (*known, "missing")
            texts[number] = tuple(words[int(code)] for code in column)
    return replace(found, texts=texts)
