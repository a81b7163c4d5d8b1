"""What learners have for the speed of GPUs alone: norms in two operations, and attention by blocks
of equal rows (``hardware.learner.attention: sdpa_blocks``).

It stays where a whole iteration of a model that people train gains a fifth from it on a GPU
(``make bench BENCH=gpu``), which has not been measured yet.
"""
