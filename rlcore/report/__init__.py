"""The report of a run, or of several: one HTML file that needs neither scripts nor a server."""
