"""Prefect without pandas, for processes that compute nothing: the server and its worker.

``prefect.cache_policies`` imports pandas where it is installed, as it is here for ``datasets``, to
hash data frames among the parameters of tasks; none of ours has one. pandas takes as long to import
as all else of Prefect together, and a first run waits for both processes, one after the other. In
the flow's process it is imported anyway, by pandera.

As a program it is ``python -m prefect`` with the same arguments.
"""

import sys
from runpy import run_module

PANDAS = "pandas"


def import_prefect() -> None:
    """Import Prefect's core so that it takes pandas for not installed, where neither is imported.

    pandas can be imported afterwards.
    """
    if PANDAS in sys.modules:
        return
    sys.modules[PANDAS] = None  # type: ignore[assignment]  # an import of it fails now
    try:
        import prefect.cache_policies  # noqa: F401
    finally:
        del sys.modules[PANDAS]


if __name__ == "__main__":
    import_prefect()
    run_module("prefect", run_name="__main__", alter_sys=True)
