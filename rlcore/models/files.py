"""The files of a Hugging Face model directory: found locally or on the hub, checked, copied.

The hub is asked at most once and briefly: an unreachable hub is an error within seconds, with the
remedy, unless its cache already holds the files.
"""

import json
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from rlcore.models.weight_files import INDEX_FILE, weight_files
from schemas.errors import UserError

# Names of sizes in the config.json of older classes -> those of most.
SIZE_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "ffn_dim": "intermediate_size",
}
# Names of the longest context, in tokens: of most classes, GPT-2 and GPT-J, MPT and DBRX.
CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len")
# Files of a Hugging Face directory besides weights and architecture.
COMPANION_FILES = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "spiece.model",
    "*.tiktoken",
)
# Files that this project loads. Pickled weights (*.bin, *.pt) are left out: loading one can run
# code.
MODEL_FILES = ("config.json", "*.safetensors", INDEX_FILE, *COMPANION_FILES)
TOKENIZER_FILES = ("config.json", *COMPANION_FILES)
CODE_FILES = ("*.py",)  # only with trust_remote_code
HUB_TIMEOUT_S = 5.0  # a plan does not wait for the hub: it is printed without sizes instead
MODEL_FOLDER = "model"  # the model in a base_model, policy or export artifact
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def model_directory(artifact: Path) -> Path:
    """Return the Hugging Face directory inside an artifact's directory.

    Raises ``UserError`` when the artifact holds no model.
    """
    directory = artifact / MODEL_FOLDER
    if not (directory / "config.json").is_file():
        raise UserError(f"artifact {artifact} holds no model; give a base_model, policy or export")
    return directory


def local_directory(path: str | None) -> Path | None:
    """Return the directory that a model's ``path`` is, None for a name of the hub or None."""
    directory = None if path is None else Path(path).expanduser()
    return directory if directory is not None and directory.is_dir() else None


def locate_model(
    name: str,
    revision: str | None,
    *,
    trust_remote_code: bool = False,
    weights: bool = True,
    key: str = "model.path",
) -> Path:
    """Return the local directory of a model: ``name`` itself, or its snapshot of the hub.

    Without ``weights`` only what its tokenizer consists of is fetched. ``key``: of the recipe that
    names it, beside which its revision is.
    Raises ``UserError`` when there is no such directory and ``name`` is not a hub name, when the
    hub cannot be reached and its cache does not hold the model, or when the hub does not know it.
    """
    if local := local_directory(name):
        return local
    if name.startswith((".", "~", "/")) or not _HUB_NAME.fullmatch(name):
        raise UserError(
            f"{key} = '{name}' is not a directory; give a local Hugging Face directory or a"
            " hub name as owner/name"
        )
    patterns = [*(MODEL_FILES if weights else TOKENIZER_FILES)]
    patterns += CODE_FILES if trust_remote_code else ()
    unreachable = hub_unreachable()
    at = f" at revision '{revision}'" if revision else ""
    try:
        path = snapshot_download(
            name, revision=revision, allow_patterns=patterns, local_files_only=bool(unreachable)
        )
    except LocalEntryNotFoundError as error:
        raise UserError(
            f"{key} = '{name}' is not a local directory and not in the hub's cache{at}, and"
            f" {unreachable or 'the hub did not answer'}; set {key} to a local directory, or"
            " download it once where the hub can be reached and set HF_HOME to that cache"
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(
            f"{key.removesuffix('path')}revision = '{revision}' is unknown for '{name}'; give one"
            " of its commits"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{key} = '{name}' is neither a local directory nor a model of the hub that is open to"
            " you; check the spelling, or if it is gated or private get access and set HF_TOKEN"
        ) from error
    return Path(path)


def hub_commit(directory: Path) -> str | None:
    """Return the commit of a hub snapshot in its cache; None for any other directory."""
    return directory.name if directory.parent.name == "snapshots" else None


def hub_unreachable() -> str:
    """Return why the hub cannot be reached, or ``""`` when it answers within ``HUB_TIMEOUT_S``."""
    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=HUB_TIMEOUT_S).close()
    except urllib.error.HTTPError:  # it answered, if with an error
        return ""
    except OSError as error:
        return f"the hub at {constants.ENDPOINT} cannot be reached ({error})"
    return ""


def model_files(source: Path, *, trust_remote_code: bool = False) -> set[Path]:
    """Return the files of ``MODEL_FILES`` in ``source``; of the weights those that are loaded.

    Raises ``UserError`` naming the missing part: configuration, safetensors, tokenizer; and as
    ``weight_files``.
    """
    patterns = [*MODEL_FILES, *(CODE_FILES if trust_remote_code else ())]
    files = {f for pattern in patterns for f in source.glob(pattern) if f.is_file()}
    names = {file.name for file in files}
    wanted = {
        "config.json": "config.json" in names,
        "tokenizer (tokenizer.json)": any(name.startswith("tokenizer") for name in names),
    }
    missing = [what for what, present in wanted.items() if not present]
    if missing:
        raise UserError(
            f"model.path = '{source}' has no {missing[0]}; give a directory written by"
            " save_pretrained of the model and of its tokenizer"
        )
    weights = set(weight_files(source))
    return {file for file in files if file.suffix != ".safetensors" or file in weights}


def read_config(directory: Path) -> dict[str, Any]:
    """Return the config.json of a model directory. Raises ``UserError`` when there is none, and as
    ``read_json``."""
    file = directory / "config.json"
    if not file.is_file():
        remedy = "give a Hugging Face model directory, as save_pretrained writes it"
        if any(directory.glob("adapter_*")):  # of the hub the weights alone are fetched
            remedy = "it is an adapter: merge it into its base model first (peft: merge_and_unload)"
        raise UserError(f"model.path = '{directory}' has no config.json; {remedy}")
    return read_json(file)


def context_of(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of the longest context that a config.json names; None where it names none.
    Models of images and text name it in their ``text_config``."""
    text = config.get("text_config")
    parts = (config, text if isinstance(text, dict) else {})
    found = (part.get(name) for part in parts for name in CONTEXT_NAMES)
    return next((context for context in found if isinstance(context, int)), None)


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object of a model's file. Raises ``UserError`` where it holds none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}; fetch or save the model again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no JSON object; fetch or save the model again")
    return content


def write_json(file: Path, content: Mapping[str, Any], *, sort_keys: bool = False) -> None:
    """Write ``content`` as a model's file, as people read it; in ASCII, as libraries read some of
    them in the encoding of their machine."""
    text = json.dumps(content, indent=2, sort_keys=sort_keys)
    file.write_text(text + "\n", encoding="ascii")


def copy_tokenizer(source: Path, target: Path, *, trust_remote_code: bool = False) -> None:
    """Copy the files of ``TOKENIZER_FILES`` from ``source`` to ``target``."""
    for pattern in (*TOKENIZER_FILES, *(CODE_FILES if trust_remote_code else ())):
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, target / file.name)


def with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return a config.json whose weights are of ``dtype``, under the key that it has for that:
    ``torch_dtype`` before transformers 4.56."""
    keys = [key for key in ("torch_dtype", "dtype") if key in config] or ["dtype"]
    return {**config, **dict.fromkeys(keys, dtype)}


def copy_model(source: Path, target: Path, *, trust_remote_code: bool = False) -> None:
    """Copy the files of ``MODEL_FILES`` from ``source`` to ``target``, links resolved.

    Raises ``UserError`` as ``model_files`` does.
    """
    files = model_files(source, trust_remote_code=trust_remote_code)
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(files):
        resolved, copied = file.resolve(), target / file.name
        if file.is_symlink() and file.suffix == ".safetensors":
            # A hub snapshot's; a hard link saves the copy. Other files are rewritten here, and
            # through a link in the snapshot, too.
            copied.unlink(missing_ok=True)
            with suppress(OSError):  # another file system: copy
                os.link(resolved, copied)
                continue
        shutil.copyfile(resolved, copied)
