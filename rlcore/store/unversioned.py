"""Results of the last code without versions: they count as made by version 1.

Its keys held digests of its modules, which ``unversioned.json`` keeps. A stage whose version is
above 1 has no use for its entry there.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rlcore.store.fingerprint import PACKAGES, installed
from rlcore.store.versions import VERSION, code_parts

FILE = Path(__file__).with_suffix(".json")


def unversioned_fingerprint(name: str, users: Mapping[str, str]) -> str | None:
    """Return the fingerprint that the code of the stage ``name`` had before there were versions,
    with the digests ``users`` of a user's functions; None where that code is not version 1."""
    code = {"": unversioned_code(name)}
    for role, digest in users.items():
        environment = _record()["stages"].get(role)
        if environment is None:
            code[role] = digest
        else:
            code[environment["role"]] = unversioned_code(role)
    if None in code.values():
        return None
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()


def unversioned_code(name: str) -> str | None:
    """Return the digest that the code of ``name`` (of ``VERSIONS``) had; None where that is not
    what it has as version 1."""
    modules = _modules(name)
    if modules is None or code_parts(name)[VERSION] != "1":
        return None
    libraries = _record()["stages"][name]["libraries"]
    parts = {**modules, **{library: installed(library) for library in sorted(libraries)}}
    lines = "".join(f"{part} {digest}\n" for part, digest in parts.items())
    return hashlib.sha256(lines.encode()).hexdigest()


def versioned_parts(stage: str, code: Mapping[str, str]) -> dict[str, str]:
    """Return what a result's manifest says of its code (digest by module, library, and user's
    function) with a version in place of our modules: "1", or "0" of code before."""
    if VERSION in code:
        return dict(code)
    ours = {name: one for name, one in code.items() if name.split(".")[0] in PACKAGES}
    ours = {name: one for name, one in ours.items() if ":" not in name}
    modules = _modules(stage) or {}
    known = {name: digest[: len(ours.get(name, ""))] for name, digest in modules.items()}
    rest = {name: one for name, one in code.items() if name not in ours}
    return {VERSION: "1" if ours == known else "0", **rest}


def _modules(name: str) -> dict[str, str] | None:
    """Return the digest of each module that ``name`` reached, by its name then."""
    record = _record()
    if name not in record["stages"]:
        return None
    chosen = int(record["stages"][name]["modules"], 16)
    return {m: d for i, (m, d) in enumerate(record["modules"].items()) if chosen >> i & 1}


@cache
def _record() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))
