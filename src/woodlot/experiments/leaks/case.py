"""A case to be attacked: parties with their columns, what they send each other, and what an attack came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.federation import Federation
from woodlot.protocols.messages.base import Message

LABEL = "label of the leak test"
MARGIN = 0.03
"""What an attack must reach above chance to count."""


@dataclass(frozen=True)
class Finding:
    """What one attack came to.

    Attributes
    ----------
    attack, setting, role : str
        What was tried, under which setting, by whom.
    measure : str
        What the figures are.
    value : float
        What the attacker reached.
    chance : float
        What it would have reached without any message.
    leaks : bool
        Whether the messages have told more than chance.
    words : str
        The same in a sentence.

    """

    attack: str
    setting: str
    role: str
    measure: str
    value: float
    chance: float
    leaks: bool
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass
class Tape:
    """All messages of a run, in order: sender, receiver, message."""

    messages: list[tuple[str, str, Message]] = field(default_factory=list)

    def record(self, sender: str, receiver: str, message: Message) -> None:
        """Take one message down."""
        self.messages.append((sender, receiver, message))

    def got_by(self, role: str) -> list[Message]:
        """What a role got from others."""
        return [message for _, receiver, message in self.messages if receiver == role]


@dataclass(frozen=True, eq=False)
class Case:
    """A table whose columns are dealt to parties, and its labels, which the first party holds.

    Attributes
    ----------
    columns : dict of str to dict of str to array
        Each party's columns.
    labels : array
        One class per row.
    ids : array or None
        Ids, for the attack on their hashes.

    """

    columns: dict[str, dict[str, NDArray[Any]]]
    labels: NDArray[Any]
    ids: NDArray[Any] | None = None

    @property
    def holder(self) -> str:
        """The party with the labels."""
        return next(iter(self.columns))

    @property
    def passive(self) -> str:
        """A party without labels: the attacker inside the federation."""
        return list(self.columns)[1]

    def matrix(self, party: str) -> NDArray[np.float64]:
        """A party's columns as numbers: categories by their place in the alphabet, missing values as the mean."""
        parts = []
        for values in self.columns[party].values():
            if values.dtype.kind in "fiub":
                numbers = values.astype(np.float64)
            else:
                numbers = np.unique(values.astype(str), return_inverse=True)[1].astype(np.float64)
            parts.append(np.where(np.isnan(numbers), np.nanmean(numbers), numbers))
        return np.column_stack(parts)

    def federation(self) -> Federation:
        """The parties in this process."""
        tables = {party: pa.table(dict(columns)) for party, columns in self.columns.items()}
        tables[self.holder] = tables[self.holder].append_column(LABEL, pa.array(self.labels))
        return Federation.local(tables)


def case_of(
    table: Any, label: str, dealing: int | Mapping[str, Sequence[str]], *, id: str | None = None, max_rows: int = 3000
) -> Case:
    """A case from a user's own Arrow table.

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
    if table.num_rows > max_rows:
        table = table.take(np.random.default_rng(0).permutation(table.num_rows)[:max_rows])

    def values(name: str) -> NDArray[Any]:
        return np.asarray(table.column(name).to_numpy(zero_copy_only=False))

    columns = {party: {name: values(name) for name in own} for party, own in dealing.items()}
    return Case(columns, values(label), None if id is None else values(id))


def made_up_case(n_rows: int = 1500) -> Case:
    """A bank and a shop, and customers who pay or do not."""
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(n_rows, 3))
    noise = rng.normal(size=(n_rows, 8))
    bank = {f"bank_{k}": (latent @ rng.normal(size=3) / 3 + noise[:, k]) for k in range(4)}
    shop = {f"shop_{k}": (latent @ rng.normal(size=3) / 3 + noise[:, 4 + k]) for k in range(4)}
    signal = bank["bank_0"] + shop["shop_0"] + shop["shop_1"] * bank["bank_1"] / 2
    labels = np.where(signal + rng.normal(size=n_rows) > np.quantile(signal, 0.6), "late", "paid")
    return Case({"bank": bank, "shop": shop}, labels, rng.permutation(1_000_000)[:n_rows])
