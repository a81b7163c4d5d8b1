"""Preferences from files: GSM8K's example model solutions, and rows of the forms that people
have.

Forms, by their columns:

- ``chosen`` and ``rejected``: TRL's, with the ``prompt`` apart or repeated in both conversations;
  UltraFeedback's, with the prompt as text and whole conversations; hh's, with the whole dialogue as
  text ("\\n\\nHuman: ... \\n\\nAssistant: ...").
- ``prompt``, ``responses`` and ``ranks``, 1 the best.
- ``prompt``, ``completion`` and ``label``, TRL's for KTO: a single response, desirable or not.

Text is a turn of the user in a prompt, of the assistant in a response, of the system in a column
``system`` beside these.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcore.data.conversation import check_text_only, conversation_of, tools_of
from rlcore.data.rows import BadRow, Reject, check_rejects, said, shown
from rlcore.data.sources import GSM8K, read_file
from rlcore.data.split import content_uid, draw_of, last_for_validation
from rlcore.models.chat import REASONING, Message
from rlcore.store.inputs import Read, read_file_digest
from rlcore.supervised.preferences import Preferences, Ranked, encode
from rlcore.supervised.ranking import RANKS
from schemas.data import DataSection
from schemas.errors import UserError
from schemas.reward_model import FilePreferences, Gsm8kSolutions, SampledPreferences

if TYPE_CHECKING:
    from rlcore.models.tokenizer import ChatTokenizer

FORMS = "TRL (prompt, chosen, rejected) or ranked (prompt, responses, ranks)"
LABELLED = {"completion", "label"}
OF_REWARD_MODEL, OF_PREFERENCE = "reward_model.preferences", "preference.data"  # their settings
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


class EqualResponses(Exception):
    """No response of a row is better than another."""


def ranked_row(row: dict[str, Any]) -> tuple[list[Message], list[tuple[str, int]]]:
    """Return the prompt of a row and its (response, rank).

    Raises BadRow for a row of no known form, EqualResponses where all rank alike: by their ranks,
    their text, or UltraFeedback's ``score_chosen`` and ``score_rejected``.
    """
    row = {name: value for name, value in row.items() if value is not None}
    asked = _prompt(row["prompt"]) if "prompt" in row else None
    chats, ranks = _ranked_chats(row)
    sides = [_divided(asked, chat) for chat in chats]
    if any(_stripped(other) != _stripped(sides[0][0]) for other, _ in sides):
        raise BadRow("other_prompt", "its conversations differ before their last turn")
    prompt = _whole(row, sides[0][0])
    replies = [_reply(turns) for _, turns in sides]
    scores = row.get("score_chosen"), row.get("score_rejected")
    tied = scores[0] is not None and scores[0] == scores[1]
    if tied or len(set(ranks)) == 1 or len(set(replies)) == 1:
        raise EqualResponses
    of_text: dict[str, int] = {}
    for text, rank in zip(replies, ranks, strict=True):
        if of_text.setdefault(text, rank) != rank:
            raise BadRow("contradiction", f"the response {text[:80]!r} has two ranks")
    return prompt, list(zip(replies, ranks, strict=True))


def _ranked_chats(row: dict[str, Any]) -> tuple[list[list[Message]], list[int]]:
    """Return the conversations of a row, each with its rank."""
    if "chosen" in row or "rejected" in row:
        if missing := [name for name in ("chosen", "rejected") if name not in row]:
            raise BadRow("missing", f"{missing[0]} is missing or null")
        return [_chat(row[name], "assistant", name) for name in ("chosen", "rejected")], [1, 2]
    responses, ranks = row.get("responses"), row.get("ranks")
    if "prompt" not in row or not isinstance(responses, list) or not isinstance(ranks, list):
        raise BadRow("wrong_form", f"it has columns {', '.join(row)}; the form must be {FORMS}")
    if len(ranks) != len(responses) or len(ranks) < 2 or not all(map(_is_rank, ranks)):
        raise BadRow(
            "ranks", "it needs two responses or more, and one rank of 1 (best) or more each"
        )
    return [_chat(one, "assistant", "responses") for one in responses], [int(r) for r in ranks]


def labelled_row(row: dict[str, Any]) -> tuple[list[Message], list[tuple[str, int]]]:
    """Return the prompt of a row of TRL's form for KTO, and its response with rank 1 where the
    label says that it is desirable, else 2. Raises BadRow where it is no such row."""
    if not isinstance(row.get("label"), bool):
        raise BadRow("label", f"label is {row.get('label')!r:.80}; it must be true or false")
    if row.get("prompt") is None or row.get("completion") is None:
        raise BadRow("missing", "prompt or completion is missing or null")
    reply = _chat(row["completion"], "assistant", "completion")
    prompt, turns = _divided(_prompt(row["prompt"]), reply)
    return _whole(row, prompt), [(_reply(turns), 1 if row["label"] else 2)]


def _whole(row: dict[str, Any], prompt: list[Message]) -> list[Message]:
    """Return ``prompt`` behind the system's turn of its row, unless it begins with one."""
    if not prompt and "prompt" not in row:
        raise BadRow("missing", f"it has no prompt, but {', '.join(row)}; rename one to prompt")
    if not prompt or prompt[-1]["role"] in ("assistant", "system"):
        raise BadRow("roles", "a prompt ends with a user's turn")
    if tools_of(row.get("tools")):
        raise BadRow("tools", "it has tools, which responses are read without; leave such rows out")
    if not row.get("system") or prompt[0]["role"] == "system":
        return prompt
    return _chat(row["system"], "system", "system") + prompt


def _is_rank(rank: Any) -> bool:
    number = isinstance(rank, int | float) and not isinstance(rank, bool)
    return number and rank >= 1 and rank == int(rank)


def _divided(
    asked: list[Message] | None, chat: list[Message]
) -> tuple[list[Message], list[Message]]:
    """Return the prompt of a conversation and what answers it. A conversation that begins with
    another turn than the assistant's has the prompt in it, of which ``asked`` may be the end."""
    if not chat:
        raise BadRow("response", "a response has no message")
    if asked is not None and chat[0]["role"] == "assistant":
        return asked, chat
    prompt, reply = chat[:-1], chat[-1:]
    if asked is not None and _stripped(prompt[-len(asked) :]) != _stripped(asked):
        raise BadRow("other_prompt", "a conversation does not begin with the prompt of its row")
    return prompt, reply


def _stripped(chat: Sequence[Message]) -> list[Message]:
    return [{**message, "content": message["content"].strip()} for message in chat]


def _prompt(value: Any) -> list[Message]:
    chat = _chat(value, "user", "prompt")
    # hh's prompt ends where the assistant is to speak
    return chat[:-1] if len(chat) > 1 and not chat[-1]["content"].strip() else chat


def _chat(value: Any, role: str, column: str) -> list[Message]:
    if not isinstance(value, str | list | dict):
        raise BadRow("wrong_type", f"{column} is {value!r:.80}, neither text nor messages")
    spoken = _dialogue(value) if isinstance(value, str) else []
    chat = spoken or conversation_of(value, column, role)
    try:
        said(chat).encode()
    except UnicodeEncodeError:
        raise BadRow("surrogate", f"{column} holds half of a character (such as \\ud83d)") from None
    if any(REASONING[0] in message for message in chat):
        raise BadRow(
            "reasoning",
            f"{column} has {REASONING[0]}, and responses are compared as text; write it into the"
            " content, as the model does",
        )
    return chat


def _dialogue(text: str) -> list[Message]:
    """Return the turns of a dialogue in hh's form; none where ``text`` is not one."""
    marks = list(_TURN.finditer(text))
    if not marks or marks[0].start() != 0:
        return []
    if not text.startswith("\n\n") and (len(marks) < 2 or marks[0][1] != "Human"):
        return []  # a text that begins with that word
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [
        {"role": _ROLES[mark[1]], "content": text[mark.end() : end].strip()}
        for mark, end in zip(marks, ends, strict=True)
    ]


def _reply(turns: Sequence[Message]) -> str:
    if len(turns) != 1 or turns[0]["role"] != "assistant" or not turns[0]["content"].strip():
        raise BadRow("response", "a response is one assistant turn that is not empty")
    return turns[0]["content"]


SOLUTIONS_FILE = "example_model_solutions.jsonl"
# Like the GSM8K rule reward on "#### 18": the text after the number is ignored.
_ANSWER = re.compile(r"^A: (-?[0-9.,]+)", re.MULTILINE)
_MARKER = re.compile(r"^A: ", re.MULTILINE)
EQUAL = "equal"  # of rows whose responses are not better or worse than one another


@dataclass(frozen=True, slots=True)
class Rankings:
    """``rows``: of a file, two or more to each prompt. ``left_out``: rows of the file that are none
    of them, by reason; ``total``: all of its rows."""

    rows: list[Ranked]
    left_out: dict[str, int]
    total: int


def preference_digests(
    preferences: SampledPreferences | Gsm8kSolutions | FilePreferences, at: str = OF_REWARD_MODEL
) -> dict[str, Read]:
    """Return the sha256 of the file that ``preferences`` read, by role: part of the cache key.

    ``at``: the section's place in the recipe, here and below. Raises ``UserError`` when it does not
    exist or cannot be read.
    """
    if isinstance(preferences, SampledPreferences):
        return {}
    path, setting = preference_file(preferences, at)
    return {at: read_file_digest(path, setting)}


def preference_file(
    section: Gsm8kSolutions | FilePreferences, at: str = OF_REWARD_MODEL
) -> tuple[str, str]:
    """Return the file and the setting that names it.

    Raises ``UserError`` when neither the section nor ``GSM8K_DIR`` does.
    """
    if section.path is not None:
        return section.path, f"{at}.path"
    directory = os.environ.get("GSM8K_DIR")
    if directory is None:
        raise UserError(
            f"{at} of kind 'gsm8k_solutions' have no file; set {at}.path to GSM8K's"
            f" {SOLUTIONS_FILE}, or GSM8K_DIR to the folder that holds it"
        )
    return f"{directory.rstrip('/')}/{SOLUTIONS_FILE}", "GSM8K file (of GSM8K_DIR)"


def read_preferences(
    section: Gsm8kSolutions | FilePreferences,
    data: DataSection,
    at: str = OF_REWARD_MODEL,
    *,
    labels: bool = False,
) -> Rankings:
    """Return the ranked responses of the file that ``section`` names.

    Rows whose responses are all equally good are left out and counted. ``labels``: rows of a single
    response with a label are read too. Raises ``UserError`` where more than
    ``data.max_reject_fraction`` of the rows cannot be used, naming one and why.
    """
    path, setting = preference_file(section, at)
    where = f"{setting} = '{path}'"
    raw = read_file(path, section.limit, setting=setting)
    if isinstance(section, Gsm8kSolutions):
        make = partial(_solutions, section=section)
    else:
        name = section.data_source or path.rsplit("/", 1)[-1]
        make = partial(_rankings, name=name, labels=labels)
    rows: list[Ranked] = []
    rejects: list[Reject] = []
    equal = 0
    for index, values in enumerate(raw):
        try:
            made = make(values, index)
        except EqualResponses:
            equal += 1
        except BadRow as bad:
            rejects.append(Reject(where, index, bad.reason, bad.detail, shown(values)))
        else:
            rows += made
    check_rejects(rejects, {where: len(raw)}, data)
    left_out = Counter(reject.reason for reject in rejects) + Counter({EQUAL: equal})
    return Rankings(_split(rows, section.validation_fraction), dict(left_out), len(raw))


def encode_file(
    section: Gsm8kSolutions | FilePreferences,
    data: DataSection,
    tokenizer: "ChatTokenizer",
    at: str = OF_REWARD_MODEL,
    *,
    labels: bool = False,
) -> Preferences:
    """Return the responses of the file that ``section`` names in tokens, what is left out counted.
    Raises ``UserError`` as ``read_preferences`` and ``encode`` do."""
    read = read_preferences(section, data, at, labels=labels)
    encoded = encode(read.rows, tokenizer, max_reject_fraction=data.max_reject_fraction)
    return replace(encoded, left_out=read.left_out | encoded.left_out)


def _split(rows: Sequence[Ranked], fraction: float) -> list[Ranked]:
    """Return ``rows`` with the share ``fraction`` of prompts for validation, at least one."""
    draws = np.array([draw_of(row.prompt) for row in rows], dtype=np.uint64)
    last = last_for_validation(draws, fraction)
    splits = ["train" if last is None or draw > last else "validation" for draw in draws.tolist()]
    return [replace(row, split=split) for row, split in zip(rows, splits, strict=True)]


def _solutions(row: dict[str, Any], index: int, *, section: Gsm8kSolutions) -> list[Ranked]:
    """Return four responses of a question of GSM8K's example model solutions, ranked by their flag.

    A solution without a line ``A: <number>`` is malformed (its generation was cut off), any other
    that is not correct is wrong. ``A: `` becomes ``section.answer_marker``, so that the solutions
    have the form that the policy writes. Questions whose solutions rank alike are kept: the figures
    of the stage count them.
    """
    solutions = {
        name: value
        for name, value in row.items()
        if isinstance(value, dict) and {"is_correct", "solution"} <= set(value)
    }
    if not isinstance(row.get("question"), str) or len(solutions) < 2:
        raise BadRow(
            "wrong_form",
            "it has no question with two or more model solutions {is_correct, solution}; give"
            f" GSM8K's {SOLUTIONS_FILE}",
        )
    prompt = [{"role": "user", "content": f"{row['question']} {section.instruction}".rstrip()}]
    found = _ANSWER.findall(str(row.get("ground_truth", "")))
    truth = found[-1].replace(",", "") if found else None
    uid = content_uid(GSM8K, prompt, truth)
    made = []
    for sample, (_, solution) in enumerate(sorted(solutions.items())):
        text = solution["solution"]
        level = "wrong" if _ANSWER.search(text) else "malformed"
        level = "correct" if solution["is_correct"] else level
        response = _MARKER.sub(section.answer_marker, text)
        made.append(Ranked(uid, "train", GSM8K, sample, prompt, response, RANKS[level], level))
    return made


def _rankings(row: dict[str, Any], index: int, *, name: str, labels: bool) -> list[Ranked]:
    """Return the responses of a row in TRL's chosen/rejected or our ranked form, and with
    ``labels`` in TRL's for KTO; they have no levels.

    Each row of a file is a separate prompt: rankings of different rows are not comparable.
    """
    check_text_only(row)
    single = row.keys() >= LABELLED
    if single and not labels:
        raise BadRow(
            "single",
            "it has one response with a label, and pairs are read; set preference.algorithm to"
            " kto, or give pairs",
        )
    prompt, responses = labelled_row(row) if single else ranked_row(row)
    uid = content_uid(name, prompt, *(text for text, _ in responses), str(index))
    return [
        Ranked(uid, "train", name, sample, prompt, text, rank)
        for sample, (text, rank) in enumerate(responses)
    ]
