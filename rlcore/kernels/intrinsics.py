"""What loops are made of: instructions that numba has no name for, and small formulas."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from rlcore.kernels.tiles import COLUMNS, ROWS

f32 = np.float32
# Sums in any order; but NaN and infinity stay what they are, as guards look for them.
FAST = {"reassoc", "contract", "arcp", "nsz"}
_intrinsic: Any = intrinsic  # numba does not type what it returns
_exact = njit(fastmath={"contract"}, error_model="numpy")
_any_order = njit(inline="always", fastmath=FAST, error_model="numpy")


@_intrinsic
def called(context: Any, address: Any) -> Any:
    """What the C function without arguments at ``address`` returns, an int."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.IntType(32), []).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], function), [])

    return types.int32(types.int64), generate


def _address_of(kind: Any) -> Any:
    @_intrinsic
    def pointer(context: Any, address: Any) -> Any:
        target = types.CPointer(kind)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(target))

        return target(types.int64), generate

    return pointer


floats_at, doubles_at = _address_of(types.float32), _address_of(types.float64)
integers_at = _address_of(types.int64)


@_intrinsic
def as_float(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@_intrinsic
def as_double(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@_intrinsic
def larger(context: Any, one: Any, other: Any) -> Any:
    """The larger of two numbers, in a form that is computed for many pairs at once; any number if
    one is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FloatType()
        function = builder.module.declare_intrinsic(
            "llvm.maxnum", [kind], ir.FunctionType(kind, [kind, kind])
        )
        return builder.call(function, arguments, fastmath=("nnan", "nsz", "reassoc"))

    return types.float32(types.float32, types.float32), generate


def _products(*, added: bool) -> Any:
    """A product of matrices of ROWS rows and COLUMNS columns, the sums in registers:
    target[r, c] = sum of left[r, i] * right[i, c] over i < depth, or that ``added`` to it. Of each
    matrix: its address, and the distances of rows (target, right) or of rows and columns (left)."""

    @_intrinsic
    def products(
        context: Any,
        target: Any,
        of_target: Any,
        left: Any,
        of_row: Any,
        of_column: Any,
        right: Any,
        of_right: Any,
        depth: Any,
    ) -> Any:
        kind, integer = ir.FloatType(), ir.IntType(64)
        wide = ir.VectorType(kind, COLUMNS)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, of_target, left, of_row, of_column, right, of_right, depth = arguments

            def at(address: Any, places: Any, what: Any) -> Any:
                moved = builder.add(address, builder.mul(places, ir.Constant(integer, 4)))
                return builder.inttoptr(moved, what.as_pointer())

            rows = [ir.Constant(integer, row) for row in range(ROWS)]
            sums = [cgutils.alloca_once(builder, wide) for _ in rows]
            for each in sums:
                builder.store(ir.Constant(wide, [0.0] * COLUMNS), each)
            with cgutils.for_range(builder, depth) as loop:
                column = builder.mul(loop.index, of_column)
                vector = builder.load(at(right, builder.mul(loop.index, of_right), wide), align=4)
                for row, total in zip(rows, sums, strict=True):
                    place = builder.add(builder.mul(row, of_row), column)
                    factor = builder.load(at(left, place, kind))
                    one = builder.insert_element(
                        ir.Constant(wide, ir.Undefined), factor, ir.Constant(ir.IntType(32), 0)
                    )
                    zeros = ir.Constant(ir.VectorType(ir.IntType(32), COLUMNS), None)
                    every = builder.shuffle_vector(one, one, zeros)
                    product = builder.fmul(every, vector, flags=("contract",))
                    summed = builder.fadd(builder.load(total), product, flags=("contract",))
                    builder.store(summed, total)
            for row, total in zip(rows, sums, strict=True):
                place = at(target, builder.mul(row, of_target), wide)
                found = builder.load(total)
                if added:
                    found = builder.fadd(builder.load(place, align=4), found)
                builder.store(found, place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), generate

    return products


products, more_products = _products(added=False), _products(added=True)


@_exact
def less(one, other):
    """one - other, before anything is added to the difference."""
    return one - other


@_exact
def exp(x):
    """exp(x) to within 2e-7, relative, for x in [-87, 88] and at its ends beyond; NaN of NaN. The
    polynomial of Cephes (expf.c), which unlike a call of the C library is computed for many x at
    once."""
    inside = min(max(x, f32(-87.0)), f32(88.0))
    n = np.int32(inside * f32(1.44269504) + f32(128.5)) - np.int32(128)  # the nearest power of 2
    r = inside - f32(n) * f32(0.693359375)
    r = r + f32(n) * f32(2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    found = p * as_float((n + np.int32(127)) << np.int32(23))
    return found if x == x else x


@_any_order
def dot(one, other, width):
    """The sum of products of the first ``width`` numbers."""
    total = f32(0.0)
    for i in range(width):
        total += one[i] * other[i]
    return total


@_any_order
def total_of(source, begin, end):
    """The sum of some numbers, in float64."""
    total = 0.0
    for i in range(begin, end):
        total += source[i]
    return total
