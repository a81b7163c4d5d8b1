"""Paths in a checkout, which ``flows`` passes to the code that reads them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "flows" / "recipes"
AUTOMATIONS = ROOT / "infra" / "automations.yaml"
