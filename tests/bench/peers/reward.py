"""The reward of the jobs that are timed."""


def digits(prompt: str, response: str) -> float:
    """Return the share of digits."""
    del prompt
    return sum(character.isdigit() for character in response) / max(1, len(response))
