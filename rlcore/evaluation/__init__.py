"""Evaluation of one checkpoint: completions drawn, scored and summed up with confidence intervals.

``statistics`` holds the pure estimators, ``summary`` the figures made of them, ``evaluate`` draws
the completions.
"""
