"""Parts of models that a party has read already: requests of single rows come many times for the same model."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from woodlot.protocols.core.forest_parts import PartyForest

MOST_MODELS = 4
MOST_BYTES = 16 << 20
"""Files of a part that is remembered, at most: larger ones are read every time."""

Stamp = tuple[tuple[str, int, int, int, int], ...]


class HeldModels:
    """The last few parts that were read, for as long as their files are as they were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, str], tuple[Stamp, PartyForest]] = OrderedDict()

    def read(self, folder: Path, forest: str, load: Callable[[], PartyForest]) -> PartyForest:
        """The part in a folder, of the forest with this fingerprint; what the loading raises is raised."""
        key, stamp = (folder.name, forest), _stamp_of(folder)
        with self._lock:
            held = self._held.get(key)
            if held is not None and held[0] == stamp:
                self._held.move_to_end(key)
                return held[1]
        part = load()
        if sum(size for _, _, size, _, _ in stamp) <= MOST_BYTES:
            with self._lock:
                self._held[key] = (stamp, part)
                while len(self._held) > MOST_MODELS:
                    self._held.popitem(last=False)
        return part

    def forget(self, model: str) -> None:
        """Remember nothing of a model: it is erased."""
        with self._lock:
            for key in [key for key in self._held if key[0] == model]:
                del self._held[key]


def _stamp_of(folder: Path) -> Stamp:
    """What changes when a file of a folder does: parts are replaced as a whole, so each has files of its own."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            about = entry.stat()
            found.append((entry.name, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns))
    return tuple(sorted(found))
