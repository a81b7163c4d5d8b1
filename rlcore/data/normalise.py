"""Any accepted form -> one kind of row. A form is known by its columns:

- verl: ``prompt`` and ``reward_model``, or ``data_source`` without a column of TRL. A prompt;
  ability and extra_info kept.
- TRL: ``prompt``, perhaps ``completion``, perhaps ``ground_truth`` or, as TRL calls it,
  ``solution``, perhaps ``data_source``. A demonstration where there is a completion; a prompt where
  there is a ground truth or no completion.
- conversations: ``messages``, or ShareGPT's ``conversations`` and perhaps ``system``; perhaps a
  ground truth. A ``prompt`` beside ``messages`` is their begin, and left out, where there is no
  column of verl, TRL or preferences, or ``columns`` names ``messages``. As TRL: the completion is
  what follows the last user turn, from the assistant's first turn on.
- Alpaca: ``instruction``, ``output``, perhaps ``input``, which is asked behind a blank line,
  perhaps ``system`` and ``history``, as LLaMA-Factory has them. As TRL.
- GSM8K: ``question`` and ``answer`` (a source of kind "gsm8k"). Both.
- MATH: ``problem`` and ``solution``, perhaps ``level`` and ``type`` (kind "math"). Both.
- AIME: ``problem`` and ``answer`` (kind "aime"). A prompt.

Columns of other names are read by ``data.sources.columns``. ``prompt`` and ``completion`` are a
string or a list of messages, which CSV and pandas may have written as text; in TRL's forms
``tools`` are those of the row. Columns that are not part of the form go to ``extra_info``. A prompt
without ground truth is for a reward that needs none (style "model"). Where no training row of all
sources is a prompt, rows of TRL's forms that have a completion and no ground truth are prompts too
(``rlcore/data/prepare.py``).
"""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

from rlcore.data.conversation import (
    ANSWERS,
    check_roles,
    check_text_only,
    conversation_of,
    policys_part,
    tools_of,
)
from rlcore.data.rows import BadRow, RawTable, Reject, Row, said, shown
from rlcore.data.values import as_text, is_conversation, value_in
from rlcore.models.chat import Message
from rlcore.rewards.boxed import last_boxed
from schemas.errors import UserError, did_you_mean

FORMS = (
    "verl (prompt, data_source, reward_model)",
    "TRL (prompt, completion)",
    "conversations (messages; ShareGPT: conversations)",
    "Alpaca (instruction, output)",
    "GSM8K (question, answer; a source of kind 'gsm8k')",
    "MATH (problem, solution; kind 'math')",
    "AIME (problem, answer; kind 'aime')",
)
# Columns that a form of a source's own kind needs.
_OF_KIND = {
    "gsm8k": {"question", "answer"},
    "math": {"problem", "solution"},
    "aime": {"problem", "answer"},
}
STYLES = ("rule", "model", "judge", "code")
# verl: the text after the last "#### ", commas removed (examples/data_preprocess/gsm8k.py)
_GSM8K_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_CONVERSATIONS = ("messages", "conversations")
_CONVERSED = ("trl", "messages", "alpaca")  # forms that ``_conversation`` reads
_OF_TRL = ("completion", "ground_truth", "solution")
_json = json.JSONEncoder(ensure_ascii=False, default=str).encode  # dumps() would make one per row
_INTEGER = re.compile(r"-?\d+")
_AIME_ANSWER = re.compile(r"[0-9]{1,3}")


def normalise(
    table: RawTable, form: str | None = None, start: int = 0
) -> tuple[list[Row], list[Reject]]:
    """Return the usable rows of ``table``, and a Reject for each other row.

    ``form``: that of ``form_of``, ``table`` that of ``with_truth``; None: of the columns of these
    rows. ``start``: the number of the first row. Raises ``UserError`` as ``form_of`` does.
    """
    if form is None:
        found = columns_of(table.rows)
        form = form_of(table, found)
        table = with_truth(table, form, found)
    makers = {"verl": _verl, "trl": _trl, "messages": _messages, "alpaca": _alpaca}
    make = {**makers, "gsm8k": _gsm8k, "math": _math, "aime": _aime}[form]
    rows, rejects = [], []
    for index, values in enumerate(table.rows, start):
        present = {name: value for name, value in _ours(values, table).items() if value is not None}
        try:
            check_text_only(present)
            row = make(table, index, present)
            _check(row)
        except BadRow as bad:
            rejects.append(Reject(table.source, index, bad.reason, bad.detail, shown(values)))
        else:
            rows.append(row)
    return rows, rejects


def columns_of(rows: Iterable[dict[str, Any]]) -> dict[str, None]:
    """Return the names of the columns of ``rows``, in order of first appearance."""
    found: dict[str, None] = {}
    last: dict[str, Any] = {}
    for row in rows:
        if row.keys() != last.keys():
            found.update(dict.fromkeys(row))
            last = row
    return found


def _ours(values: dict[str, Any], table: RawTable) -> dict[str, Any]:
    """Return a row with our names for the columns that ``table.columns`` maps."""
    if not table.columns:
        return values
    theirs = table.columns.values()
    kept = {name: value for name, value in values.items() if name not in theirs}
    return {**kept, **{ours: values.get(name) for ours, name in table.columns.items()}}


def form_of(table: RawTable, found: dict[str, None]) -> str:
    """Return the form of ``table``, whose rows have the columns ``found``.

    Raises ``UserError`` naming the columns and the accepted forms when they do not match.
    """
    if not found:
        raise UserError(f"{table.source} holds no rows; give a file with at least one")
    for ours, name in table.columns.items():
        if name not in found:
            raise UserError(
                f"data.sources.columns.{ours} = '{name}' and {table.source} has no such column"
                f"{did_you_mean(name, found)}; its columns are {', '.join(found)}"
            )
    columns = _ours(dict(found), table)
    if table.form is not None and _OF_KIND[table.form] <= set(columns):
        return table.form
    if table.form is None and "prompt" in columns and "messages" not in table.columns:
        if "reward_model" in columns and "ground_truth" not in table.columns:
            return "verl"
        named = "data_source" in found and not table.columns
        if named and columns.keys().isdisjoint(_OF_TRL):
            return "verl"
        begins = "messages" in columns and "prompt" not in table.columns
        whole = begins and columns.keys().isdisjoint((*_OF_TRL, "chosen", "rejected"))
        return "messages" if whole else "trl"
    if table.form is None and not columns.keys().isdisjoint(_CONVERSATIONS):
        return "messages"
    if table.form is None and {"instruction", "output"} <= columns.keys():
        return "alpaca"
    raise UserError(
        f"{table.source} has columns {', '.join(found)}, which are of no accepted form:"
        f" {'; '.join(FORMS)}; rename the columns or name them on the source, e.g. columns:"
        " {prompt: question, ground_truth: answer}"
    )


def with_truth(table: RawTable, form: str, found: dict[str, None]) -> RawTable:
    """Return ``table``, its ground truth read from TRL's ``solution`` where no column of all of its
    rows, ``found``, is one: a row that lacks its own has none, and no worked solution for it."""
    columns = _ours(dict(found), table)
    if form not in _CONVERSED or "ground_truth" in columns or "solution" not in columns:
        return table
    return replace(table, columns={**table.columns, "ground_truth": "solution"})


def _gsm8k(table: RawTable, index: int, values: dict[str, Any]) -> Row:
    question, answer = _text(values, "question"), _text(values, "answer")
    found = _GSM8K_ANSWER.findall(answer)
    truth = found[-1].replace(",", "") if found else ""
    if not _INTEGER.fullmatch(truth):
        raise BadRow("no_final_answer", "the answer has no integer after '#### '")
    info = {"answer": answer, "question": question}
    return _question(table, index, question, truth, info, solution=answer)


def _math(table: RawTable, index: int, values: dict[str, Any]) -> Row:
    problem, solution = _text(values, "problem"), _text(values, "solution")
    truth = last_boxed(solution)
    if not truth:
        raise BadRow("no_final_answer", r"the solution has no complete \boxed{} with an answer")
    info = {key: values[key] for key in ("level", "type") if key in values}
    info |= {"solution": solution, "problem": problem}
    return _question(table, index, problem, truth, info, solution=solution)


def _aime(table: RawTable, index: int, values: dict[str, Any]) -> Row:
    problem = _text(values, "problem")
    answer = (as_text(values.get("answer"), "answer") or "").strip()
    if not _AIME_ANSWER.fullmatch(answer):
        raise BadRow("no_final_answer", f"the answer {answer[:80]!r} is no integer from 0 to 999")
    return _question(table, index, problem, answer, {"problem": problem})


def _question(
    table: RawTable, index: int, question: str, truth: str, info: dict[str, Any], solution: str = ""
) -> Row:
    """Return a row of a benchmark, whose ``question`` is asked with the table's instruction."""
    solved = solution and table.demonstrations
    return _row(
        table,
        index,
        prompt=[{"role": "user", "content": f"{question} {table.instruction}".rstrip()}],
        solution=[{"role": "assistant", "content": solution}] if solved else [],
        ability="math",
        ground_truth=truth,
        extra_info=_json({"split": table.split, "index": index, **info}),
    )


def _verl(table: RawTable, index: int, values: dict[str, Any]) -> Row:
    reward = _object(values, "reward_model", "is not an object of style and ground_truth")
    if not (table.data_source or table.fallback or isinstance(values.get("data_source"), str)):
        raise BadRow("no_data_source", "data_source is missing; set it here or on the source")
    known = ("prompt", "data_source", "reward_model", "ability", "extra_info")
    style = reward.get("style") or "rule"  # verl's DAPO data: rule-lighteval/MATH_v2
    info = _object(values, "extra_info", "is not an object")
    return _row(
        table,
        index,
        prompt=_chat(table, values, "prompt", "user"),
        data_source=values.get("data_source"),
        ability=str(values.get("ability", "")),
        reward_style="rule" if str(style).startswith("rule") else style,
        ground_truth=as_text(
            reward.get("ground_truth"), "reward_model.ground_truth", padded=table.padded
        ),
        extra_info=_json({**info, **_others(values, known)}),
    )


def _trl(table: RawTable, index: int, values: dict[str, Any]) -> Row:
    solution = _chat(table, values, "completion", "assistant") if "completion" in values else []
    prompt = _chat(table, values, "prompt", "user")
    return _conversation(table, index, values, prompt, solution, ("prompt", "completion"))


def _messages(table: RawTable, index: int, values: dict[str, Any]) -> Row:
    column = next((name for name in _CONVERSATIONS if name in values), _CONVERSATIONS[0])
    if isinstance(text := values.get(column), str) and not is_conversation(text):
        raise BadRow("wrong_type", f"{column} is text, not a list of messages")
    chat, columns = _chat(table, values, column, "user"), (column, "prompt")
    if column == "conversations":
        chat, columns = [*_system(values, chat), *chat], (*columns, "system")
    cut = policys_part(chat)
    return _conversation(table, index, values, chat[:cut], chat[cut:], columns)


def _alpaca(table: RawTable, index: int, values: dict[str, Any]) -> Row:
    asked = [_text(values, name) for name in ("instruction", "input") if values.get(name)]
    prompt = _system(values)
    for turns in values.get("history", []):
        if not isinstance(turns, list) or [type(turn) for turn in turns] != [str, str]:
            raise BadRow("wrong_type", "history is not a list of pairs of question and answer")
        roles = zip(("user", "assistant"), turns, strict=True)
        prompt += [{"role": role, "content": turn} for role, turn in roles]
    prompt.append({"role": "user", "content": "\n\n".join(asked)})
    solution = _chat(table, values, "output", "assistant") if "output" in values else []
    columns = ("instruction", "input", "output", "system", "history")
    return _conversation(table, index, values, prompt, solution, columns)


def _system(values: dict[str, Any], chat: Sequence[Message] = ()) -> list[Message]:
    """Return the system's turn of a row that has it in a column, unless ``chat`` has one."""
    if not values.get("system") or (chat and chat[0]["role"] == "system"):
        return []
    return [{"role": "system", "content": _text(values, "system")}]


def _conversation(
    table: RawTable,
    index: int,
    values: dict[str, Any],
    prompt: list[Message],
    solution: list[Message],
    columns: tuple[str, ...],
) -> Row:
    truth = as_text(values.get("ground_truth"), "ground_truth", padded=table.padded)
    return _row(
        table,
        index,
        prompt=prompt,
        data_source=values.get("data_source"),
        solution=solution,
        scored=truth is not None or not solution,
        reward_style="rule" if truth is not None else "model",
        ground_truth=truth,
        extra_info=_json(_others(values, (*columns, "ground_truth", "data_source", "tools"))),
        tools=tools_of(values.get("tools"), padded=table.padded),
    )


def _row(
    table: RawTable,
    index: int,
    *,
    prompt: list[Message],
    data_source: Any = None,
    **fields: Any,
) -> Row:
    own = data_source if isinstance(data_source, str) else None
    name = table.data_source or own or table.fallback or table.source.rsplit("/", 1)[-1]
    return Row(table.source, index, table.split, table.split, name, prompt, **fields)


def _check(row: Row) -> None:
    """Refuse empty turns, roles out of order, rule rows without a ground truth, what is no text."""
    _check_characters(row)
    if not row.prompt:
        raise BadRow("empty_prompt", "there is no message to answer")
    for message in row.messages:
        if not message["content"].strip() and message["role"] not in ANSWERS:
            empty = "empty_solution" if message["role"] == "assistant" else "empty_prompt"
            raise BadRow(empty, f"the {message['role']} message is empty")
    check_roles(row.prompt, row.solution)
    if row.reward_style not in STYLES:
        raise BadRow("reward_style", f"'{row.reward_style}' is none of {', '.join(STYLES)}")
    if row.scored and row.reward_style == "rule" and row.ground_truth is None:
        raise BadRow("null_ground_truth", "reward style 'rule' needs a ground truth")


def _check_characters(row: Row) -> None:
    """Refuse half of a character, which JSON can write (\\ud83d) and no file can hold."""
    texts = [said(row.messages), row.extra_info, row.data_source, row.ability, row.ground_truth]
    try:
        for text in texts:
            (text or "").encode()
        json.dumps(row.tools, ensure_ascii=False).encode() if row.tools else b""
    except UnicodeEncodeError as error:
        half = str(error.object)[error.start]
        raise BadRow("not_unicode", f"the row holds {half!r}, half of a character") from None


def _chat(table: RawTable, values: dict[str, Any], column: str, role: str) -> list[Message]:
    value = values.get(column)
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if role == "assistant" and number:  # an answer from a CSV, as a ground truth
        text = as_text(value, column)
        if text is None:
            raise BadRow("empty_solution", f"{column} is {value!r}")
        return [{"role": role, "content": text}]
    return conversation_of(value, column, role, padded=table.padded)


def _object(values: dict[str, Any], column: str, otherwise: str) -> dict[str, Any]:
    """Return a column of objects, which may be written as text."""
    value = values.get(column, {})
    if isinstance(value, str):
        with suppress(ValueError):
            value = value_in(value)
    if not isinstance(value, dict):
        raise BadRow("wrong_type", f"{column} {otherwise}")
    return value


def _text(values: dict[str, Any], column: str) -> str:
    if not isinstance(values.get(column), str):
        raise BadRow("wrong_type", f"{column} is not a string")
    return values[column]


def _others(values: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in known}
