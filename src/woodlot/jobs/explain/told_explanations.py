"""What a leader tells the user of an explanation, and where it keeps it: sealed, for only the user can use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.whole_files import replace_folder
from woodlot.exceptions import DataError, JournalError, RemoteProtocolError
from woodlot.jobs.explain.explanation_messages import SealedExplanation
from woodlot.jobs.job_store import JobStore
from woodlot.protocols.vertical.explain import ExplainedFeature, ExplainedRows

_TEXT_BYTES = 32
_FOLDER, _REPORT, _NOTES = "explanations", "sealed", "notes.json"


class ToldExplanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An explanation as it is sealed; arrays are little-endian numbers of 8 bytes, row after row.

    Attributes
    ----------
    features : tuple of (party, column or None)
        What the answers are divided among.
    classes : tuple
        The classes of a classifier; empty for a regressor.
    n_rows, n_outputs : int
        Lengths of the arrays.
    values, base, outputs : bytes
        See `ExplainedRows`.
    uncertain : bytes
        One byte for each row.
    texts : dict of str to tuple of str
        By number of the feature.

    """

    features: tuple[tuple[str, str | None], ...]
    classes: tuple[str | int | float | bool, ...]
    n_rows: int
    n_outputs: int
    values: bytes
    base: bytes
    outputs: bytes
    uncertain: bytes
    texts: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, found: ExplainedRows, classes: tuple[Any, ...]) -> ToldExplanation:
        """What was computed, in plain values."""
        return cls(
            features=tuple((feature.party, feature.column) for feature in found.features),
            classes=classes,
            n_rows=len(found.outputs),
            n_outputs=found.outputs.shape[1],
            values=_bytes(found.values),
            base=_bytes(found.base),
            outputs=_bytes(found.outputs),
            uncertain=found.uncertain.astype(np.uint8).tobytes(),
            texts={str(number): texts for number, texts in found.texts.items()},
        )

    @property
    def rounding(self) -> int:
        """Bytes that values in words lack to multiples of 32, so that the length of all tells less of theirs."""
        lengths = (len(msgspec.json.encode(text)) for texts in self.texts.values() for text in texts)
        return sum(-length % _TEXT_BYTES for length in lengths)

    def rows(self) -> ExplainedRows:
        """What was computed; lengths that do not go together are refused."""
        shape = (self.n_rows, len(self.features), self.n_outputs)
        try:
            found = ExplainedRows(
                tuple(ExplainedFeature(*feature) for feature in self.features),
                _numbers(self.values).reshape(shape),
                _numbers(self.base).reshape(self.n_outputs),
                _numbers(self.outputs).reshape(self.n_rows, self.n_outputs),
                np.frombuffer(self.uncertain, np.uint8).astype(np.bool_).reshape(self.n_rows),
                {int(number): texts for number, texts in self.texts.items()},
            )
        except ValueError:
            raise RemoteProtocolError("the explanation has arrays that do not go together") from None
        odd = [n for n, texts in found.texts.items() if not 0 <= n < shape[1] or len(texts) != self.n_rows]
        if odd or len(self.classes) not in (0, self.n_outputs):
            raise RemoteProtocolError("the explanation has texts or classes that do not go with its rows")
        return found


def _bytes(array: NDArray[np.float64]) -> bytes:
    return array.astype("<f8").tobytes()


def _numbers(data: bytes) -> NDArray[np.float64]:
    return np.frombuffer(data, "<f8").astype(np.float64)


def keep_sealed(store: JobStore, job: str, report: bytes, account: dict[str, str]) -> None:
    """Keep a sealed explanation for its user, at once or not at all."""
    target = store.folder / _FOLDER / job

    def fill(folder: Path) -> None:
        (folder / _REPORT).write_bytes(report)
        (folder / _NOTES).write_text(json.dumps(account))

    try:
        replace_folder(target, fill)
    except OSError as error:
        raise JournalError(f"{target} cannot be written ({error}); make room on the disk") from error


def sealed_explanation(store: JobStore, job: str) -> SealedExplanation:
    """What `keep_sealed` has kept."""
    folder = store.folder / _FOLDER / job
    if not folder.is_dir():
        raise DataError(f"job {job} has no explanation here")
    try:
        report, account = (folder / _REPORT).read_bytes(), json.loads((folder / _NOTES).read_text())
        return SealedExplanation(
            report=np.frombuffer(report, np.uint8), disclosure=account["disclosure"], cost=account["cost"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{folder} is not as it was written ({error}); restore the state folder") from None
