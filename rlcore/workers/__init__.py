"""The long-lived workers of a run: their settings by the recipe, and the pools built from them."""
