"""Attention of documents of any lengths to themselves, one behind the other.

A library's calls for the many small matrix products that this is take longer than its work. Here a
thread takes every so many documents, with one head of keys and the query heads that share it, and
multiplies tiles of them. What is said in ``rlcore.kernels.loops`` holds here too.
"""

import numpy as np
from numba import carray, njit
from numba.extending import register_jitable

from rlcore.kernels.compiled import compiled
from rlcore.kernels.intrinsics import (
    FAST,
    as_double,
    called,
    dot,
    exp,
    f32,
    floats_at,
    integers_at,
    larger,
    more_products,
    products,
)
from rlcore.kernels.parallel import FIELDS
from rlcore.kernels.tiles import COLUMNS, QUERIES, ROWS, padded

_helper = njit(fastmath=FAST, error_model="numpy")
register_jitable(padded)


@_helper
def _flat(address):
    return carray(floats_at(address), (1 << 40,))


@_helper
def _areas(block, thread):
    """The parts of a thread's scratch: five for keys, two of scores, three for queries."""
    dim, room = block[7], block[17]
    at, of_keys = block[18] + 4 * thread * block[19], 4 * dim * room
    scores, asks = at + 5 * of_keys, at + 5 * of_keys + 8 * QUERIES * room
    return (
        _flat(at),
        _flat(at + of_keys),
        _flat(at + 2 * of_keys),
        _flat(at + 3 * of_keys),
        _flat(at + 4 * of_keys),
        _flat(scores),
        _flat(scores + 4 * QUERIES * room),
        _flat(asks),
        _flat(asks + 4 * QUERIES * dim),
        _flat(asks + 8 * QUERIES * dim),
    )


@_helper
def _token(key, document):
    """The place of a key of ``document``: [first token, tokens, first of the prompt, tokens of
    it], those of the prompt before its own."""
    return document[2] + key if key < document[3] else document[0] + key - document[3]


@_helper
def _turn(target, source, head, stride, document, dim, room):
    """target [dim, room]: the vectors of ``head`` of all keys of ``document``, as columns."""
    for i in range(document[3] + document[1]):
        first = _token(i, document) * stride + head * dim
        vector = source[first : first + dim]
        for d in range(dim):
            target[d * room + i] = vector[d]


@_helper
def _gather(target, source, head, stride, document, dim):
    """target [keys, dim]: the same, as rows."""
    for i in range(document[3] + document[1]):
        first = _token(i, document) * stride + head * dim
        vector, copied = source[first : first + dim], target[i * dim : i * dim + dim]
        for d in range(dim):
            copied[d] = vector[d]


@_helper
def _spread(target, source, head, heads, document, dim):
    """Add the rows of ``source`` [keys, dim] to the vectors of ``head`` in target [tokens, heads,
    dim], of all keys of ``document``."""
    for i in range(document[3] + document[1]):
        place = (_token(i, document) * heads + head) * dim
        vector, row = target[place : place + dim], source[i * dim : i * dim + dim]
        for d in range(dim):
            vector[d] += row[d]


@_helper
def _fill(target, begin, end):
    for i in range(begin, end):
        target[i] = f32(0.0)


@_helper
def _copy(target, source, first, count, stride, dim, scale, rows):
    """target [rows, dim]: ``count`` vectors of ``source``, from ``first`` on, times ``scale``; then
    0."""
    for i in range(count):
        vector = source[first + i * stride : first + i * stride + dim]
        copied = target[i * dim : i * dim + dim]
        for d in range(dim):
            copied[d] = scale * vector[d]
    _fill(target, count * dim, rows * dim)


@_helper
def _tiles(target, of_target, left, of_left, right, of_right, depth, columns, rows):
    """target [rows, columns] = left [rows, depth] right [depth, columns]: with the
    distances of rows."""
    for row in range(0, rows, ROWS):
        for column in range(0, columns, COLUMNS):
            products(
                target.ctypes.data + 4 * (row * of_target + column),
                of_target,
                left.ctypes.data + 4 * row * of_left,
                of_left,
                1,
                right.ctypes.data + 4 * column,
                of_right,
                depth,
            )


@_helper
def _turned_tiles(target, left, of_left, right, depth, columns, rows):
    """target [rows, columns] += left [depth, rows] turned, right [depth, columns]."""
    for row in range(0, rows, ROWS):
        for column in range(0, columns, COLUMNS):
            more_products(
                target.ctypes.data + 4 * (row * columns + column),
                columns,
                left.ctypes.data + 4 * row,
                1,
                of_left,
                right.ctypes.data + 4 * column,
                columns,
                depth,
            )


@_helper
def _exponentials(weight, end, wide):
    """weight [wide]: exp(weight - its largest) up to ``end``, then 0; return largest and sum."""
    largest = weight[0]
    for j in range(end):
        largest = larger(largest, weight[j])
    total = f32(0.0)
    for j in range(end):
        exponential = exp(weight[j] - largest)
        weight[j] = exponential
        total += exponential
    _fill(weight, end, wide)
    return largest, total


@_helper
def _changes(weight, change, total, mean, end, wide):
    """weight [wide]: exp(weight - total); change: that times (change - mean); 0 from ``end`` on.
    By tiles, which unlike any number of columns are computed many at once."""
    for column in range(0, wide, COLUMNS):
        one, other = weight[column : column + COLUMNS], change[column : column + COLUMNS]
        for j in range(COLUMNS):
            share = exp(one[j] - total)
            one[j] = share
            other[j] = share * (other[j] - mean)
    _fill(weight, end, wide)
    _fill(change, end, wide)


@compiled
def attend_documents(args):
    """work, tokens, H, K, D, groups [all + 1] int64, documents [all, 4] int64, query, key, value
    and the distances of their tokens, scale, room, scratch [threads, scratch], scratch,
    y [tokens, H, D], total [tokens, H].

    ``rows``: groups times K. A document: its first token and number of tokens, and those of what
    it continues (0: nothing), which stands in its group before it. y: softmax attention of each
    query to what its document continues, and to its document up to itself. ``total``: the log of
    the sum of exponentials of its scores. ``room``: keys of any token, at most, in whole
    tiles. Scratch as ``scratch_of`` says."""
    block = carray(args, FIELDS)
    rows, heads, shared, dim = block[2], block[5], block[6], block[7]
    groups = carray(integers_at(block[8]), (1 << 40,))
    documents = carray(integers_at(block[9]), (1 << 40, 4))
    query, key, value = _flat(block[10]), _flat(block[11]), _flat(block[12])
    of_query, of_key, of_value = block[13], block[14], block[15]
    scale, room = f32(as_double(block[16])), block[17]
    y, totals = _flat(block[20]), _flat(block[21])
    thread, threads, group = np.int64(called(block[0])), np.int64(called(block[1])), heads // shared
    keys, values, _, _, _, weights, _, asks, sums, found = _areas(block, thread)
    for item in range(thread, rows, threads):
        head = item % shared
        for number in range(int(groups[item // shared]), int(groups[item // shared + 1])):
            document = documents[number]
            start, size, asked = document[0], document[1], document[3]
            _turn(keys, key, head, of_key, document, dim, room)
            _gather(values, value, head, of_value, document, dim)
            for h in range(head * group, head * group + group):
                for token in range(0, size, ROWS):
                    count = min(ROWS, size - token)
                    last = asked + token + count
                    wide = padded(last)
                    source = (start + token) * of_query + h * dim
                    _copy(asks, query, source, count, of_query, dim, scale, ROWS)
                    _tiles(weights, room, asks, dim, keys, room, dim, wide, ROWS)
                    for r in range(ROWS):
                        weight = weights[r * room : r * room + room]
                        if r >= count:
                            _fill(weight, 0, last)
                            continue
                        largest, total = _exponentials(weight, last - count + r + 1, last)
                        sums[r] = total
                        totals[(start + token + r) * heads + h] = largest + np.log(total)
                    _tiles(found, dim, weights, room, values, dim, last, dim, ROWS)
                    for r in range(count):
                        place = ((start + token + r) * heads + h) * dim
                        target, row = y[place : place + dim], found[r * dim : r * dim + dim]
                        for d in range(dim):
                            target[d] = row[d] / sums[r]


@compiled
def attend_documents_gradient(args):
    """The fields of ``attend_documents``, then the gradient of y [tokens, H, D], and those of
    query [tokens, H, D], key and value [tokens, K, D], one behind the other and 0 before."""
    block = carray(args, FIELDS)
    rows, tokens, heads, shared, dim = block[2], block[4], block[5], block[6], block[7]
    groups = carray(integers_at(block[8]), (1 << 40,))
    documents = carray(integers_at(block[9]), (1 << 40, 4))
    query, key, value = _flat(block[10]), _flat(block[11]), _flat(block[12])
    of_query, of_key, of_value = block[13], block[14], block[15]
    scale, room = f32(as_double(block[16])), block[17]
    y, totals, gradient = _flat(block[20]), _flat(block[21]), _flat(block[22])
    into_query = _flat(block[23])
    into_key = into_query[tokens * heads * dim :]
    into_value = into_key[tokens * shared * dim :]
    thread, threads, group = np.int64(called(block[0])), np.int64(called(block[1])), heads // shared
    areas = _areas(block, thread)
    turned, values, keys, of_keys, of_values = areas[:5]
    weights, changes, asks, above, found = areas[5:]
    for item in range(thread, rows, threads):
        head = item % shared
        for number in range(int(groups[item // shared]), int(groups[item // shared + 1])):
            document = documents[number]
            start, size, asked = document[0], document[1], document[3]
            _turn(turned, key, head, of_key, document, dim, room)
            _turn(values, value, head, of_value, document, dim, room)
            _gather(keys, key, head, of_key, document, dim)
            _fill(of_keys, 0, padded(asked + size) * dim)
            _fill(of_values, 0, padded(asked + size) * dim)
            for h in range(head * group, head * group + group):
                for token in range(0, size, QUERIES):
                    count = min(QUERIES, size - token)
                    last = asked + token + count
                    wide = padded(last)
                    source = (start + token) * of_query + h * dim
                    _copy(asks, query, source, count, of_query, dim, scale, QUERIES)
                    place = ((start + token) * heads + h) * dim
                    _copy(above, gradient, place, count, heads * dim, dim, f32(1.0), QUERIES)
                    _tiles(weights, room, asks, dim, turned, room, dim, wide, QUERIES)
                    _tiles(changes, room, above, dim, values, room, dim, wide, QUERIES)
                    for r in range(QUERIES):
                        weight = weights[r * room : r * room + room]
                        change = changes[r * room : r * room + room]
                        if r >= count:
                            _fill(weight, 0, wide)
                            _fill(change, 0, wide)
                            continue
                        own = y[place + r * heads * dim : place + r * heads * dim + dim]
                        mean = dot(own, above[r * dim : r * dim + dim], dim)
                        total = totals[(start + token + r) * heads + h]
                        _changes(weight, change, total, mean, last - count + r + 1, wide)
                    _tiles(found, dim, changes, room, keys, dim, last, dim, QUERIES)
                    for r in range(count):
                        target, row = into_query[place + r * heads * dim :], found[r * dim :]
                        for d in range(dim):
                            target[d] = scale * row[d]
                    _turned_tiles(of_values, weights, room, above, QUERIES, dim, wide)
                    _turned_tiles(of_keys, changes, room, asks, QUERIES, dim, wide)
            _spread(into_key, of_keys, head, shared, document, dim)
            _spread(into_value, of_values, head, shared, document, dim)
