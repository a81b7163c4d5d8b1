"""The presentation of a run: its page in the Prefect UI, reports, summary, live curves."""
