"""The best cut of every pair, then the best pair of every node.

Scores and ties are those of ``kernels.search``: of equal scores in a node the feature with the smallest place wins,
then missing values on the right (the pair that is not turned), then the lowest cut.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from woodlot.trees.arrays.array_keys import KeyLayout, code_of, pair_of
from woodlot.trees.arrays.array_module import ArrayModule
from woodlot.trees.arrays.array_pairs import Pairs
from woodlot.trees.arrays.array_sums import TARGETS, TWO, Runs, XLogX, ordered

SCORED = 3
"""Way of the kernel whose scores are computed beforehand: entropy without a table of logarithms."""
KEYS_PER_THREAD = 8

SOURCE = r"""
typedef unsigned long long u64;
typedef long long i64;

// Rows on the left, weights on both sides: is this a cut, and what is its score?
__device__ inline bool scored(
    const u64* keys, i64 e, i64 begin, i64 end, bool turned, int payload_bits, int code_bits, int way,
    const i64* a, const i64* b, const i64* c, i64 a0, i64 b0, i64 c0, i64 at, i64 bt, i64 ct, const i64* xlogx,
    i64 min_leaf, i64 min_weight, double* score) {
  if (e + 1 >= end) return false;
  u64 here = keys[e] >> payload_bits;
  if (here == keys[e + 1] >> payload_bits) return false;
  if (turned && (here & ((1ull << code_bits) - 1)) == 0) return false;
  i64 rows = e + 1 - begin;
  if (rows < min_leaf || end - begin - rows < min_leaf) return false;
  if (way == 3) {
    *score = __longlong_as_double(b[e]);
    i64 w = a[e] - a0;
    return w >= min_weight && at - w >= min_weight;
  }
  if (way == 0) {
    u64 left = (u64)a[e] - (u64)a0, total = (u64)at;
    i64 w = left >> 32, k = left & 0xffffffffull, W = total >> 32, K = total & 0xffffffffull;
    i64 j = w - k, wr = W - w, kr = K - k, jr = wr - kr;
    if (w < min_weight || wr < min_weight) return false;
    if (xlogx) *score = (double)(xlogx[k] + xlogx[j] - xlogx[w] + xlogx[kr] + xlogx[jr] - xlogx[wr]);
    else *score = (double)(k * k + j * j) / (double)w + (double)(kr * kr + jr * jr) / (double)wr;
    return true;
  }
  i64 w = a[e] - a0, wr = at - w;
  if (w < min_weight || wr < min_weight) return false;
  if (way == 1) {
    double l = (double)(b[e] - b0), r = (double)bt - l;
    *score = l * l / (double)w + r * r / (double)wr;
    return true;
  }
  i64 l = b[e] - b0, r = ct - (c[e] - c0);
  if (xlogx) *score = (double)(l - xlogx[w] + r - xlogx[wr]);
  else *score = (double)l / (double)w + (double)r / (double)wr;
  return true;
}

__device__ inline u64 order_of(double x) {
  u64 bits = (u64)__double_as_longlong(x);
  return bits >> 63 ? ~bits : bits | (1ull << 63);
}

// A warp reads 32 * PER keys side by side. First it finds the best score of each pair, then the first key that has it.
extern "C" __global__ void best_cuts(
    const u64* keys, const i64* first, const unsigned char* turned, int payload_bits, int code_bits, int way,
    const i64* a, const i64* b, const i64* c, const i64* xlogx, i64 min_leaf, i64 min_weight, i64 n, int second,
    u64* top, u64* at) {
  const int PER = KEYS_PER_THREAD;
  i64 thread = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  int lane = threadIdx.x & 31;
  i64 base = (thread >> 5) * 32 * PER;
  i64 pair = -1, begin = 0, end = 0, a0 = 0, b0 = 0, c0 = 0, ta = 0, tb = 0, tc = 0;
  bool turn = false;
  u64 best = 0;
  for (int j = 0; j < PER; j++) {
    i64 e = base + j * 32 + lane;
    if (e >= n) break;
    i64 p = (i64)(keys[e] >> (payload_bits + code_bits));
    if (p != pair) {
      if (!second && best) atomicMax(&top[pair], best);
      best = 0; pair = p; begin = first[p]; end = first[p + 1]; turn = turned[p];
      a0 = begin ? a[begin - 1] : 0; ta = a[end - 1] - a0;
      if (way == 1 || way == 2) { b0 = begin ? b[begin - 1] : 0; tb = b[end - 1] - b0; }
      if (way == 2) { c0 = begin ? c[begin - 1] : 0; tc = c[end - 1] - c0; }
    }
    double score;
    if (!scored(keys, e, begin, end, turn, payload_bits, code_bits, way, a, b, c, a0, b0, c0, ta, tb, tc, xlogx,
                min_leaf, min_weight, &score)) continue;
    u64 order = order_of(score);
    if (!second) best = order > best ? order : best;
    else if (order == top[p]) atomicMin(&at[p], (u64)e);
  }
  if (second) return;
  i64 leader = __shfl_sync(0xffffffffu, pair, 0);
  if (__all_sync(0xffffffffu, pair == leader)) {  // one pair fills the warp: one atomic instead of 32
    for (int k = 16; k; k >>= 1) {
      u64 other = __shfl_down_sync(0xffffffffu, best, k);
      best = other > best ? other : best;
    }
    if (lane) return;
  }
  if (best) atomicMax(&top[pair], best);
}

// A thread is a node: the best of its pairs.
extern "C" __global__ void choose_pairs(
    const u64* keys, const i64* of_node, const i64* first, const u64* place, const unsigned char* turned,
    const int* feature, const i64* n_codes, const int* shift, const u64* top, const u64* at, const i64* a,
    const i64* xlogx, int payload_bits, int code_bits, int in_order, i64 n, i64* low, i64* high, double* score,
    double* whole, int* best_feature, unsigned char* best_turned, unsigned char* has_missing) {
  i64 node = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (node >= n) return;
  if (a) {  // of two classes: all rows of the first pair are those of the node
    i64 q = of_node[node], begin = first[q];
    u64 total = (u64)a[first[q + 1] - 1] - (begin ? (u64)a[begin - 1] : 0);
    i64 w = total >> 32, k = total & 0xffffffffull, j = w - k;
    whole[node] = xlogx ? (double)(xlogx[k] + xlogx[j] - xlogx[w]) : (double)(k * k + j * j) / (double)w;
  }
  i64 best = -1;
  for (i64 q = of_node[node]; q < of_node[node + 1]; q++) {
    if (!top[q]) continue;
    bool better;
    if (best < 0) better = true;
    else if (in_order) better = place[q] < place[best] || (place[q] == place[best] && top[q] > top[best]);
    else better = top[q] > top[best] || (top[q] == top[best] && place[q] < place[best]);
    if (better) best = q;
  }
  score[node] = -__longlong_as_double(0x7ff0000000000000ll);
  best_feature[node] = -1; low[node] = -1; high[node] = -1; best_turned[node] = 0; has_missing[node] = 0;
  if (best < 0) return;
  score[node] = __longlong_as_double((i64)(top[best] >> 63 ? top[best] ^ (1ull << 63) : ~top[best]));
  best_feature[node] = feature[best]; best_turned[node] = turned[best];
  u64 mask = (1ull << code_bits) - 1;
  i64 e = (i64)at[best], turn = turned[best];
  low[node] = (i64)((keys[e] >> payload_bits) & mask) - turn;
  i64 next = (i64)((keys[e + 1] >> payload_bits) & mask) - turn;
  i64 last = (i64)((keys[first[best + 1] - 1] >> payload_bits) & mask);
  i64 zero = (i64)((keys[first[best]] >> payload_bits) & mask), missing = n_codes[feature[best]];
  if (shift && shift[best]) missing = ((missing - 1) >> shift[best]) + 1;
  has_missing[node] = turn ? zero == 0 : last == missing;
  high[node] = !turn && next == missing ? -1 : next;
}
""".replace("KEYS_PER_THREAD", str(KEYS_PER_THREAD))


class Limits(NamedTuple):
    """What both sides of a split must have."""

    min_leaf: int
    min_weight: int


class Choice(NamedTuple):
    """The best split of each node of a batch, by place in the batch. All columns are parts of one array."""

    low: Any
    """int64: last code on the left; of categories the last rank."""
    high: Any
    """int64: first code on the right; -1 if only missing values are there."""
    score: Any
    """float64: -infinity if there is none."""
    whole: Any
    """float64: the score of the node left whole."""
    feature: Any
    """int32: -1 if there is none."""
    turned: Any
    """uint8: whether missing values go left."""
    has_missing: Any
    """uint8: whether a row of the node is missing."""
    block: Any
    """uint8: the bytes of all of them."""

    @classmethod
    def of(cls, xp: Any, n: int) -> Choice:
        """Room for n nodes."""
        return cls._cut(xp.empty(n * sum(CHOICE_BYTES), xp.uint8), n, 0)

    @classmethod
    def _cut(cls, block: Any, n: int, skipped: int) -> Choice:
        columns, at = [], 0
        for kind, width in zip(CHOICE_TYPES[skipped:], CHOICE_BYTES[skipped:], strict=True):
            columns.append(block[at : at + n * width].view(kind))
            at += n * width
        return cls._make([*[None] * skipped, *columns, block])

    @property
    def columns(self) -> tuple[Any, ...]:
        """What is said of each node, column by column."""
        return self[:-1]

    def told(self, arrays: ArrayModule) -> Choice:
        """What the process must know of it, by one copy: all but the cuts, which are None here."""
        n = len(self.score)
        return self._cut(arrays.get(self.block[n * sum(CHOICE_BYTES[:2]) :]), n, 2)

    def put(self, at: Any, some: Choice) -> None:
        """Overwrite what is said of some nodes."""
        for column, values in zip(self.columns, some.columns, strict=True):
            column[at] = values


def scores(arrays: ArrayModule, keys: Any, pairs: Pairs, runs: Runs, layout: KeyLayout, xlogx: XLogX | None) -> Any:
    """Score of the cut behind every key (float64); at the last key of a pair there is none, and it means nothing."""
    xp = arrays.xp
    q = pair_of(arrays, keys, layout)
    begin, end = pairs.first[q], pairs.first[q + 1]

    def left_and_total(run: Any) -> tuple[Any, Any]:
        base = xp.where(begin > 0, run[begin - 1], 0)
        return run - base, run[end - 1] - base

    a, whole = left_and_total(runs.a)
    if runs.way == TWO:
        low = xp.int64(0xFFFFFFFF)
        w, k, whole, total = a >> 32, a & low, whole >> 32, whole & low
        j, wr, kr = w - k, whole - w, total - k
        jr = wr - kr
        if xlogx is not None:
            return (xlogx(k) + xlogx(j) - xlogx(w) + xlogx(kr) + xlogx(jr) - xlogx(wr)).astype(xp.float64)
        left, right = k * k + j * j, kr * kr + jr * jr
        return _divided(xp, left, w) + _divided(xp, right, wr)
    w, wr = a, whole - a
    b, b_whole = left_and_total(runs.b)
    if runs.way == TARGETS:
        left, right = b.astype(xp.float64), (b_whole - b).astype(xp.float64)
        return _divided(xp, left * left, w) + _divided(xp, right * right, wr)
    c, c_whole = left_and_total(runs.c)
    if xlogx is not None:
        return (b - xlogx(w) + (c_whole - c) - xlogx(wr)).astype(xp.float64)
    return _divided(xp, b, w) + _divided(xp, c_whole - c, wr)


def _divided(xp: Any, numbers: Any, weights: Any) -> Any:
    return numbers.astype(xp.float64) / xp.maximum(weights, 1).astype(xp.float64)  # 0 only where there is no cut


def best_cuts(
    arrays: ArrayModule,
    keys: Any,
    pairs: Pairs,
    runs: Runs,
    layout: KeyLayout,
    xlogx: XLogX | None,
    xlogx_table: Any,
    limits: Limits,
) -> tuple[Any, Any]:
    """The best score of each pair, as `ordered` (0: no cut), and the first key behind which it is reached.

    ``xlogx_table`` is the table that ``xlogx`` looks up, None where there is none.
    """
    xp, n = arrays.xp, len(keys)
    if arrays.on_card:
        way, a, b = runs.way, runs.a, runs.b
        if xlogx is not None and xlogx_table is None:
            b = scores(arrays, keys, pairs, runs, layout, xlogx).view(xp.int64)
            way, a = SCORED, _running_weights(arrays, keys, pairs, runs, layout)
        top, at = xp.zeros(len(pairs.node), xp.uint64), xp.full(len(pairs.node), n, xp.uint64)
        null = np.uint64(0)
        for second in (0, 1):
            arrays.launch(
                SOURCE, "best_cuts", (n + KEYS_PER_THREAD - 1) // KEYS_PER_THREAD + 31, keys, pairs.first, pairs.turned,
                np.int32(layout.payload), np.int32(layout.code), np.int32(way), a, null if b is None else b,
                null if runs.c is None else runs.c, null if xlogx_table is None else xlogx_table,
                np.int64(limits.min_leaf), np.int64(limits.min_weight), np.int64(n), np.int32(second), top, at,
            )  # fmt: skip
        return top, at
    q = pair_of(arrays, keys, layout)
    begin, end = pairs.first[q], pairs.first[q + 1]
    e = np.arange(n)
    upper = keys >> np.uint64(layout.payload)
    is_cut = (e + 1 < end) & (upper != np.append(upper[1:], upper[-1:]))
    is_cut &= (pairs.turned[q] == 0) | (code_of(arrays, keys, layout) > 0)
    rows = e + 1 - begin
    is_cut &= (rows >= limits.min_leaf) & (end - begin - rows >= limits.min_leaf)
    base = np.where(begin > 0, runs.a[begin - 1], 0)
    w, whole = (np.asarray(a >> 32 if runs.way == TWO else a) for a in (runs.a - base, runs.a[end - 1] - base))
    is_cut &= (w >= limits.min_weight) & (whole - w >= limits.min_weight)
    order = np.where(is_cut, ordered(arrays, scores(arrays, keys, pairs, runs, layout, xlogx)), 0)
    top = np.maximum.reduceat(order, pairs.first[:-1])
    hits = np.flatnonzero((order == top[q]) & (order > 0))
    which, first = np.unique(q[hits], return_index=True)
    at = np.full(len(pairs.node), n, np.uint64)
    at[which] = hits[first]
    return top, at


def _running_weights(arrays: ArrayModule, keys: Any, pairs: Pairs, runs: Runs, layout: KeyLayout) -> Any:
    """Running sums of the weights alone; those of two classes begin at each pair again."""
    if runs.way != TWO:
        return runs.a
    xp = arrays.xp
    begin = pairs.first[pair_of(arrays, keys, layout)]
    inside = (runs.a - xp.where(begin > 0, runs.a[begin - 1], 0)) >> 32
    last = inside[pairs.first[1:] - 1]
    before = xp.cumsum(last) - last
    return inside + before[pair_of(arrays, keys, layout)]


def choose_pairs(
    arrays: ArrayModule,
    keys: Any,
    pairs: Pairs,
    codes: tuple[Any, Any],
    top: Any,
    at: Any,
    layout: KeyLayout,
    whole: Any,
    *,
    in_order: bool,
) -> Choice:
    """The best pair of every node.

    Parameters
    ----------
    codes : int64 array, and int32 array or None
        Code of missing values of each feature, and how many low bits of the codes of each pair are dropped.
    top, at : uint64 arrays
        From `best_cuts`.
    whole : float64 array, or running sums and table of x*log2(x) (or None)
        The scores of the nodes left whole; or, on a card, what they are made of where there are two classes and every
        node has a pair.
    in_order : bool
        Take the first feature in order that can split the node, not the best: where all candidates have failed.
    """
    xp, n = arrays.xp, len(pairs.of_node) - 1
    choice = Choice.of(xp, n)
    if arrays.on_card:
        null = np.uint64(0)
        run, table = whole if isinstance(whole, tuple) else (None, None)
        arrays.launch(
            SOURCE, "choose_pairs", n, keys, pairs.of_node, pairs.first, pairs.place, pairs.turned, pairs.feature,
            *(null if pointer is None else pointer for pointer in (*codes, top, at, run, table)),
            np.int32(layout.payload), np.int32(layout.code), np.int32(in_order), np.int64(n), *choice.columns,
        )  # fmt: skip
        if run is None:
            choice.whole[:] = whole
        return choice
    missing, shift = codes[0][pairs.feature], codes[1]
    if shift is not None:
        missing = np.where(shift > 0, ((missing - 1) >> shift) + 1, missing)
    rank = (~top, pairs.place) if not in_order else (pairs.place, ~top)
    order = np.lexsort((pairs.turned, rank[1], rank[0], top == 0, pairs.node))
    first = order[np.minimum(pairs.of_node[:-1], len(order) - 1)]
    found = (np.diff(pairs.of_node) > 0) & (top[first] > 0)
    q = np.where(found, first, 0)
    code = code_of(arrays, keys, layout)
    e = np.minimum(at[q].astype(np.int64), len(keys) - 2)
    turn = pairs.turned[q].astype(np.int64)
    following = code[e + 1] - turn
    low = np.where(found, code[e] - turn, -1)
    high = np.where(found & ((turn > 0) | (following != missing[q])), following, -1)
    last, zero = code[pairs.first[q + 1] - 1], code[pairs.first[q]]
    has_missing = (found & np.where(turn > 0, zero == 0, last == missing[q])).astype(np.uint8)
    bits = top[q]
    sign = np.uint64(1 << 63)
    raw = np.where(bits & sign > 0, bits ^ sign, ~bits)
    columns = (
        low, high, np.where(found, raw.view(np.float64), -np.inf), whole, np.where(found, pairs.feature[q], -1),
        np.where(found, turn, 0), has_missing,
    )  # fmt: skip
    for column, values in zip(choice.columns, columns, strict=True):
        column[:] = values
    return choice


CHOICE_TYPES = (np.int64, np.int64, np.float64, np.float64, np.int32, np.uint8, np.uint8)
CHOICE_BYTES = tuple(np.dtype(kind).itemsize for kind in CHOICE_TYPES)
