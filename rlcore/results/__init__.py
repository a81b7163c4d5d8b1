"""What is read of finished and running work: runs and their folders, metrics, SQL over all
artifacts, lineage, comparison, retention. Nothing here trains."""
