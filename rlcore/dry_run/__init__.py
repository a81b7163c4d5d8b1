"""The dry run: the plan of a run that may start, printed with what is assumed of its time."""
