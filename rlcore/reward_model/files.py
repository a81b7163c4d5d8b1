"""Preferences from files: GSM8K's example model solutions, and chosen/rejected or ranked rows."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlcore.data.rows import BadRow, Reject, shown
from rlcore.data.screen import check_rejects
from rlcore.data.sources import GSM8K, read_file
from rlcore.data.split import content_uid, draw_of, last_for_validation
from rlcore.reward_model.preferences import RANKS, Ranked
from rlcore.reward_model.rankings import EqualResponses, ranked_row
from rlcore.store.outside import Read, read_file_digest
from schemas.data import DataSection
from schemas.errors import UserError
from schemas.reward_model import FilePreferences, Gsm8kSolutions, SampledPreferences

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


def read_preferences(section: Gsm8kSolutions | FilePreferences, data: DataSection) -> Rankings:
    """Return the ranked responses of the file that ``section`` names.

    Rows whose responses are all equally good are left out and counted. Raises ``UserError`` where
    more than ``data.max_reject_fraction`` of the rows cannot be used, naming one and why.
    """
    path, setting = preference_file(section)
    where = f"{setting} = '{path}'"
    raw = read_file(path, section.limit, setting=setting)
    if isinstance(section, Gsm8kSolutions):
        name, make = GSM8K, _solutions(section)
    else:
        name, make = section.data_source or path.rsplit("/", 1)[-1], _rankings
    rows: list[Ranked] = []
    rejects: list[Reject] = []
    equal = 0
    for index, values in enumerate(raw):
        try:
            made = make(values, index, name)
        except EqualResponses:
            equal += 1
        except BadRow as bad:
            rejects.append(Reject(where, index, bad.reason, bad.detail, shown(values)))
        else:
            rows += made
    check_rejects(rejects, {where: len(raw)}, data)
    left_out = Counter(reject.reason for reject in rejects) + Counter({EQUAL: equal})
    return Rankings(_split(rows, section.validation_fraction), dict(left_out), len(raw))


def _split(rows: Sequence[Ranked], fraction: float) -> list[Ranked]:
    """Return ``rows`` with the share ``fraction`` of prompts for validation, at least one."""
    draws = np.array([draw_of(row.prompt) for row in rows], dtype=np.uint64)
    last = last_for_validation(draws, fraction)
    held = [last is not None and draw <= last for draw in draws.tolist()]
    return [
        replace(row, split="validation" if out else "train")
        for row, out in zip(rows, held, strict=True)
    ]


def _solutions(section: Gsm8kSolutions) -> Callable[[dict[str, Any], int, str], list[Ranked]]:
    """Return what makes four responses of a question of GSM8K's example model solutions, ranked by
    their flag.

    A solution without a line ``A: <number>`` is malformed (its generation was cut off), any other
    that is not correct is wrong. ``A: `` becomes ``section.answer_marker``, so that the solutions
    have the form that the policy writes. Questions whose solutions rank alike are kept: the figures
    of the stage count them.
    """

    def made(row: dict[str, Any], index: int, name: str) -> list[Ranked]:
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
        levels = [
            (solution_level(solution["solution"], solution["is_correct"]), solution["solution"])
            for _, solution in sorted(solutions.items())
        ]
        return [
            Ranked(
                uid=content_uid(GSM8K, prompt, truth),
                split="train",
                data_source=name,
                sample=sample,
                prompt=prompt,
                response=_MARKER.sub(section.answer_marker, text),
                rank=RANKS[level],
                level=level,
            )
            for sample, (level, text) in enumerate(levels)
        ]

    return made


def _rankings(row: dict[str, Any], index: int, name: str) -> list[Ranked]:
    """Return the responses of a row in TRL's chosen/rejected or our ranked form, without levels.

    Each row of a file is a prompt of its own: rankings of different rows are not comparable.
    """
    prompt, responses = ranked_row(row)
    uid = content_uid(name, prompt, *(text for text, _ in responses), str(index))
    return [
        Ranked(
            uid=uid,
            split="train",
            data_source=name,
            sample=sample,
            prompt=prompt,
            response=text,
            rank=rank,
        )
        for sample, (text, rank) in enumerate(responses)
    ]


def solution_level(solution: str, is_correct: bool) -> str:
    """Return the level of a model solution, given its flag."""
    if is_correct:
        return "correct"
    return "wrong" if _ANSWER.search(solution) else "malformed"
