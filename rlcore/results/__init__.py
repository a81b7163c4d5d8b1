"""What runs left behind: metrics, SQL over all artifacts, and the summary of one run."""
