"""Loops over rows of float32, compiled by numba and cached beside this file.

A loop is a C function of one address, a block of 64-bit numbers: the address of a function that
returns the number of the calling thread, how many threads there are, the number of rows, then the
loop's own numbers and addresses, in the order that its docstring gives. Everything that is compiled
stands in this file, because the cache is kept by this file's time and size.

Bits depend on the CPU, as torch's do. They do not depend on the number of threads, nor on which
rows are computed together.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from rlcore.kernels.parallel import CHUNKS, FIELDS

f32 = np.float32
# Sums in any order; but NaN and infinity stay what they are, as guards look for them.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_intrinsic: Any = intrinsic  # numba does not type what it returns
_helper = njit(inline="always", fastmath=_FAST, error_model="numpy")


def _loop(function: Callable[..., Any]) -> Any:
    signature = types.void(types.CPointer(types.int64))
    return cfunc(signature, cache=True, fastmath=_FAST, error_model="numpy")(function)


@_intrinsic
def _called(context: Any, address: Any) -> Any:
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


_floats_at, _integers_at = _address_of(types.float32), _address_of(types.int64)


@_intrinsic
def _as_float(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@_intrinsic
def _larger(context: Any, one: Any, other: Any) -> Any:
    """The larger of two numbers, in a form that is computed for many pairs at once; any number if
    one is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FloatType()
        function = builder.module.declare_intrinsic(
            "llvm.maxnum", [kind], ir.FunctionType(kind, [kind, kind])
        )
        return builder.call(function, arguments, fastmath=("nnan", "nsz", "reassoc"))

    return types.float32(types.float32, types.float32), generate


@_helper
def _rows(address, rows, width):
    return carray(_floats_at(address), (rows, width))


@_helper
def _row(address, width):
    return carray(_floats_at(address), (width,))


@_helper
def _chunks(block):
    """First chunk of this thread, and the one after its last."""
    threads = block[1]
    thread = np.int64(_called(block[0])) if threads > 1 else 0
    return thread * CHUNKS // threads, (thread + 1) * CHUNKS // threads


@_helper
def _share(block):
    """First row of this thread, and the one after its last."""
    first, last = _chunks(block)
    return first * block[2] // CHUNKS, last * block[2] // CHUNKS


_exact = njit(fastmath={"contract"}, error_model="numpy")


@_exact
def _less(one, other):
    """one - other, before anything is added to the difference."""
    return one - other


@_exact
def _exp(x):
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
    found = p * _as_float((n + np.int32(127)) << np.int32(23))
    return found if x == x else x


@_loop
def rms_norm(args):
    """width, x [rows, width], weight [width], epsilon (address of a number), y [rows, width],
    inverse [rows]: inverse = 1 / sqrt(mean(x^2) + epsilon), y = weight * (x * inverse)."""
    block = carray(args, FIELDS)
    rows, width = block[2], block[3]
    x, weight, epsilon = _rows(block[4], rows, width), _row(block[5], width), _row(block[6], 1)[0]
    y, inverses = _rows(block[7], rows, width), _row(block[8], rows)
    begin, end = _share(block)
    for row in range(begin, end):
        source, target = x[row], y[row]
        total = f32(0.0)
        for i in range(width):
            total += source[i] * source[i]
        inverse = f32(1.0) / np.sqrt(total / f32(width) + epsilon)
        inverses[row] = inverse
        for i in range(width):
            target[i] = weight[i] * (source[i] * inverse)


@_loop
def rms_norm_gradient(args):
    """width, x [rows, width], weight [width], inverse [rows], gradient of y [rows, width], added,
    more [rows, width], of x [rows, width], of weight [CHUNKS, width].

    With n = x * inverse and g the gradient of y: of x = inverse (w g - n mean(w g n)), and with
    ``added`` 1 more to that; of weight, which holds zeros before, the sum of g n over the rows of a
    chunk."""
    block = carray(args, FIELDS)
    rows, width, added = block[2], block[3], block[8]
    x, weight, inverses = _rows(block[4], rows, width), _row(block[5], width), _row(block[6], rows)
    gradient, more = _rows(block[7], rows, width), _rows(block[9], rows, width)
    of_x, of_weight = _rows(block[10], rows, width), _rows(block[11], CHUNKS, width)
    first, last = _chunks(block)
    for chunk in range(first, last):
        sums = of_weight[chunk]
        for row in range(chunk * rows // CHUNKS, (chunk + 1) * rows // CHUNKS):
            source, above, target = x[row], gradient[row], of_x[row]
            inverse = inverses[row]
            along = f32(0.0)
            for i in range(width):
                product = above[i] * source[i]
                along += product * weight[i]
                sums[i] += product * inverse
            along = along * inverse * inverse * inverse / f32(width)
            if added:
                kept = more[row]
                for i in range(width):
                    target[i] = kept[i] + above[i] * weight[i] * inverse - source[i] * along
            else:
                for i in range(width):
                    target[i] = above[i] * weight[i] * inverse - source[i] * along


@_loop
def rotate(args):
    """width, heads, dim, x [rows, width], cos, sin [rows, dim], back: turn the first ``heads`` of
    each row in place, x cos + (-second half, first half) sin; with ``back`` 1 the transpose of
    that, which is its gradient."""
    block = carray(args, FIELDS)
    rows, width, heads, dim, back = block[2], block[3], block[4], block[5], block[9]
    x = _rows(block[6], rows, width)
    cos, sin = _rows(block[7], rows, dim), _rows(block[8], rows, dim)
    half = dim // 2
    begin, end = _share(block)
    for row in range(begin, end):
        cos1, cos2 = cos[row, :half], cos[row, half:]
        sin1, sin2 = sin[row, :half], sin[row, half:]
        for head in range(heads):
            first = x[row, head * dim : head * dim + half]
            second = x[row, head * dim + half : head * dim + dim]
            if back:
                for i in range(half):
                    one, two = first[i], second[i]
                    first[i] = one * cos1[i] + two * sin2[i]
                    second[i] = two * cos2[i] - one * sin1[i]
            else:
                for i in range(half):
                    one, two = first[i], second[i]
                    first[i] = one * cos1[i] - two * sin1[i]
                    second[i] = two * cos2[i] + one * sin2[i]


@_loop
def swiglu(args):
    """inner, gate and up [rows, 2 inner], y [rows, inner]: y = silu(gate) * up."""
    block = carray(args, FIELDS)
    rows, inner = block[2], block[3]
    gates, y = _rows(block[4], rows, 2 * inner), _rows(block[5], rows, inner)
    begin, end = _share(block)
    for row in range(begin, end):
        gate, up, target = gates[row, :inner], gates[row, inner:], y[row]
        for i in range(inner):
            target[i] = gate[i] / (f32(1.0) + _exp(-gate[i])) * up[i]


@_loop
def swiglu_gradient(args):
    """inner, gate and up [rows, 2 inner], gradient of y [rows, inner]: both in place, the first
    becomes its own gradient and the second y."""
    block = carray(args, FIELDS)
    rows, inner = block[2], block[3]
    gates, above = _rows(block[4], rows, 2 * inner), _rows(block[5], rows, inner)
    begin, end = _share(block)
    for row in range(begin, end):
        gate, up, gradient = gates[row, :inner], gates[row, inner:], above[row]
        for i in range(inner):
            g, u, of_y = gate[i], up[i], gradient[i]
            sigmoid = f32(1.0) / (f32(1.0) + _exp(-g))
            silu = g * sigmoid
            gradient[i] = silu * u
            up[i] = of_y * silu
            gate[i] = of_y * u * (sigmoid + silu * (f32(1.0) - sigmoid))


@_loop
def score(args):
    """vocabulary, logits [rows, vocabulary], scale (address of a number), target ids [rows] int64,
    log-probs, largest, log totals, entropies [rows].

    Of softmax(scale * logits): the log-prob of the target, the largest of scale * logits, the
    logarithm of the sum of exponentials of what they are more than that, and the entropy, in
    nats."""
    block = carray(args, FIELDS)
    rows, size = block[2], block[3]
    logits, scale = _rows(block[4], rows, size), _row(block[5], 1)[0]
    targets = carray(_integers_at(block[6]), (rows,))
    logprobs, most = _row(block[7], rows), _row(block[8], rows)
    totals, entropies = _row(block[9], rows), _row(block[10], rows)
    begin, end = _share(block)
    for row in range(begin, end):
        source = logits[row]
        largest = source[0]
        for i in range(size):
            largest = _larger(largest, source[i])
        largest *= scale
        total, moment = f32(0.0), f32(0.0)
        for i in range(size):
            shifted = scale * source[i] - largest
            exponential = _exp(shifted)
            total += exponential
            moment += exponential * shifted
        most[row], totals[row] = largest, np.log(total)
        logprobs[row] = _less(_less(scale * source[targets[row]], largest), totals[row])
        entropies[row] = totals[row] - moment / total


@_loop
def score_gradient(args):
    """vocabulary, logits [rows, vocabulary], scale (address of a number), target ids [rows] int64,
    largest, log totals, entropies, gradients of log-probs and of entropies [rows], wanted: logits
    become their own gradient in place. Without ``wanted`` entropies are not read."""
    block = carray(args, FIELDS)
    rows, size, wanted = block[2], block[3], block[12]
    logits, scale = _rows(block[4], rows, size), _row(block[5], 1)[0]
    targets = carray(_integers_at(block[6]), (rows,))
    most, totals, entropies = _row(block[7], rows), _row(block[8], rows), _row(block[9], rows)
    of_logprobs, of_entropies = _row(block[10], rows), _row(block[11], rows)
    begin, end = _share(block)
    for row in range(begin, end):
        source, largest, total = logits[row], most[row], totals[row]
        above = of_logprobs[row] * scale
        if wanted:
            of_entropy, entropy = of_entropies[row] * scale, entropies[row]
            for i in range(size):
                logprob = _less(_less(scale * source[i], largest), total)
                source[i] = -_exp(logprob) * (above + of_entropy * (logprob + entropy))
        else:
            for i in range(size):
                source[i] = -above * _exp(_less(_less(scale * source[i], largest), total))
        source[targets[row]] += above
