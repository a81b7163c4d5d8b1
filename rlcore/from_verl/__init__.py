"""A verl run, as a command line or a config, becomes one of our recipes.

Text -> settings by verl's dotted keys (``text``, ``settings``) -> our tree, key by key as the table
says (``keys``) or several keys together (``learning``, ``batches``, ``layout``) -> YAML with notes
(``translate``). Recipes and overrides themselves know only our names.
"""
