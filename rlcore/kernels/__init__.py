"""Loops over activations on a CPU, compiled when first used and shared out over torch's threads.

torch computes a norm, a rotation, a gate or a softmax as several operations, each of which reads
and writes all activations; in models whose matrices are small these take as long as the matrix
products. ``loops`` holds one loop for each, ``parallel`` runs them.
"""
