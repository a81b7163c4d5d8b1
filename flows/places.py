"""Where things lie in a checkout; ``flows`` hands these paths down to whoever reads them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "flows" / "recipes"
AUTOMATIONS = ROOT / "infra" / "automations.yaml"
