"""The dry run: batches, memory, time and disk of a recipe, computed before anything starts."""
