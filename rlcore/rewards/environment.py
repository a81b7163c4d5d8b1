"""The environment variables of processes that run the user's code."""

import os
from collections.abc import Sequence

from schemas.errors import UserError

# What such a process gets; other variables may hold keys and tokens.
_PASSED = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    "CUDA_VISIBLE_DEVICES",  # empty, else a function would see the GPUs of learner and engines
}


def environment_of(named: Sequence[str], key: str = "reward.env") -> dict[str, str]:
    """Return the part of this process's environment that a process of the user's code gets.

    ``named``: the variables of the recipe's list ``key``. Raises UserError for one that is not set.
    """
    check_environment(named, key)
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name in named or name.startswith("LC_")
    }


def check_environment(named: Sequence[str], key: str = "reward.env") -> None:
    """Raise UserError for a variable of the recipe's list ``key`` that this process's environment
    lacks."""
    for index, name in enumerate(named):
        if name not in os.environ:
            raise UserError(
                f"{key}[{index}] = {name!r} is not set where the reward functions run;"
                " export it before `make up`, or leave it out"
            )
