import numpy as np

from rlcore.algorithms.overlong import overlong_penalty


def test_values_of_the_paper():
    """L_max 20480, C 4096; the floor is -1 however long the answer (verl has none)."""
    lengths = np.array([0, 16384, 16385, 18432, 20480, 20481, 10**6])
    found = overlong_penalty(lengths, max_tokens=20480, cache_tokens=4096)
    np.testing.assert_array_equal(found, [0, 0, -1 / 4096, -0.5, -1, -1, -1])
    assert not np.signbit(found[0])
    half = overlong_penalty(lengths, max_tokens=20480, cache_tokens=4096, factor=0.5)
    np.testing.assert_array_equal(half, found / 2)


def test_without_a_soft_interval_it_is_a_step():
    """With C = 0 nothing is divided by it."""
    found = overlong_penalty(np.array([99, 100, 101]), max_tokens=100, cache_tokens=0)
    assert found.tolist() == [0.0, 0.0, -1.0]


def test_unsigned_lengths_do_not_wrap() -> None:
    """Token counts come out of tables unsigned; start - length must not turn huge and positive."""
    found = overlong_penalty(np.array([90, 110], dtype=np.uint32), max_tokens=100, cache_tokens=20)
    assert found.tolist() == [-0.5, -1.0]
