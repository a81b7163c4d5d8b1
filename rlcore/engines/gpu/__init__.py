"""What the transformers engine has for the speed of GPUs alone: decoders of the Llama family in few
large operations, each step a CUDA graph.

It stays where a whole iteration of a model that people train gains a fifth from it on a GPU
(``make bench BENCH=gpu``), which has not been measured yet.
"""
