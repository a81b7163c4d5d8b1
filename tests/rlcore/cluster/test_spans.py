"""What is recorded of when who was busy stays small, and nothing in it is counted twice."""

from threading import Thread
from time import perf_counter

from rlcore.cluster.spans import HELD, MOST, Span, Spans, joined


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
    assert joined([turn(1), loop, turn(0), turn(1)]) == [turn(0), loop, turn(1)]


def test_the_turns_of_an_agent_become_few_spans_around_the_longest_waits() -> None:
    """An episode of a thousand turns must not make a thousand rows an iteration."""
    turns = [turn(number, gap_s=0.9 if number % 100 == 99 else 0.1) for number in range(1000)]
    few = joined(turns, most=10)
    assert [span.began_s for span in few] == [100.0 * part for part in range(10)]
    assert [span.ended_s for span in few] == [100 * part + 99.1 for part in range(10)]
    assert len(joined([turn(n) for n in range(1000)])) == MOST
    assert joined(turns[:1], most=1) == turns[:1]
    assert joined(turns, most=1) == [Span("engine 0", "gen", 0.0, 999.1)]
