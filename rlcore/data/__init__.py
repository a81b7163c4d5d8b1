"""Rows in, contracts out: sources are read, normalised, cleaned, split and tokenised, once.

``prepare`` is the whole of it: it returns the Prompts, Demonstrations and Rejects tables and writes
the base model that they were tokenised for. Nothing a source held is lost silently: a row is in one
of the three tables.
"""
