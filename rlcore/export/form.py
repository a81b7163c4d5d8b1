"""The form of an export's files: as the base wrote them, not as the installed transformers would.

transformers 5 saves a tokenizer as ``TokenizersBackend``, its special tokens as a list, and rotary
settings under ``rope_parameters``. Release 4 cannot read the first two, and takes the default for
the third without a word.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from rlcore.models.files import CODE_FILES, TOKENIZER_FILES, read_config, with_dtype

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
OLDEST = (4, 57)  # the release before 5; the card's snippet needs 4.56
_BACKENDS = ("TokenizersBackend", "PythonBackend", "SentencePieceBackend", "MistralCommonBackend")


def keep_form(policy_dir: Path, target: Path, *, dtype: str, trust_remote_code: bool) -> None:
    """Give ``target`` the configuration and tokenizer of ``policy_dir``, whose files are the base's
    where training did not change them.

    ``dtype``: of the weights in ``target``. Of its generation_config.json, which may hold what the
    base's lacked, only the version of transformers is the base's.
    """
    for pattern in (*TOKENIZER_FILES, *(CODE_FILES if trust_remote_code else ())):
        for file in policy_dir.glob(pattern):
            if file.is_file() and file.name != GENERATION:
                shutil.copyfile(file, target / file.name)
    _write(target / CONFIG, with_dtype(read_config(policy_dir), dtype))
    written = _read(target / GENERATION)
    if written:
        written.pop("transformers_version", None)
        before = _read(policy_dir / GENERATION)
        kept = {k: v for k, v in before.items() if k in written or k == "transformers_version"}
        _write(target / GENERATION, {**kept, **written})


def needed_transformers(directory: Path) -> str:
    """Return the oldest release of transformers that reads ``directory``, as far as its files say:
    5.0 where they have a form of it, else the one that wrote config.json, at least ``OLDEST``."""
    config, tokenizer = read_config(directory), _read(directory / TOKENIZER)
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    of_5 = (
        tokenizer.get("tokenizer_class") in _BACKENDS
        or isinstance(tokenizer.get("extra_special_tokens"), list)
        or any("rope_parameters" in part and "rope_theta" not in part for part in parts)
    )
    said = re.match(r"(\d+)\.(\d+)", str(config.get("transformers_version", "")))
    wrote = (int(said[1]), int(said[2])) if said else OLDEST
    major, minor = max(OLDEST, wrote, (5, 0) if of_5 else OLDEST)
    return f"{major}.{minor}"


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
