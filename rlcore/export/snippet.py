"""The card's Python snippet, with a prompt of the evaluation and the answer recorded for it."""

from dataclasses import dataclass

import polars as pl

from schemas.outcomes import FinishReason, Outcome

_SNIPPET = """\
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

directory = "."  # where this file is, or the model's name on the hub
tokenizer = AutoTokenizer.from_pretrained(directory{trust})
model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto"{trust})
# As in the evaluation: the likeliest token each time, without penalties, up to the end token.
model.generation_config = GenerationConfig(
    do_sample=False,
    max_new_tokens={max_new_tokens},
    eos_token_id=model.generation_config.eos_token_id or tokenizer.eos_token_id,
    pad_token_id=tokenizer.pad_token_id,{stop_strings}
)
messages = {messages!r}
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)
output = model.generate(**inputs{stopping})
prompt_tokens = inputs["input_ids"].shape[1]
answer = tokenizer.decode(output[0, prompt_tokens:], skip_special_tokens=True){cutting}
print(answer)
# The evaluation recorded: {answer!r}
"""

_CUTTING = """
answer = answer[: min([answer.find(stop) for stop in {stop!r} if stop in answer] or [None])]"""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt of the evaluation and the greedy answer to it, of at most ``max_new_tokens`` and up
    to a text of ``stop``."""

    messages: list[dict[str, str]]
    answer: str
    max_new_tokens: int
    stop: tuple[str, ...] = ()


def choose_example(
    completions: pl.DataFrame,
    prompts: pl.DataFrame,
    *,
    checkpoint: str,
    max_new_tokens: int,
    stop: tuple[str, ...] = (),
) -> Example | None:
    """Return the shortest prompt (Prompts) that ``checkpoint`` answered (Completions) greedily.

    Where some answers are right, it is the shortest of their prompts. None where there is none: all
    were aborted, or another checkpoint was evaluated.
    """
    greedy = completions.filter(
        (pl.col("checkpoint") == checkpoint)
        & (pl.col("mode") == "greedy")
        & (pl.col("finish_reason") != FinishReason.ABORT.value)
    )
    order = greedy.sort(
        pl.col("outcome") != Outcome.OK.value, pl.col("prompt").str.len_chars(), "uid"
    )
    if order.is_empty():
        return None
    first = order.row(0, named=True)
    (messages,) = prompts.filter(pl.col("uid") == first["uid"])["prompt"].to_list()
    return Example(messages, first["response"], max_new_tokens, stop)


def render_snippet(example: Example, *, trust_remote_code: bool = False) -> str:
    """Return Python that answers ``example`` from within the exported directory.

    Text of the prompt stands in it as Python literals, each on one line: it can neither end the
    card's code block nor become code.
    """
    return _SNIPPET.format(
        trust=", trust_remote_code=True" if trust_remote_code else "",
        max_new_tokens=example.max_new_tokens,
        stop_strings=f"\n    stop_strings={list(example.stop)!r}," if example.stop else "",
        stopping=", tokenizer=tokenizer" if example.stop else "",
        cutting=_CUTTING.format(stop=list(example.stop)) if example.stop else "",
        messages=example.messages,
        answer=example.answer,
    )
