"""Sources and their treatment that cannot work are refused where they are written."""

from typing import Any

import pytest

from schemas.data import (
    ArithmeticSource,
    DataSection,
    GeneratedSource,
    Gsm8kSource,
    HubSource,
    ProgramsSource,
)


def test_a_source_is_known_by_its_kind() -> None:
    data = DataSection.model_validate(
        {"sources": [{"kind": "gsm8k"}, {"kind": "hub", "name": "a/b", "split": "test"}]}
    )
    assert [type(source) for source in data.sources] == [Gsm8kSource, HubSource]
    with pytest.raises(ValueError, match="'file', 'hub', 'arithmetic', 'programs'"):
        DataSection.model_validate({"sources": [{"kind": "huggingface"}]})
    with pytest.raises(ValueError, match="at least 1 item"):
        DataSection(sources=())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"levels": [6]}, "less than or equal to 5"),
        ({"types": ["Algbra"]}, "Input should be 'Algebra', .*Algbra"),
        ({"kind": "aime", "year": 2023}, "2024 or 2025"),
    ],
)
def test_what_math_and_aime_do_not_have_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DataSection.model_validate({"sources": [{"kind": "math", **fields}]})


@pytest.mark.parametrize("source", [ArithmeticSource(), ProgramsSource()])
def test_generated_problems_are_not_compared_nearly(source: GeneratedSource) -> None:
    """They differ in numbers only: all but one would be dropped."""
    with pytest.raises(ValueError, match=r"set data\.deduplicate to 'exact'"):
        DataSection(sources=(source,), deduplicate="near")


def test_generated_programs_have_validation_rows_and_known_sizes() -> None:
    data = DataSection.model_validate(
        {"sources": [{"kind": "programs", "train": 9, "demonstrations": 4}]}
    )
    assert data.validation_fraction == 0


def test_deduplication_follows_the_sources_and_yamls_bare_off_is_off() -> None:
    arithmetic, gsm8k = {"kind": "arithmetic"}, {"kind": "gsm8k"}
    programs = {"kind": "programs"}
    for sources, said, meant in (
        ([arithmetic], {}, "exact"),
        ([gsm8k, arithmetic], {}, "exact"),
        ([programs], {}, "exact"),
        ([gsm8k], {}, "near"),
        ([arithmetic], {"deduplicate": False}, "off"),
    ):
        assert DataSection.model_validate({"sources": sources, **said}).deduplicate == meant


@pytest.mark.parametrize("steps", [(0, 1), (2, 1), (1, 4), (4, 4)])
def test_steps_of_a_problem_are_a_range(steps: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"is not a range within 1 to 3; give \[fewest, most\]"):
        ArithmeticSource(steps=steps)


@pytest.mark.parametrize(
    "fields",
    [
        {"validation_fraction": 1.0},
        {"near_duplicate_jaccard": 0.0},
        {"max_reject_fraction": 1.1},
        {"max_prompt_tokens": 0},
        {"dedupe": "exact"},
    ],
)
def test_shares_are_shares_and_unknown_keys_are_refused(fields: dict[str, Any]) -> None:
    """A key that is ignored is a setting that a person believes in."""
    with pytest.raises(ValueError, match=next(iter(fields))):
        DataSection.model_validate({"sources": [{"kind": "gsm8k"}], **fields})
