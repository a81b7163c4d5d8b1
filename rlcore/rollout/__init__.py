"""Sampled episodes: the one path that samples (``episodes``), what comes of it (``trajectories``),
and the tokens that an environment says between two turns (``turns``)."""
