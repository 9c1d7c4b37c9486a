"""Who has learnt what in one job: a table of assets by roles, from the record of its messages.

What a kind of message tells is said once, in `woodlot.protocols.core.stakes`. Of a job that a party leads the
coordinator has recorded sealed frames; what was in them the leader's account says, where it is on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from woodlot.dashboard.views import COORDINATOR
from woodlot.protocols.core.message import Role, registered
from woodlot.protocols.core.stakes import ASSETS, STAKES, Asset, Stake, assets_of, stake_of
from woodlot.runtime.audit import DisclosureRow

Column = Literal["coordinator", "leader", "parties", "user", "helper"]

COLUMNS: tuple[Column, ...] = ("coordinator", "leader", "parties", "user", "helper")
LEADER = " (leader)"
"""How a leader's own account calls it, after its name."""

_HELPERS = (Role.helper, Role.key_service)
_ON_REQUEST: dict[str, tuple[str, ...]] = {
    "model": ("JobStatus", "ModelList", "ModelPart"),
    "answers": ("JobStatus", "Predictions"),
    "explanation": ("JobStatus", "SealedExplanation"),
    "receipt": ("JobStatus", "ReceiptText"),
    "erasure": ("JobStatus", "ReceiptText"),
}
"""By the outcome of a job, the messages in which its user may ask for it."""


@dataclass(frozen=True)
class Roles:
    """Who is who in a job.

    Attributes
    ----------
    leader : str
        The party that leads it or, if the coordinator does, the one with the labels; empty: there is none.
    leads : bool
        Whether that party leads.
    user : str
        Who has ordered it.
    """

    leader: str = ""
    leads: bool = False
    user: str = ""

    def column(self, row: DisclosureRow) -> Column:
        """The column of whoever has received a message."""
        kind = registered().get(row.kind)
        if row.receiver in (COORDINATOR, Role.dealer.value):  # the dealer of a job that a party leads
            return "coordinator"
        if kind is not None and kind.discloses.receiver in _HELPERS:
            return "helper"
        if row.receiver == Role.user.value:
            return "user"
        return "leader" if row.receiver.removesuffix(LEADER) == self.leader else "parties"


@dataclass
class Cell:
    """What one role has learnt of one asset.

    Attributes
    ----------
    messages : list of DisclosureRow
        What has told it, most at stake first.
    is_sealed : bool
        Whether sealed frames have reached the role whose content is not known here.
    """

    messages: list[DisclosureRow] = field(default_factory=list)
    is_sealed: bool = False

    @property
    def stake(self) -> Stake:
        """What is at stake in the worst of its messages."""
        return min((stake_of(row.kind) for row in self.messages), key=STAKES.index, default="nothing")

    @property
    def bytes(self) -> int:
        """Size of all its messages; what was never sent, only offered, has none."""
        return sum(row.bytes for row in self.messages)

    @property
    def count(self) -> int:
        """Number of its messages."""
        return sum(row.count for row in self.messages)


@dataclass(frozen=True)
class Matrix:
    """Assets by roles.

    Attributes
    ----------
    columns : dict
        Who is in each column that the job has, by name.
    rows : dict
        For each asset the cells, in the order of the columns.
    """

    columns: dict[Column, tuple[str, ...]]
    rows: dict[Asset, dict[Column, Cell]]

    def added(self, other: Matrix) -> Matrix:
        """Both together: of the same cell, the messages of both."""
        columns = {
            column: tuple(sorted({*self.columns.get(column, ()), *other.columns.get(column, ())}))
            for column in COLUMNS
            if column in self.columns or column in other.columns
        }
        rows: dict[Asset, dict[Column, Cell]] = {}
        for asset in ASSETS:
            mine, theirs = self.rows.get(asset, {}), other.rows.get(asset, {})
            if mine or theirs:
                rows[asset] = {c: _sum(mine.get(c, Cell()), theirs.get(c, Cell())) for c in columns}
        return Matrix(columns, rows)

    def words(self, asset: Asset) -> str:
        """An asset, in words."""
        return ASSETS[asset]


def _sum(one: Cell, other: Cell) -> Cell:
    """Messages of the same kind between the same two are one line."""
    found: dict[tuple[str, str, str], DisclosureRow] = {}
    for row in [*one.messages, *other.messages]:
        key = (row.sender, row.receiver, row.kind)
        before = found.get(key)
        if before is not None:
            row = DisclosureRow(*key, before.count + row.count, before.bytes + row.bytes, row.form, row.reveals)
        found[key] = row
    messages = sorted(found.values(), key=lambda row: (STAKES.index(stake_of(row.kind)), -row.bytes))
    return Cell(messages, one.is_sealed or other.is_sealed)


def learnt(
    record: Iterable[DisclosureRow], roles: Roles, account: Sequence[DisclosureRow] = (), offered: Iterable[str] = ()
) -> Matrix:
    """Make the table of a job.

    Parameters
    ----------
    record : iterable of DisclosureRow
        Its messages, by the record of the coordinator or of a party.
    roles : Roles
        Who is who.
    account : sequence of DisclosureRow
        The leader's account of what was in the frames, where it is here.
    offered : iterable of str
        Kinds of messages in which its user may ask for the outcome; see `on_request`.
    """
    told = [*record, *account, *(_offer(kind) for kind in offered)]
    rows: dict[Asset, dict[Column, Cell]] = {asset: {} for asset in ASSETS}
    names: dict[Column, set[str]] = {}
    for row in told:
        if row.sender.removesuffix(LEADER) == row.receiver.removesuffix(LEADER):
            continue  # a leader asks its own part, too: that tells it nothing
        column = roles.column(row)
        name = row.receiver.removesuffix(LEADER)
        names.setdefault(column, set()).add(
            roles.user if column == "user" else COORDINATOR if name == "dealer" else name
        )
        for asset in assets_of(row.kind):
            rows[asset].setdefault(column, Cell()).messages.append(row)
    framed = [] if account else [column for column in ("leader", "parties") if column in rows["frames"]]
    present = [column for column in COLUMNS if column in names]
    for asset, cells in rows.items():
        for column in present:
            cell = cells.setdefault(column, Cell())
            cell.messages.sort(key=lambda row: (STAKES.index(stake_of(row.kind)), -row.bytes))
            cell.is_sealed = column in framed and asset != "frames" and not _worst(cell)
    kept = {asset: {c: cells[c] for c in present} for asset, cells in rows.items() if asset != "frames" or any(
        cell.messages for cell in cells.values())}  # fmt: skip
    return Matrix({column: tuple(sorted(names[column])) for column in present}, kept)


def _worst(cell: Cell) -> bool:
    return any(stake_of(row.kind) == "rows" for row in cell.messages)


def on_request(outcome: str, gives_answers: bool = True) -> tuple[str, ...]:
    """Kinds of messages in which a user may ask for the outcome of a job."""
    kinds = _ON_REQUEST.get(outcome, ("JobStatus",))
    return kinds if gives_answers else tuple(kind for kind in kinds if kind != "Predictions")


def _offer(kind: str) -> DisclosureRow:
    told = registered()[kind].discloses
    return DisclosureRow(told.sender.value, told.receiver.value, kind, 0, 0, told.form, told.reveals)


# --- the leak test of the same setting ---

_PARTS = {
    "align": ("ids",), "predict": ("predictions",), "evaluate": ("evaluations",), "train-linear": ("linear",),
    "predict-linear": ("linear",), "train-revocable": ("revocable",), "train-rows": ("horizontal",),
    "revoke-rows": ("horizontal",), "forget-rows": ("horizontal",), "predict-rows": ("horizontal",),
}  # fmt: skip
_SETTINGS = ("n_estimators", "max_depth", "min_samples_leaf", "max_features", "max_bins", "min_cell")
MOST_TREES = 100
"""Trees of a forest that is attacked: what a user writes must not keep the attacker busy for days."""


def leak_test(kind: str, is_led: bool, is_hidden: bool, params: dict[str, object]) -> str:
    """The command that attacks the messages of such a job in simulation; empty where no attack is on them."""
    if kind in ("train", "revoke"):
        parts: tuple[str, ...] = ("hidden",) if is_hidden else ("led",) if is_led else ("labels", "values")
    else:
        parts = _PARTS.get(kind, ())
    if not parts:
        return ""
    known: dict[str, float] = {
        name: value
        for name in _SETTINGS
        if isinstance(value := params.get(name), int | float) and not isinstance(value, bool)
    }
    if "n_estimators" in known:
        known["n_estimators"] = min(known["n_estimators"], MOST_TREES)
    settings = [f"--set {name}={value}" for name, value in known.items()]
    return " ".join(["woodlot leak-test", *(f"--part {part}" for part in parts), *settings])
