"""The long-lived workers of a run: what the recipe asks for, and the pools that it gets."""
