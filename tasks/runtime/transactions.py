"""What Prefect's transaction of a stage's task holds."""

from prefect.transactions import get_transaction


def forget_ended_tasks() -> None:
    """Let the task under way drop what it holds of the tasks that have ended inside it.

    Prefect's transaction of a task keeps that of every task run inside, to commit or roll back
    their results with its own. The phases of an iteration store none there, and a stage has
    thousands of them.
    """
    transaction = get_transaction()
    if transaction is not None:
        transaction.children.clear()
