"""Loops over rows of float32, compiled by numba.

A loop is a C function of one address, a block of 64-bit numbers: the addresses of functions that
return the number of the calling thread and how many threads there are, the number of rows, then the
loop's own numbers (a float as the bits of a float64) and addresses, in the order that its docstring
gives.

Bits depend on the CPU, as torch's do. They do not depend on the number of threads, nor on which
rows are computed together.
"""

import numpy as np
from numba import carray, njit

from rlcore.kernels.compiled import compiled
from rlcore.kernels.intrinsics import (
    FAST,
    as_double,
    called,
    dot,
    doubles_at,
    exp,
    f32,
    floats_at,
    integers_at,
    larger,
    less,
    total_of,
)
from rlcore.kernels.parallel import CHUNKS, FIELDS

_helper = njit(inline="always", fastmath=FAST, error_model="numpy")


@_helper
def _rows(address, rows, width):
    return carray(floats_at(address), (rows, width))


@_helper
def _row(address, width):
    return carray(floats_at(address), (width,))


@_helper
def _chunks(block):
    """First chunk of this thread, and the one after its last."""
    thread, threads = np.int64(called(block[0])), np.int64(called(block[1]))
    return thread * CHUNKS // threads, (thread + 1) * CHUNKS // threads


@_helper
def _share(block):
    """First row of this thread, and the one after its last."""
    first, last = _chunks(block)
    return first * block[2] // CHUNKS, last * block[2] // CHUNKS


@compiled
def rms_norm(args):
    """width, x [rows, width], weight [width], epsilon, y [rows, width],
    inverse [rows]: inverse = 1 / sqrt(mean(x^2) + epsilon), y = weight * (x * inverse)."""
    block = carray(args, FIELDS)
    rows, width = block[2], block[3]
    x, weight, epsilon = (
        _rows(block[4], rows, width),
        _row(block[5], width),
        f32(as_double(block[6])),
    )
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


@compiled
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


@compiled
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


@compiled
def swiglu(args):
    """inner, gate and up [rows, 2 inner], y [rows, inner]: y = silu(gate) * up."""
    block = carray(args, FIELDS)
    rows, inner = block[2], block[3]
    gates, y = _rows(block[4], rows, 2 * inner), _rows(block[5], rows, inner)
    begin, end = _share(block)
    for row in range(begin, end):
        gate, up, target = gates[row, :inner], gates[row, inner:], y[row]
        for i in range(inner):
            target[i] = gate[i] / (f32(1.0) + exp(-gate[i])) * up[i]


@compiled
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
            sigmoid = f32(1.0) / (f32(1.0) + exp(-g))
            silu = g * sigmoid
            gradient[i] = silu * u
            up[i] = of_y * silu
            gate[i] = of_y * u * (sigmoid + silu * (f32(1.0) - sigmoid))


@compiled
def score(args):
    """vocabulary, logits [rows, vocabulary], scale, target ids [rows] int64,
    log-probs, largest, log totals, entropies [rows].

    Of softmax(scale * logits): the log-prob of the target, the largest of scale * logits, the
    logarithm of the sum of exponentials of what they are more than that, and the entropy, in
    nats."""
    block = carray(args, FIELDS)
    rows, size = block[2], block[3]
    logits, scale = _rows(block[4], rows, size), f32(as_double(block[5]))
    targets = carray(integers_at(block[6]), (rows,))
    logprobs, most = _row(block[7], rows), _row(block[8], rows)
    totals, entropies = _row(block[9], rows), _row(block[10], rows)
    begin, end = _share(block)
    for row in range(begin, end):
        source = logits[row]
        largest = source[0]
        for i in range(size):
            largest = larger(largest, source[i])
        largest *= scale
        total, moment = f32(0.0), f32(0.0)
        for i in range(size):
            shifted = scale * source[i] - largest
            exponential = exp(shifted)
            total += exponential
            moment += exponential * shifted
        most[row], totals[row] = largest, np.log(total)
        logprobs[row] = less(less(scale * source[targets[row]], largest), totals[row])
        entropies[row] = totals[row] - moment / total


@compiled
def score_gradient(args):
    """vocabulary, logits [rows, vocabulary], scale, target ids [rows] int64,
    largest, log totals, entropies, gradients of log-probs and of entropies [rows], wanted: logits
    become their own gradient in place. Without ``wanted`` entropies are not read."""
    block = carray(args, FIELDS)
    rows, size, wanted = block[2], block[3], block[12]
    logits, scale = _rows(block[4], rows, size), f32(as_double(block[5]))
    targets = carray(integers_at(block[6]), (rows,))
    most, totals, entropies = _row(block[7], rows), _row(block[8], rows), _row(block[9], rows)
    of_logprobs, of_entropies = _row(block[10], rows), _row(block[11], rows)
    begin, end = _share(block)
    for row in range(begin, end):
        source, largest, total = logits[row], most[row], totals[row]
        above = of_logprobs[row] * scale
        if wanted:
            of_entropy, entropy = of_entropies[row] * scale, entropies[row]
            for i in range(size):
                logprob = less(less(scale * source[i], largest), total)
                source[i] = -exp(logprob) * (above + of_entropy * (logprob + entropy))
        else:
            for i in range(size):
                source[i] = -above * exp(less(less(scale * source[i], largest), total))
        source[targets[row]] += above


@_helper
def _turn(heads, cos, sin, count, dim):
    half = dim // 2
    for head in range(count):
        part = heads[head * dim : head * dim + dim]
        for i in range(half):
            one, two = part[i], part[half + i]
            part[i] = one * cos[i] + two * sin[i]
            part[half + i] = two * cos[half + i] + one * sin[half + i]


@_helper
def _softmax(weight, begin, end):
    largest = weight[begin]
    for at in range(begin, end):
        largest = larger(largest, weight[at])
    total = f32(0.0)
    for at in range(begin, end):
        exponential = exp(weight[at] - largest)
        weight[at] = exponential
        total += exponential
    for at in range(begin, end):
        weight[at] /= total


@_helper
def _read(target, values, weight, begin, end, dim):
    for at in range(begin, end):
        share, value = weight[at], values[at]
        for i in range(dim):
            target[i] += value[i] * share


@compiled
def attend(args):
    """width, H, K, D, projected [rows, width], angles [positions, 2, D], position [rows] int64,
    prompt keys and prompt values [blocks, K, T, D], T, block [rows] int64, first [blocks] int64,
    own [2, all rows, K, room, D], all rows, room, end, scale, weights
    [rows, T + room], y [rows, H D].

    ``projected``: H queries, K keys, K values of D each. Queries and keys are turned, x cos +
    (second half, first half) sin; keys and values go to column ``end`` of ``own``. y is softmax
    attention of each query over columns ``first`` to T of its block, and its row's own columns up
    to ``end``. ``weights`` is overwritten."""
    block = carray(args, FIELDS)
    rows, width, heads, shared, dim = block[2], block[3], block[4], block[5], block[6]
    projected, all_rows, room, end = _rows(block[7], rows, width), block[16], block[17], block[18]
    long, scale = block[12], f32(as_double(block[19]))
    angles = carray(floats_at(block[8]), (1 << 40, 2, dim))
    positions = carray(integers_at(block[9]), (rows,))
    blocks = carray(integers_at(block[13]), (rows,))
    keys = carray(floats_at(block[10]), (1 << 40, shared, long, dim))
    values = carray(floats_at(block[11]), (1 << 40, shared, long, dim))
    firsts = carray(integers_at(block[14]), (1 << 40,))
    own = carray(floats_at(block[15]), (2, all_rows, shared, room, dim))
    weights, y = _rows(block[20], rows, long + room), _rows(block[21], rows, heads * dim)
    group = heads // shared
    begin, stop = _share(block)
    for row in range(begin, stop):
        inputs, weight = projected[row], weights[row]
        cos, sin, of = angles[positions[row], 0], angles[positions[row], 1], blocks[row]
        _turn(inputs, cos, sin, heads + shared, dim)
        for head in range(shared):
            for kind in range(2):
                source = inputs[(heads + kind * shared + head) * dim :]
                target = own[kind, row, head, end]
                for i in range(dim):
                    target[i] = source[i]
        first = int(firsts[of])
        for head in range(heads):
            query, target = inputs[head * dim : head * dim + dim], y[row, head * dim :]
            mine = own[0, row, head // group]
            for at in range(first, long):
                weight[at] = dot(query, keys[of, head // group, at], dim) * scale
            for at in range(end + 1):
                weight[long + at] = dot(query, mine[at], dim) * scale
            _softmax(weight, first, long + end + 1)
            for i in range(dim):
                target[i] = f32(0.0)
            _read(target, values[of, head // group], weight, first, long, dim)
            _read(target, own[1, row, head // group], weight[long:], 0, end + 1, dim)


BLOCK = 128  # tokens whose probabilities are summed at once


@compiled
def draw(args):
    """vocabulary, logits [rows, vocabulary], uniform [rows] float64, probabilities [rows,
    vocabulary], chosen [rows] int64, log-probs [rows].

    ``chosen``: the first token up to which softmax(logits) sums to more than ``uniform``. One of
    logit -infinity is never chosen. ``probabilities`` is overwritten."""
    block = carray(args, FIELDS)
    rows, size = block[2], block[3]
    logits, uniforms = _rows(block[4], rows, size), carray(doubles_at(block[5]), (rows,))
    probabilities, chosen = _rows(block[6], rows, size), carray(integers_at(block[7]), (rows,))
    logprobs = _row(block[8], rows)
    begin, stop = _share(block)
    for row in range(begin, stop):
        source, target = logits[row], probabilities[row]
        largest = source[0]
        for i in range(size):
            largest = larger(largest, source[i])
        total = 0.0
        for start in range(0, size, BLOCK):
            end = min(start + BLOCK, size)
            for i in range(start, end):
                shifted = source[i] - largest
                target[i] = f32(0.0) if shifted < f32(-87.0) else exp(shifted)
            total += total_of(target, start, end)
        wanted, before, start = uniforms[row] * total, 0.0, 0
        while start + BLOCK < size:
            more = total_of(target, start, start + BLOCK)
            if before + more > wanted:
                break
            before += more
            start += BLOCK
        token, last = start, min(start + BLOCK, size) - 1
        before += target[token]
        while before <= wanted and token < last:
            token += 1
            before += target[token]
        # Single tokens sum to a little less than their block where that rounds otherwise.
        while token > 0 and target[token] == f32(0.0):
            token -= 1
        chosen[row] = token
        logprobs[row] = less(source[token], largest) - f32(np.log(total))
