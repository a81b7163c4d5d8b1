"""Rounds in the store: an evolving that ended early continues with those that stand."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlcore.engines.types import Generation, Sampling
from rlcore.evolve.agents import Agents
from rlcore.evolve.rounds import ROUNDS, SAMPLES, Evolution
from rlcore.store.artifacts import ArtifactStore, Lineage
from schemas.artifacts import ArtifactRef
from tests.rlcore.evolve.scripted import Engines, Words, agents, problem, section

PROBLEMS = [problem("a", "2 and 3?"), problem("b", "3 and 4?")]
WORDS: Words = {
    (agent, number, uid, 0): f"{number}{uid} <answer>{number}</answer>"
    for agent in ("policy", "independent")
    for number in (1, 2, 3, 4)
    for uid in ("a", "b")
}
JUDGED = r"seen \boxed{1}"


class Dying(Engines):
    """Ends at the ``calls``-th call."""

    def __init__(self, words: Words, other: str, calls: int) -> None:
        super().__init__(words, other)
        self._left = calls

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> Iterator[tuple[int, Generation]]:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        yield from super().stream(prompts, seeds, sampling)


def evolution(root: Path, start: Callable[[], Agents]) -> Evolution:
    return Evolution(
        ArtifactStore(root),
        "k",
        Lineage("r", "c"),
        PROBLEMS,
        start=start,
        log=lambda line: None,
    )


def evolve(root: Path, engines: Any, rounds: int = 3) -> dict[str, ArtifactRef]:
    one = evolution(root, lambda: agents(engines, section()))
    for number in range(1, rounds + 1):
        one.round(number)
        one.sample(number)
    return one.parents


def digests(parents: dict[str, ArtifactRef]) -> dict[str, str]:
    return {role: ref.sha256 for role, ref in parents.items()}


def test_what_ended_in_round_two_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole = evolve(tmp_path / "whole", Engines(WORDS, JUDGED))
    # A round is two calls, a sample one: the fifth call asks the verifiers of round 2.
    with pytest.raises(KeyboardInterrupt):
        evolve(tmp_path / "cut", Dying(WORDS, JUDGED, calls=4))
    store = ArtifactStore(tmp_path / "cut")
    standing = {(manifest.kind, manifest.key) for manifest in store.manifests()}
    assert standing == {(ROUNDS, "k/000001"), (SAMPLES, "k/000001")}, "no half round stands"
    engines = Engines(WORDS, JUDGED)
    assert digests(evolve(tmp_path / "cut", engines)) == digests(whole)
    assert all("[1 1 " in text for text, _ in engines.asked[:2]), "round 2 was asked first"
    manifest = store.manifest(evolve(tmp_path / "cut", engines)["round-003"])
    assert manifest.parents["before"].key == "k/000002"


def test_what_stands_starts_no_engine_and_more_rounds_go_on(tmp_path: Path) -> None:
    first = evolve(tmp_path, Engines(WORDS, JUDGED), rounds=2)

    def no_start() -> Agents:
        raise AssertionError("all rounds stand")

    again = evolution(tmp_path, no_start)
    for number in (1, 2):
        again.round(number)
        again.sample(number)
    assert again.parents == first
    longer = evolve(tmp_path, Engines(WORDS, JUDGED), rounds=4)
    assert {role: longer[role] for role in first} == first
    assert digests(longer) == digests(evolve(tmp_path / "new", Engines(WORDS, JUDGED), rounds=4))


def test_a_damaged_round_is_played_again(tmp_path: Path) -> None:
    whole = digests(evolve(tmp_path, Engines(WORDS, JUDGED)))
    (table,) = tmp_path.glob(f"{ROUNDS}/**/000002/evolve_answers.parquet")
    table.chmod(0o644)
    table.write_bytes(b"damaged")
    assert digests(evolve(tmp_path, Engines(WORDS, JUDGED))) == whole


def test_rounds_after_another_one_are_played_again(tmp_path: Path) -> None:
    """Another machine may make a lost round of other tokens; what came after the lost one is of
    another memory."""
    evolve(tmp_path, Engines(WORDS, JUDGED))
    ArtifactStore(tmp_path).discard(ROUNDS, "k/000002")
    other: Words = {**WORDS, ("policy", 2, "a", 0): "else <answer>9</answer>"}
    again = digests(evolve(tmp_path, Engines(other, JUDGED)))
    assert again == digests(evolve(tmp_path / "new", Engines(other, JUDGED)))
