"""Named checks over the metric stream of an RL run: threshold, message and remedy of each problem.

``watch.Diagnostics`` runs them live, ``watch.diagnose`` over the metrics table of a finished run;
``reward_checks``, ``dead_updates`` and ``policy_checks`` list them.
"""
