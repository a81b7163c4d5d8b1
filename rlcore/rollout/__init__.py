"""Sampled episodes: the one path that samples, and the tokens of its turns."""
