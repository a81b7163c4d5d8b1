"""Evaluation of one checkpoint: completions drawn, scored and summed up with confidence intervals.

``statistics`` holds the pure estimators, ``evaluate`` draws the completions and makes the two tables.
"""
