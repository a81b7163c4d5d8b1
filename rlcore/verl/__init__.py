"""A verl run, as a script, a command line or a config, becomes one of our recipes.

Text -> settings by verl's dotted keys (``text``, ``shell``, ``settings``) -> refused where there is
no counterpart as a whole (``refusals``) -> our tree, key by key as a table says (``keys.yaml``) or
several keys together (``learning``, ``batches``) -> YAML with notes (``translate``).
Recipes and overrides themselves know only our names.
"""
