"""The reward model: a scalar head trained on ranked responses.

``preferences``: the Preferences table; ``sampled`` and ``files``: its sources; ``training``:
optimizer steps over batches of prompts with all pairs of each; ``evaluation``: accuracy per
difficulty and calibration on held-out prompts; ``zero``: the bias that makes the mean score of
demonstrations 0.
"""
