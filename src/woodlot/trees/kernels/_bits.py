"""Operations on 64 rows at once that LLVM knows and Numba does not offer: one word holds one bit per row.

Bit j of a word is row ``64 * block + j``. An intrinsic is a function that emits LLVM code: Numba inlines it where it
is called. `gather_bits` and `scatter_bits` are one instruction on x86-64 with BMI2 (pext, pdep), and a few lines of
arithmetic elsewhere; both give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)


@intrinsic  # type: ignore[untyped-decorator]
def at_least(typingctx: Any, codes: Any, start: Any, shift: Any, cut: Any) -> Any:
    """Bit j says whether ``uint16(codes[start + j] + shift) >= cut``, for 64 codes from ``start`` on.

    ``codes`` is uint16 or wider. The 64 codes are loaded as one vector, compared, and the 64 results of one bit each
    are reinterpreted as a word. The load may be unaligned: the alignment is that of one code.
    """
    signature = types.uint64(codes, types.int64, types.int64, types.int64)
    bits = codes.dtype.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, value=args[0])
        lane = ir.IntType(bits)
        vector = ir.VectorType(lane, 64)
        pointer = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
        loaded = builder.load(pointer, align=bits // 8)

        def everywhere(value: Any) -> Any:
            narrow = builder.trunc(value, lane)
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), narrow, ir.IntType(32)(0))
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
            return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)

        shifted = builder.add(loaded, everywhere(args[2]))
        if bits > 16:  # with 16 bits the addition has wrapped around by itself
            shifted = builder.and_(shifted, ir.Constant(vector, [0xFFFF] * 64))
        return builder.bitcast(builder.icmp_unsigned(">=", shifted, everywhere(args[3])), _WORD)

    return signature, codegen


@intrinsic  # type: ignore[untyped-decorator]
def count_ones(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def lowest_one(typingctx: Any, word: Any) -> Any:
    """Position of the lowest one bit of a word that is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


def gather_bits_portable(word: np.uint64, mask: np.uint64) -> np.uint64:
    """Compress as in Hacker's Delight, section 7-4.

    A selected bit moves down by the number of gaps (unselected bits) below it. Round i moves by 2**i the bits for which
    bit i of that number is 1. ``odd`` is the prefix XOR of ``gaps``: whether the number of gaps below each bit is odd.
    Every second gap goes on to the next round, so that the numbers are halved.
    """
    selected = word & mask
    gaps = ~mask << np.uint64(1)
    for i in range(6):
        odd = gaps ^ (gaps << np.uint64(1))
        odd ^= odd << np.uint64(2)
        odd ^= odd << np.uint64(4)
        odd ^= odd << np.uint64(8)
        odd ^= odd << np.uint64(16)
        odd ^= odd << np.uint64(32)
        move = odd & mask
        step = np.uint64(1 << i)
        mask = (mask ^ move) | (move >> step)
        moved = selected & move
        selected = (selected ^ moved) | (moved >> step)
        gaps &= ~odd
    return selected


def scatter_bits_portable(packed: np.uint64, mask: np.uint64) -> np.uint64:
    """The inverse of `gather_bits_portable`, bit by bit, which suits the sparse masks of deep nodes."""
    word = np.uint64(0)
    while mask != np.uint64(0):
        lowest = mask & (~mask + np.uint64(1))  # the lowest one bit: mask & -mask
        if packed & np.uint64(1):
            word |= lowest
        packed >>= np.uint64(1)
        mask ^= lowest
    return word


def _one_instruction(context: Any, builder: Any, name: str, args: Any) -> Any:
    """Call a BMI2 instruction, or return None on a processor without (the kernel cache tells them apart)."""
    triple, _, features = context.codegen().magic_tuple()
    if not triple.startswith("x86_64") or "+bmi2" not in features.split(","):
        return None
    function = builder.module.declare_intrinsic(name, (), ir.FunctionType(_WORD, [_WORD, _WORD]))
    return builder.call(function, args)


@intrinsic  # type: ignore[untyped-decorator]
def gather_bits(typingctx: Any, word: Any, mask: Any) -> Any:
    """Move the bits of ``word`` that ``mask`` selects to the low end, in order."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        fast = _one_instruction(context, builder, "llvm.x86.bmi.pext.64", args)
        if fast is not None:
            return fast
        return context.compile_internal(builder, gather_bits_portable, signature, args)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def scatter_bits(typingctx: Any, packed: Any, mask: Any) -> Any:
    """Move the low bits of ``packed`` to the places that ``mask`` selects, in order."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        fast = _one_instruction(context, builder, "llvm.x86.bmi.pdep.64", args)
        if fast is not None:
            return fast
        return context.compile_internal(builder, scatter_bits_portable, signature, args)

    return types.uint64(types.uint64, types.uint64), codegen
