"""Evaluation of one checkpoint: completions sampled, scored and summarised with confidence
intervals.

``statistics`` holds the pure estimators, ``summary`` the figures computed with them, ``evaluate``
samples the completions.
"""
