"""A reward that differs between any two answers, so that a model of random weights has something to
learn from and a resumed run has weights to compare."""


def digits(prompt: str, response: str) -> float:
    """Return the share of digits in ``response``."""
    del prompt
    return sum(character.isdigit() for character in response) / max(1, len(response))


def even_length(prompt: str, response: str) -> dict[str, float | bool]:
    """Judge a response correct when its length is even: of a random model's, about half."""
    return {"score": digits(prompt, response), "acc": len(response) % 2 == 0}


def sevens(prompt: str, response: str) -> float:
    """Return the share of sevens in ``response``: there is one best thing to say."""
    del prompt
    return response.count("7") / max(1, len(response))
