"""What learners have for the speed of GPUs alone: attention by blocks of equal rows
(``hardware.learner.attention: sdpa_blocks``).

It stays only if a whole iteration of a model that people train gains a fifth from it on a GPU. That
has not been measured: ``make bench BENCH=gpu`` times steps with it.
"""
