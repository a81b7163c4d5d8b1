"""The base of every recipe section: frozen, no unknown keys, defaults validated."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One frozen level of the recipe tree."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
