"""Of when who was busy nothing is counted twice."""

from threading import Thread
from time import perf_counter

from rlcore.cluster.spans import HELD, Span, Spans, in_order


def turn(number: int, gap_s: float = 0.1) -> Span:
    return Span("engine 0", "gen", float(number), number + 1 - gap_s)


def test_each_span_is_taken_once() -> None:
    spans = Spans()
    began = perf_counter()
    spans.add("loop", "gen", began)
    (found,) = spans.taken()
    assert (found.lane, found.what, found.began_s) == ("loop", "gen", began)
    assert began <= found.ended_s <= perf_counter()
    assert spans.taken() == []


def test_threads_share_a_collection() -> None:
    spans = Spans()
    threads = [Thread(target=spans.extend, args=[[turn(n)] * 100]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(spans.taken()) == 800


def test_what_nobody_takes_is_bounded() -> None:
    """An evaluation samples for hours, and draws no timeline."""
    spans = Spans()
    spans.extend(turn(number) for number in range(HELD + 7))
    assert [span.began_s for span in spans.taken()[:1]] == [7.0]


def test_what_came_twice_counts_once_and_stands_in_order() -> None:
    loop = Span("loop", "gen", 0.5, 0.7)
    assert in_order([turn(1), loop, turn(0), turn(1)]) == [turn(0), loop, turn(1)]
