"""What needs Prefect and a command line: the flows, their deployment, the server, the worker, and
``rl-pipeline``. What a stage computes is in ``rlcore``."""
