"""A stage holds nothing of the thousands of task runs inside it, and they end as they did."""

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.transactions import get_transaction

from tasks.runtime.transactions import forget_ended_tasks

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("prefect_server")]


HELD: list[int] = []  # Prefect would copy a list that is passed


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


def test_outside_of_a_task_there_is_nothing_to_forget() -> None:
    forget_ended_tasks()
