"""A case to be attacked: parties with their columns, the messages between them, and what an attack found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.federation import Federation
from woodlot.protocols.core.message import Message

LABEL = "label of the leak test"
MARGIN = 0.03
"""What an attack must reach above its baseline to count as a leak."""
NEARLY_ALL = 0.95
"""Share of labels, or rank correlation, from which nearly everything is recovered."""

Task = Literal["classes", "targets"]
Asset = Literal["labels", "values", "ids", "predictions"]
Verdict = Literal["recovered", "more", "no more", "not attacked"]
Told: TypeAlias = tuple[str, str, Message]
"""Sender, receiver, message."""


@dataclass(frozen=True)
class Finding:
    """What one attack found, or that a channel was not attacked.

    Attributes
    ----------
    role, setting : str
        Who attacks, and in which setting of the product.
    asset : {"labels", "values", "ids", "predictions"}
        What is at stake.
    attack : str
        What was tried; of a channel that was not attacked, what it is.
    measure : str
        What the figures are.
    value, baseline : float or None
        What the attacker reached, and what it reaches without any message. None: not attacked.
    against : str
        What the baseline is.
    words : str
        The same in a sentence.
    seconds : float
        How long the attack took.

    """

    role: str
    setting: str
    asset: Asset
    attack: str
    measure: str
    value: float | None
    baseline: float | None
    against: str
    words: str
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """What the figures come to. "no more" is of this attack only, never of the channel."""
        if self.value is None or self.baseline is None:
            return "not attacked"
        if self.value <= self.baseline + MARGIN:
            return "no more"
        return "recovered" if self.value >= NEARLY_ALL else "more"

    @property
    def leaks(self) -> bool | None:
        """Whether the messages have told more than the baseline; None: not attacked."""
        return None if self.verdict == "not attacked" else self.verdict != "no more"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "verdict": self.verdict, "leaks": self.leaks}


def not_attacked(role: str, setting: str, asset: Asset, channel: str, words: str) -> Finding:
    """A channel for which there is no attack here: it gets no verdict."""
    return Finding(role, setting, asset, channel, "", None, None, "", words)


@dataclass
class Tape:
    """All messages of a run, in order: sender, receiver, message."""

    messages: list[Told] = field(default_factory=list)

    def record(self, sender: str, receiver: str, message: Message) -> None:
        """Take one message down."""
        self.messages.append((sender, receiver, message))

    def seen_by(self, role: str) -> list[Told]:
        """What a role gets from others and sends to them: all that it learns from a run."""
        return [told for told in self.messages if role in told[:2]]


@dataclass(frozen=True, eq=False)
class Case:
    """A table whose columns are dealt to parties, and its labels, which the first party holds.

    Attributes
    ----------
    columns : dict of str to dict of str to array
        Each party's columns.
    labels : array
        One class or one target per row.
    ids : array or None
        Ids, for the attacks on their tokens.
    task : {"classes", "targets"}
        Classification or regression.

    """

    columns: dict[str, dict[str, NDArray[Any]]]
    labels: NDArray[Any]
    ids: NDArray[Any] | None = None
    task: Task = "classes"

    @property
    def holder(self) -> str:
        """The party with the labels."""
        return next(iter(self.columns))

    @property
    def passive(self) -> str:
        """A party without labels: the attacker inside the federation."""
        return list(self.columns)[1]

    @property
    def parties(self) -> tuple[str, ...]:
        """All parties."""
        return tuple(self.columns)

    @property
    def n_rows(self) -> int:
        """Rows."""
        return len(self.labels)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Number of each row's class."""
        return np.asarray(np.unique(self.labels, return_inverse=True)[1], np.int64).ravel()

    def is_numeric(self, party: str, column: str) -> bool:
        """Whether a column holds numbers."""
        return self.columns[party][column].dtype.kind in "fiub"

    def matrix(self, party: str) -> NDArray[np.float64]:
        """A party's columns as numbers: categories by their place in the alphabet, missing values as the mean."""
        parts = []
        for name, values in self.columns[party].items():
            if self.is_numeric(party, name):
                numbers = values.astype(np.float64)
            else:
                numbers = np.unique(values.astype(str), return_inverse=True)[1].astype(np.float64)
            middle = np.nanmean(numbers) if np.isfinite(numbers).any() else 0.0
            parts.append(np.where(np.isnan(numbers), middle, numbers))
        return np.column_stack(parts)

    def subset(self, chosen: NDArray[Any]) -> Case:
        """Some of the rows, by number or by mask."""
        columns = {p: {name: values[chosen] for name, values in own.items()} for p, own in self.columns.items()}
        return Case(columns, self.labels[chosen], None if self.ids is None else self.ids[chosen], self.task)

    def federation(self) -> Federation:
        """The parties in this process."""
        tables = {party: pa.table(dict(columns)) for party, columns in self.columns.items()}
        tables[self.holder] = tables[self.holder].append_column(LABEL, pa.array(self.labels))
        return Federation.local(tables)


def case_of(
    table: Any,
    label: str,
    dealing: int | Mapping[str, Sequence[str]],
    *,
    id: str | None = None,
    max_rows: int | None = None,
    task: Task | None = None,
) -> Case:
    """A case from a user's own Arrow table: all its rows unless ``max_rows`` says otherwise.

    Raises
    ------
    DataError
        If there are not two parties with columns, or a column is missing.

    """
    names = [name for name in table.column_names if name not in (label, id)]
    if label not in table.column_names:
        raise DataError(f"there is no column {label!r}; the columns are {table.column_names}")
    if isinstance(dealing, int):
        dealing = {f"party-{k + 1}": names[k::dealing] for k in range(dealing)}
    unknown = [c for columns in dealing.values() for c in columns if c not in names]
    if unknown:
        raise DataError(f"there are no columns {unknown} to deal; there are {names}")
    if len(dealing) < 2 or not all(dealing.values()):
        raise DataError("a leak test needs two parties or more, each with a column")
    table = table.filter(table.column(label).is_valid())
    if max_rows is not None and table.num_rows > max_rows:
        table = table.take(np.random.default_rng(0).permutation(table.num_rows)[:max_rows])

    def values(name: str) -> NDArray[Any]:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return np.asarray(column.to_numpy(zero_copy_only=False))

    columns = {party: {name: values(name) for name in own} for party, own in dealing.items()}
    labels = values(label)
    if task is None:
        task = "targets" if labels.dtype.kind == "f" and len(np.unique(labels)) > MOST_CLASSES else "classes"
    if task == "targets":
        if labels.dtype.kind not in "fiub":
            raise DataError(f"{label} has no numbers: it cannot be the target of a regression")
        labels = labels.astype(np.float64)
    return Case(columns, labels, None if id is None else values(id), task)


MOST_CLASSES = 20
"""A label of numbers with a fraction and more distinct values than this is taken for the target of a regression."""


def made_up_case(n_rows: int = 1500, task: Task = "classes", seed: int = 0) -> Case:
    """A bank and a shop, and customers who pay or do not."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(n_rows, 3))
    noise = rng.normal(size=(n_rows, 8))
    bank = {f"bank_{k}": (latent @ rng.normal(size=3) / 3 + noise[:, k]) for k in range(4)}
    shop = {f"shop_{k}": (latent @ rng.normal(size=3) / 3 + noise[:, 4 + k]) for k in range(4)}
    signal = bank["bank_0"] + shop["shop_0"] + shop["shop_1"] * bank["bank_1"] / 2
    owed = signal + rng.normal(size=n_rows)
    labels = np.where(owed > np.quantile(signal, 0.6), "late", "paid") if task == "classes" else owed
    return Case({"bank": bank, "shop": shop}, labels, rng.permutation(1_000_000)[:n_rows], task)
