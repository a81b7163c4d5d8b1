"""The limits of what every engine can sample with."""

from typing import Annotated

from pydantic import Field

MIN_TEMPERATURE = 0.01  # vLLM silently raises lower temperatures to this
MAX_TEMPERATURE = 2.0  # the limit of vLLM
NO_TOP_K = -1

# Texts that end an answer; they may begin and end inside a token.
StopTexts = tuple[Annotated[str, Field(min_length=1)], ...]
# Of a setting that samples; greedy decoding, temperature 0, is no setting of a recipe.
Temperature = Annotated[float, Field(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE)]
