"""The dry run: what a recipe comes to in batches, memory, time and disk, before anything starts."""
