"""How the rows of ``run_stages`` are named in a store: ``runs/<run>/<stage>``, and what the stage
came to since as ``runs/<run>/<stage>.2``, ``.3``, ... The newest counts. So it is with those of
``restarts``, ``restarts/<run>/<stage>/<number>``.

None is changed or removed, so that whoever reads finds one at any moment, and a kill loses none.
"""

from collections.abc import Iterable


def newest(keys: Iterable[str]) -> list[str]:
    """Return of each stage of each run the key of its newest row, sorted.

    >>> newest(["a/rl", "a/rl.9", "a/rl.10", "a/sft"])
    ['a/rl.10', 'a/sft']
    """
    found: dict[str, tuple[int, str]] = {}
    for key in keys:
        stage, number = _split(key)
        found[stage] = max(found.get(stage, (0, "")), (number, key))
    return sorted(key for _, key in found.values())


def following(keys: Iterable[str], stage: str) -> str:
    """Return the key of the next row of ``stage`` (``<run>/<stage>``), beside those in ``keys``.

    >>> following([], "a/rl"), following(["a/rl", "a/rl.2", "a/rl_2"], "a/rl")
    ('a/rl', 'a/rl.3')
    """
    last = max((number for of, number in map(_split, keys) if of == stage), default=0)
    return stage if last == 0 else f"{stage}.{last + 1}"


def _split(key: str) -> tuple[str, int]:
    stage, _, number = key.rpartition(".")
    return (stage, int(number)) if stage and number.isdecimal() else (key, 1)
