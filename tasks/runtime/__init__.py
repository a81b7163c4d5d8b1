"""The runtime of every stage: cache keys, the run's folder and workers, crashes, an absent
server."""
