"""The reward model: ranked responses in, a scalar head trained on them out.

``preferences``: what a Preferences table holds and how ranks come about; ``sampled`` and ``files``:
the sources of one; ``training``: one optimizer step per batch of prompts, every pair of a prompt in
it; ``evaluation``: accuracy per difficulty and calibration on held-out prompts; ``zero``: the bias
that gives demonstrations mean 0.
"""
