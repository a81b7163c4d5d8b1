"""The learner: one class over DeepSpeed for SFT, policy, critic and reward model alike.

CPU (gloo) and GPU (nccl), 1..N ranks, ZeRO 0-3. ``spec``: settings and requests; ``engine``: the
only file that imports deepspeed; ``plan`` and ``passes``: the parts of an optimizer step;
``learner``: one rank; ``pool``: all ranks as one; ``schedule``: learning rates.
"""
