"""Paths of files that are installed with ``flows`` (recipes, automations) and of the project's own
folder. Paths of runs and stores are in ``rlcore.results``."""

from pathlib import Path

_PACKAGE = Path(__file__).parent
RECIPES = _PACKAGE / "recipes"
AUTOMATIONS = _PACKAGE / "automations.yaml"
# Server, runs and stores keep their files there, which must not be among installed packages.
_is_checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
ROOT = _PACKAGE.parent if _is_checkout else Path.cwd()
REPORTS = ROOT / "runs" / "reports"  # the folders of reports that the server serves
CONSTRAINTS = ROOT / "infra" / "constraints.txt"  # in a checkout only
