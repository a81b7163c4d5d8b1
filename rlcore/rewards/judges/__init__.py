"""Judges: models behind a URL that give a verdict on a response.

A question is one user message (``question``); its answer is asked for once (``client``) and kept
(``cache``), and what it is worth is read from the line that carries the question's own nonce.
"""
