"""Secret-shared rows of nodes: shuffled inside their nodes, opened as bins, added up, and searched for splits.

Two servers hold shares of one table of records, 64-bit words each. A word is shared bit by bit (XOR), by addition
modulo 2**64, or by XOR in its low bits and by addition above them. The mask ``xor`` (uint64, one per word) has the bits
that are shared by XOR. Low bits never carry into high ones, so that both kinds live in one word::

    bits of word 0      | low ``bits``    | upper bits, and further words     | words behind them              |
    record of a row     | empty           | values: rows, weight, classes ..  | columns: ``bits`` for each     |
    record of a pair    | code of column  | values: rows, weight, classes ..  |
    xor                 | ones            | 0                                 | ones                           |

``start`` and ``end`` (int64) bound segments of records that are shuffled together: the rows of a node, or those of a
pair of a node and one of its candidate columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.cells import order_cells, score_of_split, score_of_whole

I64: Any = np.int64
U64: Any = np.uint64
LOW = U64(0xFFFFFFFF)


@kernel
def draw_order(start: Any, end: Any, random: Any, source: Any) -> None:
    """A random permutation of every segment: record i of the shuffled table is record ``source[i]`` (uint32).

    Fisher and Yates, with one 64-bit number for each record: a draw below m is the upper half of the product with m.
    It is off from uniform by less than m / 2**64, which no number of shuffles makes visible.
    """
    for q in range(len(start)):
        s = start[q]
        for i in range(s, end[q]):
            source[i] = i
        for i in range(end[q] - 1, s, -1):
            m = U64(i - s + 1)
            x = random[i]
            j = s + I64(((x >> U64(32)) * m + (((x & LOW) * m) >> U64(32))) >> U64(32))
            kept = source[i]
            source[i] = source[j]
            source[j] = kept


@kernel
def _plus(x: Any, y: Any, xor: Any) -> Any:
    return ((x & ~xor) + (y & ~xor)) | ((x ^ y) & xor)


@kernel
def _minus(x: Any, y: Any, xor: Any) -> Any:
    return ((x & ~xor) - (y & ~xor)) | ((x ^ y) & xor)


@kernel
def take_off(records: Any, mask: Any, xor: Any, out: Any) -> None:
    """Hide a share behind a mask before it is sent."""
    for i in range(len(records)):
        for w in range(len(xor)):
            out[i, w] = _minus(records[i, w], mask[i, w], xor[w])


@kernel
def carry(own: Any, masked: Any, source: Any, fresh: Any, xor: Any, out: Any) -> None:
    """The server that knows the order: its new share, from its own, the masked one of the other, and what was dealt."""
    for i in range(len(source)):
        j = I64(source[i])
        for w in range(len(xor)):
            out[i, w] = _plus(_plus(own[j, w], masked[j, w], xor[w]), fresh[i, w], xor[w])


@kernel
def deal(mask: Any, source: Any, other: Any, xor: Any, out: Any) -> None:
    """The dealer: the shuffled mask less what the other side is given; the two parts add up to the shuffled mask."""
    for i in range(len(source)):
        j = I64(source[i])
        for w in range(len(xor)):
            out[i, w] = _minus(mask[j, w], other[i, w], xor[w])


@kernel
def to_bytes(records: Any, used: Any, out: Any) -> None:
    """The used low bytes of each word, lowest first, record after record."""
    o = 0
    for i in range(len(records)):
        for w in range(len(used)):
            word = records[i, w]
            for _ in range(used[w]):
                out[o] = np.uint8(word & U64(0xFF))
                word >>= U64(8)
                o += 1


@kernel
def from_bytes(data: Any, used: Any, out: Any) -> None:
    """What `to_bytes` has made; bytes that are not used are 0."""
    o = 0
    for i in range(len(out)):
        for w in range(len(used)):
            word = U64(0)
            for b in range(used[w]):
                word |= U64(data[o]) << U64(8 * b)
                o += 1
            out[i, w] = word


@kernel
def pack_codes(codes: Any, features: Any, bits: Any, first_word: Any, out: Any) -> None:
    """Put the codes of some columns (columns, rows) into the words of each row from ``first_word`` on."""
    per_word = 64 // bits
    for i in range(out.shape[0]):
        for w in range(first_word, out.shape[1]):
            out[i, w] = 0
    for k in range(len(features)):
        f = features[k]
        w = first_word + k // per_word
        shift = U64((k % per_word) * bits)
        for i in range(out.shape[0]):
            out[i, w] |= U64(codes[f, i]) << shift


@kernel
def gather_pairs(
    records: Any,
    start: Any,
    end: Any,
    pair_node: Any,
    slot: Any,
    dropped: Any,
    bits: Any,
    n_values: Any,
    first_word: Any,
    out: Any,
) -> None:
    """Records of pairs: the code in a slot of every row of a node, with its values; pair after pair.

    Of the code of pair q the ``dropped[q]`` lowest bits stay here: they are in no record that is opened.
    """
    per_word = 64 // bits
    mask = (U64(1) << U64(bits)) - U64(1)
    o = 0
    for q in range(len(pair_node)):
        w = first_word + slot[q] // per_word
        shift = U64((slot[q] % per_word) * bits + dropped[q])
        upper = mask >> U64(dropped[q])
        node = pair_node[q]
        for i in range(start[node], end[node]):
            out[o, 0] = (records[i, 0] & ~mask) | ((records[i, w] >> shift) & upper)
            for v in range(1, n_values):
                out[o, v] = records[i, v]
            o += 1


@kernel
def gather_codes(
    records: Any, start: Any, end: Any, slot: Any, dropped: Any, bits: Any, first_word: Any, out: Any
) -> None:
    """Upper bits of one code of every row of some nodes: the share of the column that splits the node."""
    per_word = 64 // bits
    o = 0
    for node in range(len(start)):
        w = first_word + slot[node] // per_word
        shift = U64((slot[node] % per_word) * bits + dropped[node])
        mask = (U64(1) << U64(bits - dropped[node])) - U64(1)
        for i in range(start[node], end[node]):
            out[o] = (records[i, w] >> shift) & mask
            o += 1


@kernel
def find_cells(codes: Any, size: Any, n_values: Any, missing: Any, out: Any) -> bool:
    """The cells of opened codes of pairs: one per code of a value, then that of missing values.

    ``missing`` (int64) has the code of missing values of each pair, -1 where none is missing. Returns False at a code
    that is neither.
    """
    o = 0
    for q in range(len(size)):
        for _ in range(size[q]):
            code = I64(codes[o])
            if code == missing[q]:
                code = n_values[q]
            elif code >= n_values[q]:
                return False
            out[o] = code
            o += 1
    return True


@kernel
def add_up(records: Any, bins: Any, size: Any, first_cell: Any, xor: Any, out: Any) -> None:
    """A server's share of the sums of every cell: the records of pair q whose opened bin is b go to its cell b."""
    o = 0
    for q in range(len(size)):
        for _ in range(size[q]):
            cell = first_cell[q] + I64(bins[o])
            for w in range(len(xor)):
                out[cell, w] += records[o, w] & ~xor[w]
            o += 1


@kernel
def regroup(records: Any, start: Any, end: Any, left: Any, child_start: Any, is_open: Any, out: Any) -> None:
    """Stable partition of nodes into their children; those of a closed child are left out.

    ``left`` (uint8) has a flag for every row of the nodes. Children stand left, right, left ...; ``child_start``
    (int64) has where each begins in ``out``.
    """
    o = 0
    for node in range(len(start)):
        at_left = child_start[2 * node]
        at_right = child_start[2 * node + 1]
        for i in range(start[node], end[node]):
            if left[o]:
                if is_open[2 * node]:
                    for w in range(records.shape[1]):
                        out[at_left, w] = records[i, w]
                    at_left += 1
            elif is_open[2 * node + 1]:
                for w in range(records.shape[1]):
                    out[at_right, w] = records[i, w]
                at_right += 1
            o += 1


@kernel
def spread_draws(dealt: Any, masked: Any, n_classes: Any, word: Any, shift: Any, out: Any) -> None:
    """A server: from the dealt shares of one tree's draws and the masked labels, its shares of the rows' values.

    ``dealt`` (rows, 1 + classes): whether the row was drawn, and how often where the dealer's mask is 0, 1, ...: the
    label is the mask plus ``masked``, modulo the classes. Field f goes to ``word[f]`` at ``shift[f]``: rows, weight,
    weights of classes 1 and on.
    """
    for i in range(len(dealt)):
        out[i, word[0]] += dealt[i, 0] << U64(shift[0])
        weight = U64(0)
        for j in range(n_classes):
            weight += dealt[i, 1 + j]
        out[i, word[1]] += weight << U64(shift[1])
        for k in range(1, n_classes):
            j = k - I64(masked[i])
            if j < 0:
                j += n_classes
            out[i, word[k + 1]] += dealt[i, 1 + j] << U64(shift[k + 1])


@kernel
def spread_targets(dealt: Any, masked: Any, word: Any, shift: Any, out: Any) -> None:
    """As `spread_draws` for targets: ``dealt`` is whether drawn, how often, and that times the mask and its square.

    The target is the mask plus ``masked`` modulo 2**64. The fields are rows, weight, weighted target, and its square.
    """
    for i in range(len(dealt)):
        e = masked[i]
        out[i, word[0]] += dealt[i, 0] << U64(shift[0])
        out[i, word[1]] += dealt[i, 1] << U64(shift[1])
        out[i, word[2]] += e * dealt[i, 1] + dealt[i, 2]
        out[i, word[3]] += e * e * dealt[i, 1] + U64(2) * e * dealt[i, 2] + dealt[i, 3]


@kernel
def read_cells(own: Any, other: Any, word: Any, shift: Any, width: Any, rows: Any, weights: Any, sums: Any) -> bool:
    """The leader: open the sums of all cells; False where they cannot be those of rows.

    ``weights`` is (cells, classes), with one class for targets; ``sums`` are those of targets.
    """
    mask = (U64(1) << U64(width)) - U64(1)
    n_classes = weights.shape[1]
    for c in range(len(rows)):
        rows[c] = I64(((own[c, word[0]] + other[c, word[0]]) >> U64(shift[0])) & mask)
        rest = I64(((own[c, word[1]] + other[c, word[1]]) >> U64(shift[1])) & mask)
        if rest < rows[c]:
            return False
        for k in range(1, n_classes):
            w, s = word[k + 1], U64(shift[k + 1])
            weights[c, k] = I64(((own[c, w] + other[c, w]) >> s) & mask)
            rest -= weights[c, k]
        weights[c, 0] = rest
        if rest < 0:
            return False
        if n_classes == 1 and len(word) > 2:
            sums[c] = I64(own[c, word[2]] + other[c, word[2]])
    return True


class BestCut(NamedTuple):
    """The best split of each node; all counted by node."""

    score: Any
    """float64: -inf where no split is allowed."""
    whole: Any
    """float64: score of the node without a split."""
    pair: Any
    """int64: which pair splits the node; -1 for none."""
    low: Any
    """int64: largest cell on the left, ..."""
    high: Any
    """int64: ... smallest cell on the right; -1 where only missing values are there."""
    missing_left: Any
    """uint8"""
    left_rows: Any
    """int64"""
    left: Any
    """int64 (nodes, classes): weights on the left."""
    left_sum: Any
    """int64: sum of targets on the left."""
    goes_left: Any
    """uint8 (nodes, cells): which cells go left; of missing values the cell after those of values."""


@kernel
def search_bins(
    rows: Any,
    hist: Any,
    sums: Any,
    first_cell: Any,
    pair_start: Any,
    n_values: Any,
    missing: Any,
    categorical: Any,
    total_rows: Any,
    total: Any,
    total_sum: Any,
    min_leaf: Any,
    min_weight: Any,
    kind: Any,
    first_wins: Any,
    table: Any,
    scale: Any,
    room: Any,
    best: Any,
) -> bool:
    """The leader: the best split of each node among its pairs, which stand in the node's order of candidates.

    Cells of pair q begin at ``first_cell[q]``: ``n_values[q]`` (int64) of values, and one more for missing values where
    ``missing[q]`` (uint8) says so; ``categorical`` (uint8) counts by pair as well. Equal scores go to the earlier pair,
    then to missing values on the right, then to the lower cut: as in ``search``. With ``first_wins`` the first pair
    that can split the node has it. Returns False where a pair does not add up to the totals of its node: a server has
    sent sums of other rows. ``room`` is the most cells of a pair.
    """
    n = hist.shape[1]
    order = np.zeros(room, np.int64)
    mean = np.zeros(room, np.float64)
    left = np.zeros(n, np.int64)
    check = np.zeros(n, np.int64)
    for node in range(len(pair_start) - 1):
        R = total_rows[node]
        S = total_sum[node]
        W = I64(0)
        for k in range(n):
            W += total[node, k]
        best.whole[node] = score_of_whole(total[node], n, W, S, kind, table, scale)
        best.score[node] = -np.inf
        best.pair[node] = -1
        for q in range(pair_start[node], pair_start[node + 1]):
            a = first_cell[q]
            values = n_values[q]
            cells = values + missing[q]
            r = I64(0)
            s = I64(0)
            check[:] = 0
            for cell in range(a, a + cells):
                r += rows[cell]
                s += sums[cell]
                for k in range(n):
                    check[k] += hist[cell, k]
            if r != R or s != S:
                return False
            for k in range(n):
                if check[k] != total[node, k]:
                    return False
            if first_wins and best.pair[node] >= 0:
                continue
            by_set = categorical[q] == 1
            m = 0
            if by_set:
                m = order_cells(cells, n, hist[a : a + cells], sums[a : a + cells], total[node], kind, order, mean)
            else:
                for cell in range(values):
                    if rows[a + cell] > 0:
                        order[m] = cell
                        m += 1
            has_missing = not by_set and missing[q] == 1 and rows[a + cells - 1] > 0
            for side in range(2 if has_missing else 1):
                w, r, s = I64(0), I64(0), I64(0)
                for k in range(n):
                    left[k] = hist[a + cells - 1, k] if side == 1 else I64(0)
                    w += left[k]
                if side == 1:
                    r = rows[a + cells - 1]
                    s = sums[a + cells - 1]
                last = m if has_missing and side == 0 else m - 1
                for i in range(last):
                    cell = a + order[i]
                    for k in range(n):
                        left[k] += hist[cell, k]
                        w += hist[cell, k]
                    r += rows[cell]
                    s += sums[cell]
                    if r < min_leaf or R - r < min_leaf or w < min_weight or W - w < min_weight:
                        continue
                    score = score_of_split(left, total[node], n, w, W, s, S, kind, table, scale)
                    if score <= best.score[node]:
                        continue
                    best.score[node] = score
                    best.pair[node] = q
                    best.low[node] = order[i]
                    best.high[node] = order[i + 1] if i + 1 < m else I64(-1)
                    # where no value is missing in the node, later missing values go where most rows went
                    best.missing_left[node] = side == 1 if has_missing else 2 * r > R
                    best.left_rows[node] = r
                    best.left_sum[node] = s
                    for k in range(n):
                        best.left[node, k] = left[k]
                    if by_set:
                        for cell in range(best.goes_left.shape[1]):
                            best.goes_left[node, cell] = 2 * r > R
                        for k in range(m):
                            best.goes_left[node, order[k]] = k <= i
    return True
