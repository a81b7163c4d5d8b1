"""A stage holds nothing of the thousands of task runs inside it, and they end as they did."""

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.transactions import get_transaction

from tasks.run_page.report import forget_ended_tasks

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("prefect_server")]


HELD: list[int] = []  # Prefect would copy a list that is passed
KEPT: list["Number"] = []


class Number:
    """A result that Prefect links to the state of its task."""

    def __init__(self, value: int) -> None:
        self.value = value


@task(cache_policy=NO_CACHE)
def phase(number: int) -> int:
    return number + 1


@flow
def loop() -> int:
    total = 0
    for _ in range(3):
        total = phase(phase(total))
        transaction = get_transaction()
        assert transaction is not None
        HELD.append(len(transaction.children))
        forget_ended_tasks()
        HELD.append(len(transaction.children))
    return total


@task(cache_policy=NO_CACHE)
def count(number: Number) -> Number:
    KEPT.append(Number(number.value + 1))  # so that its address is not used again
    return KEPT[-1]


@flow
def linked() -> list[int]:
    number, held = Number(0), []
    context = FlowRunContext.get()
    assert context is not None
    for _ in range(3):
        number = count(count(number))
        forget_ended_tasks(number)
        held.append(len(context.run_results))
        assert id(number) in context.run_results
    return held


@task(persist_result=True, cache_policy=NO_CACHE)
def stage() -> int:
    return loop()


@flow
def pipeline() -> int:
    return stage()


def test_the_transaction_of_a_stage_forgets_the_tasks_that_have_ended() -> None:
    HELD.clear()
    state = pipeline(return_state=True)
    assert state.result() == 6
    assert HELD == [2, 0] * 3


def test_a_flow_run_keeps_the_links_of_the_task_that_ended_last() -> None:
    assert linked() == [1, 1, 1]


def test_outside_of_a_task_there_is_nothing_to_forget() -> None:
    forget_ended_tasks()
