"""The RL stage without an orchestrator: five phases over shared workers, one atomic iteration.

``phases.Phases`` is what the Prefect tasks call; a plain loop over the same five calls trains
in-process.
"""
