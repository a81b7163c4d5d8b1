"""Trajectories: the record of one sampled episode, and ``collect``, the one path that samples."""
