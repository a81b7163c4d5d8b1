"""A model ends turns where its files and its chat template say; a run learns and samples that."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlcore.models.base import check_base_model, copy_base_model, scratch_stops
from rlcore.models.chat import Encoded, encode_demonstrations
from rlcore.models.stop_tokens import closing_token, stops_of
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rollout.turns import TurnEncoder
from schemas.errors import UserError
from schemas.model import FromScratch, ModelSection
from tests.rlcore.api.tiny import write_tiny_model

# Special tokens of the trained tokenizer, by id; EOS is <|end|>.
PAD, EOS, SYSTEM, USER = "<|endoftext|>", "<|end|>", "<|system|>", "<|user|>"
OPEN = "{% if add_generation_prompt %}<|assistant|>{% endif %}"


def template(behind: str, at_end: str = "", before: str = "{{ '<|' + m.role + '|>' }}") -> str:
    """Turns that end with ``behind``; ``at_end`` ends a chat."""
    turn = f"{{% for m in messages %}}{before}{{{{ m.content }}}}{behind}{{% endfor %}}"
    return f"{turn}{{% if not add_generation_prompt %}}{at_end}{{% endif %}}{OPEN}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("stops") / "model")


@pytest.fixture
def edited(model: Path, tmp_path: Path) -> Any:
    """Return a copy of the model with keys of its JSON files set."""

    def edited(files: dict[str, dict[str, Any]]) -> Path:
        target = tmp_path / "edited"
        shutil.copytree(model, target)
        for name, values in files.items():
            path = target / name
            before = json.loads(path.read_text()) if path.is_file() else {}
            path.write_text(json.dumps(before | values))
        return target

    return edited


def section(path: Path, **fields: Any) -> ModelSection:
    return ModelSection(path=str(path), max_tokens=64, **fields)


TEMPLATES = {
    "chatml": (template(EOS + "\n"), EOS),
    "phi-3": (template(SYSTEM + "\n", EOS), SYSTEM),
    "another than eos": (template(SYSTEM), SYSTEM),
    "two tokens, eos last": (template(SYSTEM + EOS), EOS),
    "two tokens, neither eos": (template(SYSTEM + PAD), PAD),
    "eos at the end of a chat alone": (template("", EOS), EOS),
    "between turns alone": (
        "{% for m in messages %}{{ m.content }}{% if not loop.last %}<|end|>{% endif %}"
        "{% endfor %}",
        None,
    ),
    "never": (template("\n"), None),
    "the next turn's opening": (template("\n", before="\n\n### "), None),
}


@pytest.mark.parametrize(("text", "closing"), TEMPLATES.values(), ids=TEMPLATES.keys())
def test_the_template_says_what_closes_a_turn(model: Path, text: str, closing: str | None) -> None:
    tokenizer = load_tokenizer(model, chat_template=text)
    assert closing_token(tokenizer) == closing
    stops = stops_of(model, tokenizer)
    ids = {1, tokenizer.get_vocab()[closing or EOS]}
    assert set(stops.ids) == ids
    assert ("WARNING" in stops.lines()[-1]) == (closing is None)


@pytest.mark.parametrize("why", ["raise_exception('too few')", "1 + 'too few'"])
def test_a_template_that_refuses_the_question_is_taken_at_its_eos(model: Path, why: str) -> None:
    refuses = "{% if messages|length < 9 %}{{ WHY }}{% endif %}".replace("WHY", why)
    tokenizer = load_tokenizer(model, chat_template=refuses)
    assert closing_token(tokenizer) == EOS


def test_every_origin_is_read_and_named(edited: Any) -> None:
    """Llama 3, gemma 3 and Phi-3.5 say it in four places; each alone ran answers to the limit."""
    source = edited(
        {"generation_config.json": {"eos_token_id": [1, 7]}, "config.json": {"eos_token_id": 8}}
    )
    own = section(source, chat_template=template(SYSTEM), stop_tokens=("5", 9, 1))
    stops = check_base_model(own, source)
    tokenizer = load_tokenizer(source)
    assert stops.ids == (1, 2, 7, 8, tokenizer.convert_tokens_to_ids("5"), 9)
    lines = "\n".join(stops.lines())
    assert "'<|end|>' (1): the tokenizer's eos_token, eos_token_id of generation_config" in lines
    assert "'<|system|>' (2): the chat template's end of an assistant turn" in lines
    assert "(8): eos_token_id of config.json" in lines
    assert "'5' (" in lines
    assert stops.tokens[0].origins[-1] == "model.stop_tokens"


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"config.json": {"eos_token_id": None, "text_config": {"eos_token_id": [1, 6]}}}, (1,)),
        ({"config.json": {"eos_token_id": 50256}}, (1,)),
        ({"generation_config.json": {"eos_token_id": None}}, (1,)),
        ({"generation_config.json": {"eos_token_id": 6}}, (1, 6)),
    ],
)
def test_other_forms_of_files_are_read(edited: Any, files: Any, ids: tuple[int, ...]) -> None:
    source = edited(files)
    assert stops_of(source, load_tokenizer(source)).ids == ids


def test_a_model_of_images_and_text_has_its_ends_in_the_inner_config(edited: Any) -> None:
    source = edited({})
    config = json.loads((source / "config.json").read_text())
    del config["eos_token_id"]
    inner = {"eos_token_id": [1, 6], "vocab_size": config.pop("vocab_size")}
    (source / "config.json").write_text(json.dumps(config | {"text_config": inner}))
    assert stops_of(source, load_tokenizer(source)).ids == (1, 6)


@pytest.mark.parametrize(
    ("files", "own", "sentence"),
    [
        ({}, ("## ##",), r"model\.stop_tokens\[0\] = '## ##' is \d+ tokens .* rl\.rollout\.stop"),
        ({}, (1, 320), r"model\.stop_tokens\[1\] = 320 is no token of the model, .* 0 to 3"),
        ({}, (-1,), r"model\.stop_tokens\[0\] = -1 is no token"),
        ({}, ("",), r"model\.stop_tokens\[0\] = '' is 0 tokens"),
        ({"config.json": {"eos_token_id": "1"}}, (), r"config\.json.*eos_token_id"),
        ({"generation_config.json": {"eos_token_id": [True]}}, (), r"eos_token_id = \[True\]"),
        ({"generation_config.json": {"max_new_tokens": 0}}, (), "cannot be used: .*greater than 0"),
    ],
)
def test_what_is_no_stop_token_is_refused(edited: Any, files: Any, own: Any, sentence: str) -> None:
    source = edited(files)
    with pytest.raises(UserError, match=sentence):
        check_base_model(section(source, stop_tokens=own), source)


def test_the_base_model_lists_all_of_them(edited: Any, tmp_path: Path) -> None:
    """What is sampled later, and the export, reads them there; the rest of the file stays."""
    source = edited({"generation_config.json": {"eos_token_id": 7, "temperature": 0.6}})
    told: list[str] = []
    own = section(source, chat_template=template(SYSTEM), stop_tokens=(9,))
    copy_base_model(own, source, tmp_path / "base", log=told.append)
    written = json.loads((tmp_path / "base" / "generation_config.json").read_text())
    assert (written["eos_token_id"], written["temperature"]) == ([7, 1, 2, 9], 0.6)
    assert len(told) == 4
    assert stops_of(tmp_path / "base", load_tokenizer(tmp_path / "base")).ids == (1, 2, 7, 9)


def test_a_model_with_one_stop_token_keeps_its_bytes(model: Path, tmp_path: Path) -> None:
    copy_base_model(section(model), model, tmp_path / "base")
    for name in ("generation_config.json", "config.json"):
        assert (tmp_path / "base" / name).read_bytes() == (model / name).read_bytes()


def test_a_demonstration_is_learnt_up_to_the_templates_own_end(model: Path) -> None:
    """With Phi-3's template the turn's end and EOS were learnt, and a second turn was refused."""
    tokenizer = load_tokenizer(model, chat_template=template(SYSTEM + "\n", EOS))
    chat = [{"role": "user", "content": "3?"}, {"role": "assistant", "content": "3"}]
    one, two = encode_demonstrations(tokenizer, [chat, [*chat, *chat]])
    assert isinstance(one, Encoded)
    assert isinstance(two, Encoded)
    learnt = [t for t, m in zip(two.token_ids, two.loss_mask, strict=True) if m]
    assert tokenizer.decode(learnt) == f"3{SYSTEM}3{SYSTEM}"
    assert one.token_ids == two.token_ids[: len(one.token_ids)]


@pytest.mark.parametrize("end", ["", EOS, "###"])
def test_a_turn_that_another_end_cut_is_closed_before_the_next(model: Path, end: str) -> None:
    """By the length limit, another stop token, a stop string: the policy reads its own template."""
    tokenizer = load_tokenizer(model, chat_template=template(SYSTEM, EOS))
    encoder = TurnEncoder(tokenizer, [], 16)
    said = tokenizer("3" + end)["input_ids"]
    behind = tokenizer.decode(encoder.encode([{"role": "user", "content": "4"}], after=said))
    assert behind == f"{SYSTEM}{USER}4{SYSTEM}<|assistant|>"
    closed = tokenizer("3" + SYSTEM)["input_ids"]
    behind = tokenizer.decode(encoder.encode([{"role": "user", "content": "4"}], after=closed))
    assert behind == f"{USER}4{SYSTEM}<|assistant|>"


def test_a_model_from_scratch_is_told_before_its_tokenizer_is_trained(model: Path) -> None:
    own = ModelSection(from_scratch=FromScratch(), max_tokens=64)
    trained = check_base_model(section(model), model)
    assert scratch_stops(own).ids == trained.ids == (1,)
    assert trained.lines()[0].startswith(scratch_stops(own).lines()[0])
    template_of = own.model_copy(update={"chat_template": template(SYSTEM)})
    assert scratch_stops(template_of).ids == (1, 2)


def test_an_id_that_a_model_from_scratch_cannot_have_is_refused() -> None:
    section = ModelSection.model_validate(
        {"from_scratch": {"vocab_size": 320}, "dtype": "float32", "stop_tokens": [319]}
    )
    assert scratch_stops(section).ids
    section = section.model_copy(update={"stop_tokens": (2, 320)})
    with pytest.raises(UserError, match=r"model\.stop_tokens\[1\] = 320 is no token .* 0 to 319"):
        scratch_stops(section)
