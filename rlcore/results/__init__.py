"""The results of runs: metrics, SQL over all artifacts, and the summary of one run."""
