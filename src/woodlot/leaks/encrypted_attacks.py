"""The messages of a training with ``labels="encrypted"``, from one with shared labels and the same bins.

Both give the same forest, bit for bit. A party without labels gets, in place of the labels' code, one ciphertext per
row, and it is told which nodes are closed instead of working it out; its own sums travel in sealed envelopes. No attack
here works on ciphertexts, so the rest can be taken from the faster run: ``tests/leaks/test_leaks.py`` compares it
with a run that does encrypt.
"""

from __future__ import annotations

from collections.abc import Iterator

from woodlot.leaks.case import Told
from woodlot.protocols.vertical.blind_messages import GrowBlind, PlantBlind, ResolvedTies, StartBlind
from woodlot.protocols.vertical.forest_messages import (
    EncodedLabels,
    GrowLevel,
    GrowthStart,
    HolderOffers,
    Offers,
    PlantTrees,
    ShareLabels,
    StartForest,
)


def as_encrypted(messages: list[Told], holder: str) -> list[Told]:
    """What the same training sends where labels are encrypted, without ciphertexts and envelopes."""
    told = [message.is_open for _, _, message in messages if isinstance(message, HolderOffers)]
    levels: dict[str, Iterator[int]] = {}
    found: list[Told] = []
    for sender, receiver, message in messages:
        match message:
            case EncodedLabels() | ShareLabels():
                continue
            case StartForest():
                fields = {name: getattr(message, name) for name in GrowthStart.__struct_fields__}
                found.append((sender, receiver, StartBlind(**fields)))
            case Offers():
                found.append((sender, receiver, ResolvedTies(feature=message.feature)))
            case PlantTrees() | GrowLevel() if receiver != holder:
                is_open = told[next(levels.setdefault(receiver, iter(range(len(told)))))]
                if isinstance(message, PlantTrees):
                    blind = PlantBlind(
                        first_tree=message.first_tree,
                        n_trees=message.n_trees,
                        candidates=message.candidates,
                        is_open=is_open,
                    )
                    found.append((sender, receiver, blind))
                else:
                    level = GrowBlind(
                        is_split=message.is_split, flags=message.flags, candidates=message.candidates, is_open=is_open
                    )
                    found.append((sender, receiver, level))
            case _:
                found.append((sender, receiver, message))
    return found
