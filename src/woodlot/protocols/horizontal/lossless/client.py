"""A client of the lossless forest: counts its rows where it is asked to, and sends them down the trees.

The rows themselves are in `RowBlock`s: one here, or several on a cluster of the client's, whose numbers are added. All
that leaves the client are vectors of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.blocks import Blocks, OwnBlock
from woodlot.protocols.horizontal.client import HorizontalClient, State
from woodlot.protocols.horizontal.lossless.block import RowBlock, Splits
from woodlot.protocols.horizontal.lossless.plan import LosslessPlan
from woodlot.protocols.messages import horizontal as msg
from woodlot.protocols.messages import lossless, secure_sum
from woodlot.protocols.messages.base import Message
from woodlot.protocols.secure_sum import SumClient
from woodlot.protocols.vertical.target import Target
from woodlot.trees.quantiles import DIGIT_BITS, VALUE_BITS
from woodlot.trees.sampling import derive_seed


class LosslessClient(HorizontalClient):
    """A client whose rows are counted.

    Parameters
    ----------
    name, table, target, secret, plan, n_jobs
        As for `HorizontalClient`. The secret, if any, is the same at every client: the rows that a tree draws follow
        from it, and the forest is that of the pooled rows only if all draw alike.
    sums : SumClient
        Its part of the sums.
    blocks : Blocks, optional
        `RowBlock`s that have these rows elsewhere; by default they are counted here.
    """

    takes: ClassVar[Mapping[type[Message], State]] = {
        secure_sum.OpenSums: State.ready,
        secure_sum.StartSums: State.ready,
        lossless.CountValues: State.ready,
        lossless.DrawRows: State.ready,
        lossless.CountCells: State.ready,
    }

    def __init__(
        self,
        name: str,
        table: Table,
        target: Target,
        *,
        sums: SumClient,
        secret: bytes = b"",
        plan: LosslessPlan | None = None,
        n_jobs: int = 1,
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__(name, table, target, secret=secret, plan=plan, n_jobs=n_jobs)
        self._sums = sums
        self._declared = {} if plan is None else plan.declared()
        self._keeps_past = blocks is not None
        self._blocks = OwnBlock(RowBlock(table, target, n_jobs), table.n_rows) if blocks is None else blocks
        self._drawing = 0
        self._tried = 0
        self._level = -1
        self._past: list[Splits] = []

    def _on_UseSchema(self, message: msg.UseSchema) -> msg.SchemaInUse:
        self._blocks.set_up("use_schema", message, self._task)
        self._schema = message
        self.state = State.ready
        return msg.SchemaInUse()

    def _on_OpenSums(self, message: secure_sum.OpenSums) -> Message:
        return self._sums.handle(message)

    def _on_StartSums(self, message: secure_sum.StartSums) -> Message:
        return self._sums.handle(message)

    def _answer(
        self, message: lossless.CountValues | lossless.DrawRows | lossless.CountCells, numbers: NDArray[np.int64]
    ) -> Message:
        if len(numbers) != message.order.length:
            raise RemoteProtocolError("a sum was ordered of another length than that of the numbers asked for")
        return self._sums.answer(message.order, numbers, self.digest_of(message))

    def _added(self, method: str, *arguments: Any, once_more: tuple[Any, ...] = ()) -> NDArray[np.int64]:
        """The numbers of all blocks, added; those that were lost meanwhile are asked again, with what they missed."""
        n_blocks = len(self._blocks.bounds) - 1
        answers, lost = self._blocks.ask(method, dict.fromkeys(range(n_blocks), arguments))
        while lost:
            told, lost = self._blocks.ask(method, dict.fromkeys(sorted(lost), arguments + once_more))
            answers |= told
        numbers = answers[0]
        for k in range(1, n_blocks):
            numbers = numbers + answers[k]
        return np.asarray(numbers, np.int64)

    # --- bins ---

    def _on_CountValues(self, message: lossless.CountValues) -> Message:
        columns = np.unique(message.column).tolist()
        if (
            len(message.column) != len(message.prefix)
            or message.known_bits not in range(0, VALUE_BITS, DIGIT_BITS)
            or any(not self._is_numeric(f) for f in columns)
            or (message.prefix & np.uint32((1 << (VALUE_BITS - message.known_bits)) - 1)).any()
        ):
            raise RemoteProtocolError("CountValues asks for values that no column has")
        if any(self.schema.names[f] in self._declared for f in columns):
            raise RemoteProtocolError("CountValues asks for values of a column whose bins were declared")
        self._sums.check(message.order)  # before any column is sorted for it
        return self._answer(message, self._added("count_values", message))

    def _is_numeric(self, f: int) -> bool:
        return f < len(self.schema.names) and self.schema.categories[f] is None

    # --- drawing ---

    def _on_DrawRows(self, message: lossless.DrawRows) -> Message:
        n_columns = len(self.schema.names)
        if len(message.n_edges) != n_columns or (self._task == "targets") != (message.target_bits > 0):
            raise RemoteProtocolError("DrawRows is not about this client's columns and labels")
        if isinstance(self.plan, LosslessPlan):
            settings = self.plan.settings(n_columns)
            self.check_ordered(message, n_estimators=message.n_trees, with_rows=message.with_rows)
            if message.seed != settings.bootstrap_seed or self.plan.bootstrap != (len(message.thresholds) > 0):
                raise RemoteProtocolError("DrawRows is not what was ordered: rows would be drawn in another way")
        self._check_edges(message)
        self._sums.check(message.order)
        # A drawing of its own each time: if the sum is refused, the trees before go on as they were.
        self._tried += 1
        seed = derive_seed(message.seed, "rows", secret=self._secret)
        drawn = self._blocks.set_up("draw", self._tried, message, seed)
        totals = np.sum([np.frombuffer(each, np.int64) for each in drawn], axis=0)
        reply = self._answer(message, totals)
        self._drawing, self._level, self._past = self._tried, -1, []
        return reply

    def _check_edges(self, message: lossless.DrawRows) -> None:
        stops = np.cumsum(message.n_edges.astype(np.int64))
        for f, name in enumerate(self.schema.names):
            if self._is_numeric(f):
                edges = message.edges[stops[f] - int(message.n_edges[f]) : stops[f]]
                if not (np.diff(edges) > 0).all() or not np.array_equal(edges, self._declared.get(name, edges)):
                    raise RemoteProtocolError("the edges of bins do not ascend, or are not those that were declared")

    # --- growing ---

    def _on_CountCells(self, message: lossless.CountCells) -> Message:
        if not self._drawing:
            raise RemoteProtocolError("CountCells is not due before rows are drawn")
        if message.level not in (self._level, self._level + 1):  # the same again: other nodes, features or clients
            raise RemoteProtocolError(f"level {message.level} is not due after level {self._level}")
        self._sums.check(message.order)
        numbers = self._added("count", self._drawing, self._level, message, once_more=(tuple(self._past),))
        reply = self._answer(message, numbers)
        if message.level > self._level:
            self._level = message.level
            if self._keeps_past:
                self._past.append(Splits.of(message))
        return reply
