"""What the transformers engine has for the speed of GPUs alone: decoders of the Llama family in few
large operations, each step a CUDA graph.

It stays only if a whole iteration of a model that people train gains a fifth from it on a GPU. That
has not been measured: ``make bench BENCH=gpu`` times steps with it.
"""
