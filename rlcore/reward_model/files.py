"""Preferences from files: GSM8K's example model solutions, and chosen/rejected or ranked rows."""

import os
import re
from itertools import takewhile
from typing import Any

from rlcore.data.chat import REASONING, Message
from rlcore.data.conversation import conversation_of
from rlcore.data.rows import BadRow, said
from rlcore.data.sources import GSM8K, read_file
from rlcore.data.split import content_uid, is_validation
from rlcore.reward_model.preferences import RANKS, Ranked
from rlcore.store.outside import Read, read_file_digest
from schemas.errors import UserError
from schemas.reward_model import FilePreferences, Gsm8kSolutions, SampledPreferences

SOLUTIONS_FILE = "example_model_solutions.jsonl"
# Like the GSM8K rule reward on "#### 18": the text after the number is ignored.
_ANSWER = re.compile(r"^A: (-?[0-9.,]+)", re.MULTILINE)
_MARKER = re.compile(r"^A: ", re.MULTILINE)
FORMS = "TRL (prompt, chosen, rejected) or ranked (prompt, responses, ranks)"


def preference_digests(
    preferences: SampledPreferences | Gsm8kSolutions | FilePreferences,
) -> dict[str, Read]:
    """Return the sha256 of the file that ``preferences`` read, by role: part of the cache key.

    Raises ``UserError`` when it does not exist or cannot be read.
    """
    if isinstance(preferences, SampledPreferences):
        return {}
    path, setting = preference_file(preferences)
    return {"reward_model.preferences": read_file_digest(path, setting)}


def preference_file(section: Gsm8kSolutions | FilePreferences) -> tuple[str, str]:
    """Return the file and the setting that names it.

    Raises ``UserError`` when neither the section nor ``GSM8K_DIR`` does.
    """
    if section.path is not None:
        return section.path, "reward_model.preferences.path"
    directory = os.environ.get("GSM8K_DIR")
    if directory is None:
        raise UserError(
            "reward_model.preferences of kind 'gsm8k_solutions' have no file; set"
            f" reward_model.preferences.path to GSM8K's {SOLUTIONS_FILE}, or GSM8K_DIR to the"
            " folder that holds it"
        )
    return f"{directory.rstrip('/')}/{SOLUTIONS_FILE}", "GSM8K file (of GSM8K_DIR)"


def read_solutions(section: Gsm8kSolutions) -> list[Ranked]:
    """Return four responses per question of GSM8K's example model solutions, ranked by their flag.

    A solution without a line ``A: <number>`` is malformed (its generation was cut off), any other
    that is not correct is wrong. ``A: `` becomes ``section.answer_marker``, so that the solutions
    have the form that the policy writes. Raises ``UserError`` for a file of another form.
    """
    path, setting = preference_file(section)
    rows: list[Ranked] = []
    for index, row in enumerate(read_file(path, section.limit, setting=setting)):
        solutions = {
            name: value
            for name, value in row.items()
            if isinstance(value, dict) and {"is_correct", "solution"} <= set(value)
        }
        if not isinstance(row.get("question"), str) or len(solutions) < 2:
            raise UserError(
                f"{setting} = '{path}' row {index} has no question with two or more model solutions"
                f" {{is_correct, solution}}; give GSM8K's {SOLUTIONS_FILE}"
            )
        prompt = [{"role": "user", "content": f"{row['question']} {section.instruction}".rstrip()}]
        found = _ANSWER.findall(str(row.get("ground_truth", "")))
        truth = found[-1].replace(",", "") if found else None
        for sample, (_, solution) in enumerate(sorted(solutions.items())):
            level = solution_level(solution["solution"], solution["is_correct"])
            rows.append(
                Ranked(
                    uid=content_uid(GSM8K, prompt, truth),
                    split=_split(prompt, section.validation_fraction),
                    data_source=GSM8K,
                    sample=sample,
                    prompt=prompt,
                    response=_MARKER.sub(section.answer_marker, solution["solution"]),
                    rank=RANKS[level],
                    level=level,
                )
            )
    return rows


def solution_level(solution: str, is_correct: bool) -> str:
    """Return the level of a model solution, given its flag."""
    if is_correct:
        return "correct"
    return "wrong" if _ANSWER.search(solution) else "malformed"


def read_rankings(section: FilePreferences) -> list[Ranked]:
    """Return the responses of a file in TRL's chosen/rejected or our ranked form, without levels.

    Each row of the file is a prompt of its own: rankings of different rows are not comparable.
    Raises ``UserError`` naming the row that has neither form.
    """
    path, setting = preference_file(section)
    name = section.data_source or path.rsplit("/", 1)[-1]
    ranked: list[Ranked] = []
    for index, row in enumerate(read_file(path, section.limit, setting=setting)):
        where = f"{setting} = '{path}' row {index}"
        prompt, responses = _ranked_row(row, where)
        uid = content_uid(name, prompt, *(text for text, _ in responses), str(index))
        ranked += [
            Ranked(
                uid=uid,
                split=_split(prompt, section.validation_fraction),
                data_source=name,
                sample=sample,
                prompt=prompt,
                response=text,
                rank=rank,
            )
            for sample, (text, rank) in enumerate(responses)
        ]
    return ranked


def _ranked_row(row: dict[str, Any], where: str) -> tuple[list[Message], list[tuple[str, int]]]:
    """Return the prompt and (response, rank) of a row of either form."""
    if row.get("chosen") is not None and row.get("rejected") is not None:
        sides = [_chat(row[name], "assistant", where) for name in ("chosen", "rejected")]
        if row.get("prompt") is not None:
            prompt = _chat(row["prompt"], "user", where)
        else:
            prompt = _common_prefix(*sides)
            sides = [side[len(prompt) :] for side in sides]
        return _asked(prompt, where), [
            (_reply(side, where), rank) for rank, side in enumerate(sides, start=1)
        ]
    if row.get("prompt") is not None and row.get("responses") and row.get("ranks"):
        responses = [_reply(_chat(r, "assistant", where), where) for r in row["responses"]]
        ranks = row["ranks"]
        if len(ranks) != len(responses) or not all(isinstance(r, int) and r >= 1 for r in ranks):
            raise UserError(f"{where} needs one rank of 1 (best) or more per response; fix it")
        prompt = _chat(row["prompt"], "user", where)
        return _asked(prompt, where), list(zip(responses, ranks, strict=True))
    raise UserError(f"{where} has columns {', '.join(row)}; the form must be {FORMS}")


def _common_prefix(chosen: list[Message], rejected: list[Message]) -> list[Message]:
    pairs = zip(chosen, rejected, strict=False)
    return [mine for mine, other in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _chat(value: Any, role: str, where: str) -> list[Message]:
    try:
        chat = conversation_of(value, "it", role)
        said(chat).encode()
    except BadRow as bad:
        raise UserError(f"{where}: {bad.detail}; fix it") from None
    except UnicodeEncodeError:
        raise UserError(f"{where} holds half of a character (such as \\ud83d); fix it") from None
    if any(REASONING[0] in message for message in chat):
        raise UserError(
            f"{where} has {REASONING[0]}, and responses are compared as text; write it into the"
            " content, as the model does"
        )
    return chat


def _asked(prompt: list[Message], where: str) -> list[Message]:
    if not prompt or prompt[-1]["role"] != "user":
        raise UserError(f"{where}: a prompt ends with a user's turn; fix it")
    return prompt


def _reply(turns: list[Message], where: str) -> str:
    if len(turns) != 1 or turns[0]["role"] != "assistant" or not turns[0]["content"].strip():
        raise UserError(f"{where}: a response is one assistant turn that is not empty; fix it")
    return turns[0]["content"]


def _split(prompt: list[Message], validation_fraction: float) -> str:
    return "validation" if is_validation(prompt, validation_fraction) else "train"
