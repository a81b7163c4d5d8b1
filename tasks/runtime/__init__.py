"""What every stage runs in: cache keys, the run's folder and workers, crashes, an absent server."""
