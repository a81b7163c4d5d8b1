"""Versions of the results of each stage: raised when our code changes what a stage makes.

A key holds the version, not our source, so code can move without anybody's training being redone.
``versions.json`` beside this file has the digest of the code that each version was recorded with.
A checkout whose code differs works under ``+modified`` keys. ``make versions`` records its code:
under the version that was raised here, or as code that cannot alter results.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlcore.store.fingerprint import ROOT, Code, code_of, installed

RECORD = "rlcore/store/versions.json"
VERSION = "version"  # name of that part of a key
MODIFIED = "+modified."
DIGITS = 12  # of a digest in a key or a sentence
FIRST = ("the code that had no version yet",)
SPLIT = (
    *FIRST,
    "sources are read in more forms, and bad rows rejected",
    "float32 of Parquet is read as the decimals that were written",
    "a null truth is none, messages of H4's form end in the answer, rows of images are rejected",
    "rows keep their data_source, a rule of any name is a rule, dropped thoughts are rejected",
)
PLAIN = "a CPU computes with torch's own functions, which round otherwise than loops of ours"
EPOCHS = (*FIRST, "every row is trained once an epoch, in a smaller last batch", PLAIN)
ENDS = (
    *FIRST,
    "answers end with every stop token, and verdicts read more forms of answers",
    "behind a number stands a unit or nothing, and an equation is paid for the value that it names",
    PLAIN,
    "gsm8k in mode numeric reads the forms of numbers that math reads",
    "math takes a choice with its words and two more forms, environments read stop strings, and no"
    " majority is told without answers",
    "math reads the box in a truth, programs have the standard library, groups without verdicts are"
    " filtered by scores",
)

LEARNER = ("rlcore.learner.learner", "rlcore.learner.pool", "rlcore.rl.specs")
ENGINES = (
    *("rlcore.engines.own_engine", "rlcore.engines.transformers_engine"),
    "rlcore.engines.vllm_engine",
)
REWARDS = (
    *("rlcore.models.classifier", "rlcore.rewards.child", "rlcore.rewards.pool"),
    *("rlcore.rewards.judges.reward_model", "rlcore.rewards.worker"),
)
ENVIRONMENTS = ("rlcore.envs.child", "rlcore.envs.pool", "rlcore.envs.process")
SAMPLED = (*ENGINES, *LEARNER, *REWARDS)
PLAYED = ("rlcore.evolve.rounds", "rlcore.evolve.session", *ENGINES, *ENVIRONMENTS)
# What the learner does in other stages than SFT, and what samples and scores there.
NOT_SFT = ("rlcore.algorithms.losses", "rlcore.algorithms.kl", "rlcore.engines", "rlcore.rewards")
# What samples and scores responses, which it reads from a file.
NOT_PREFERENCE = ("rlcore.engines", "rlcore.envs", "rlcore.rewards", "rlcore.rollout")
# What answers episodes of several turns: preferences are sampled in one.
NOT_PREFERENCES_SAMPLED = ("rlcore.envs.pool",)
# What plans and rewards say of rows that are prepared, which ends a run and changes none of them.
NOT_DATA = ("rlcore.plan", "rlcore.rewards")
# Modules and packages that cannot change a result: they say where and how it is computed, keep it,
# stop a run, or show it. The values of a recipe are in the keys, so its types are not.
NEUTRAL = (
    *("rlcore.cluster", "rlcore.recipes", "rlcore.results", "rlcore.store"),
    *("rlcore.rl.unsolved_prompts", "rlcore.rl.guards", "rlcore.rl.metrics", "rlcore.rl.workers"),
    *("schemas", "tasks.run_page", "tasks.runtime"),
)
# Those among them that can. Contracts of tables cannot: they refuse a table, and change none.
COUNTED = (
    *("rlcore.cluster.host_settings", "rlcore.recipes.text", "rlcore.results.conditions"),
    *("rlcore.rewards.boxed", "rlcore.store.tables", "schemas.table_list"),
    *("schemas.environment", "schemas.licenses", "schemas.names", "schemas.outcomes"),
    "schemas.rollout",
)


@dataclass(frozen=True, slots=True)
class Versioned:
    """Code whose results have a version.

    ``steps``: why each version differs from the one before it; their number is the version.
    ``code``: the modules where it begins, with those that workers load by name. ``without``:
    modules and packages that these import and that cannot change its result.
    """

    steps: tuple[str, ...]
    code: tuple[str, ...]
    without: tuple[str, ...] = ()


# To raise a version: a step, in words for who asks ``rl-pipeline status``; then ``make versions``.
VERSIONS: Mapping[str, Versioned] = {
    "base_model": Versioned(
        (*FIRST, "files list all stop tokens, weights have names of files"), ("tasks.base_model",)
    ),
    "prepare_data": Versioned(SPLIT, ("tasks.prepare_data",), NOT_DATA),
    "sft": Versioned(EPOCHS, ("tasks.sft", *LEARNER), NOT_SFT),
    "preference": Versioned(
        (*FIRST, "a conversation's last turn alone is told apart", "system columns are read"),
        ("tasks.preference", *LEARNER),
        NOT_PREFERENCE,
    ),
    "reward_model": Versioned(
        (*EPOCHS, *ENDS[-3:]), ("tasks.reward_model", *SAMPLED), NOT_PREFERENCES_SAMPLED
    ),
    "rl": Versioned(ENDS, ("tasks.rl", "flows.rl_loop", *SAMPLED, *ENVIRONMENTS)),
    "evaluate": Versioned(ENDS, ("tasks.evaluate", *SAMPLED, *ENVIRONMENTS)),
    "export": Versioned((*FIRST, "files have the form of the base"), ("tasks.export",)),
    "evaluate_model": Versioned(ENDS, ("tasks.evaluate_model", *SAMPLED, *ENVIRONMENTS)),
    "evolve_played": Versioned(ENDS, PLAYED),
    "evolve": Versioned(ENDS, (*PLAYED, "rlcore.evolve.scores", *REWARDS)),
    "calculator": Versioned(FIRST, ("rlcore.envs.calculator",)),
    "python": Versioned(FIRST, ("rlcore.envs.python",)),
    "text-game": Versioned(FIRST, ("rlcore.envs.text_game",)),
    "api": Versioned(
        ENDS,
        (
            *("rlcore.rl.loop", "rlcore.rl.phases", "rlcore.api.recipe", "rlcore.api.prompts"),
            *("rlcore.api.scorers", *SAMPLED),
        ),
    ),
}


def versioned_code(name: str, root: Path = ROOT) -> Code:
    """Return the code of ``name``, one of ``VERSIONS``, as it is below ``root``."""
    entry = VERSIONS[name]
    return code_of(*entry.code, without=(*NEUTRAL, *entry.without), but=COUNTED, root=root)


@cache
def code_parts(name: str, root: Path = ROOT) -> Mapping[str, str]:
    """Return what a key says of the code of ``name``: its version, and ``distribution==version`` of
    each numerical library that it reaches.

    The version is "7", or "7+modified.0123456789ab" with the digest of a checkout's code that is
    not what version 7 was recorded with. An installed package is as recorded.
    """
    version, recorded = len(VERSIONS[name].steps), _record(root).get(name, {})
    libraries, tag = recorded.get("libraries", ()), str(version)
    if (root / "pyproject.toml").is_file():
        code = versioned_code(name, root)
        libraries = code.libraries
        if recorded.get("version") != version or recorded["digest"] != code.digest:
            tag += MODIFIED + code.digest[:DIGITS]
    return {VERSION: tag} | {library: installed(library) for library in libraries}


def code_digest(name: str, users: Mapping[str, str] | None = None) -> str:
    """Return the sha256 (hex) of ``code_parts`` of ``name`` and of the digests ``users`` of a
    user's functions, by function."""
    text = json.dumps({**code_parts(name), **(users or {})}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def changed_modules(name: str, root: Path = ROOT) -> list[str]:
    """Return the modules in the code of ``name`` whose text was in no recorded code."""
    known = set(_record(root).get("modules", {}).values())
    modules = versioned_code(name, root).modules
    return [module for module, digest in modules.items() if digest[:DIGITS] not in known]


def modified_sentences(names: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return a sentence for each of ``names`` whose code is not that of its recorded version."""
    tags = {name: code_parts(name, root)[VERSION] for name in names if name in VERSIONS}
    return [
        f"{name}: {_changed(name, root)} changed since version {tag.partition('+')[0]}, so its"
        f" results are kept apart as version {tag}; make versions records the code"
        for name, tag in tags.items()
        if MODIFIED in tag
    ]


def why(name: str, before: str, after: str) -> str:
    """Return why the results of version ``after`` of ``name`` are not those of ``before``.

    >>> why("rl", "1+modified.0123456789ab", "1")
    'the code was another one, without its own version'
    """
    old, new = (int(tag.partition("+")[0]) for tag in (before, after))
    if old != new:
        return "; ".join(VERSIONS[name].steps[min(old, new) : max(old, new)])
    if MODIFIED in after and after == code_parts(name)[VERSION]:
        return f"{_changed(name, ROOT)} changed, and no version was raised"
    return "the code was another one, without its own version"


def _changed(name: str, root: Path) -> str:
    return ", ".join(changed_modules(name, root)) or "what its modules import"


def _record(root: Path) -> dict[str, Any]:
    return json.loads((root / RECORD).read_text(encoding="utf-8"))


def record_versions(root: Path = ROOT) -> list[str]:
    """Write the digests of the code below ``root`` into the record; return a sentence for each of
    ``VERSIONS`` that had another one."""
    before, after, said = _record(root), dict[str, Any](), list[str]()
    modules: dict[str, str] = {}
    for name, entry in VERSIONS.items():
        code, version = versioned_code(name, root), len(entry.steps)
        modules |= {module: digest[:DIGITS] for module, digest in code.modules.items()}
        after[name] = {
            "version": version,
            "digest": code.digest,
            "libraries": list(code.libraries),
        }
        old = before.get(name, {"version": 0})
        if old["version"] != version:
            said.append(f"{name}: version {old['version']} -> {version}: {entry.steps[-1]}")
        elif old["digest"] != code.digest:
            said.append(f"{name}: version {version} is kept, though {_changed(name, root)} changed")
    text = json.dumps({**after, "modules": dict(sorted(modules.items()))}, indent=1)
    (root / RECORD).write_text(text + "\n", encoding="utf-8")
    return said


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in record_versions() or ["nothing has changed"])
