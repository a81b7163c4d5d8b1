"""What Prefect holds of the tasks that have ended inside a stage."""

from prefect.context import FlowRunContext
from prefect.transactions import get_transaction


def forget_ended_tasks(kept: object = None) -> None:
    """Drop what Prefect holds of the tasks that have ended inside the task and flow under way.

    A task's transaction keeps that of every task run inside, to commit or roll back their results
    with its own, and a flow run links their results, by address, to the states that ended with
    them, to show what a later task was given. The phases of an iteration store no result there, and
    a stage has thousands of them. The link of the result ``kept`` stays: the next iteration begins
    with it.
    """
    transaction = get_transaction()
    if transaction is not None:
        transaction.children.clear()
    context = FlowRunContext.get()
    if context is not None:
        link = context.run_results.get(id(kept))
        context.run_results.clear()
        if link is not None:
            context.run_results[id(kept)] = link
