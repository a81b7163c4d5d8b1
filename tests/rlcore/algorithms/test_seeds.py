"""Seeds name their stream: the same everywhere, and never shared by two streams."""

from rlcore.algorithms.seeds import stream_seed


def test_a_stream_keeps_its_seed_across_releases() -> None:
    message = "changed seeds make every recorded run irreproducible"
    assert stream_seed(0, "rollout", 7, "u1", 3) == 5202056942949037095, message


def test_stream_seeds_are_fixed_distinct_and_fit_a_signed_64_bit_column() -> None:
    seeds = {
        stream_seed(s, stage, uid, sample)
        for s in (0, 1)
        for stage in ("rollout", "evaluate")
        for uid in ("a", "b", "1", 1)
        for sample in range(32)
    }
    assert len(seeds) == 2 * 2 * 4 * 32
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert stream_seed(0, "ab", "c") != stream_seed(0, "a", "bc")
