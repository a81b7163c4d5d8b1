"""A small part of bash, read and never run: what a verl script passes to its trainer.

Text -> words and operators (``lexer``) -> statements (``parser``) -> values of variables and the
words of the trainer's command (``script``, with ``expansion``).
What only running could tell is a value with the reason why it is not known; a statement
whose effect only running could tell ends in a sentence that asks for the output of ``bash -x``.
"""
