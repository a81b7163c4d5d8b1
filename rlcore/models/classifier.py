"""Classifiers with one label, which users bring as reward models (``reward_models``): checked, and
asked in a worker."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlcore.cluster.progress import advance
from rlcore.models.files import context_of, local_directory, locate_model, read_config
from rlcore.models.shape import directory_parameters
from rlcore.models.tokenizer import read_tokenizer
from rlcore.models.weight_files import checkpoint_shapes
from rlcore.models.weight_names import check_loading, empty_model
from schemas.errors import UserError
from schemas.reward_model import BroughtRewardModel, RewardModelSection

OWN = "score.bias"  # of a model that this pipeline trained alone; see rlcore.models.value_model
HEAD = "ForSequenceClassification"  # the end of the class's name in config.json
TOKENS = 8192  # of one forward pass, at most, of more than one conversation
Messages = Sequence[Mapping[str, str]]


def located(name: str, model: BroughtRewardModel) -> Path:
    """Return the local directory of ``reward_models.NAME``; see ``locate_model``."""
    assert model.path is not None, "one with a url is not loaded"
    return locate_model(model.path, model.revision, key=f"reward_models.{name}.path")


def is_own(directory: Path) -> bool:
    """Return whether this pipeline trained the model of ``directory``. It was trained on the ids of
    prompts and responses, and reads those, where others read what their template writes."""
    return OWN in checkpoint_shapes(directory)


def base_directory(section: RewardModelSection, policy: Path) -> Path:
    """Return the directory of the model that the run's own reward model is made of. Raises
    UserError, as ``locate_model`` and ``check_reads_ids``."""
    if section.base is None:
        return policy
    directory = locate_model(section.base, section.base_revision, key="reward_model.base")
    check_reads_ids(f"reward_model.base = '{section.base}'", directory, policy)
    return directory


def check_base(section: RewardModelSection, policy: Path | None, *, longest: int) -> None:
    """Raise UserError for a ``reward_model.base`` of a local directory that cannot read ``longest``
    tokens, or whose tokenizer is not that of ``policy``, where that is at hand."""
    base = section.base
    if base is None or not (base.startswith((".", "~", "/")) or Path(base).is_dir()):
        return
    directory = locate_model(base, None, key="reward_model.base")
    context = context_of(read_config(directory))
    if context is not None and context < longest:
        raise UserError(
            f"reward_model.base = '{base}' reads {context} tokens (max_position_embeddings) and"
            f" prompt and answer may have {longest}; lower reward_model.max_tokens and"
            " rl.rollout.max_new_tokens"
        )
    if policy is not None:
        check_reads_ids(f"reward_model.base = '{base}'", directory, policy)


def check_reads_ids(where: str, directory: Path, policy: Path) -> None:
    """Raise UserError where ids of the model in ``policy`` mean something else to the one in
    ``directory``; ``where``: key and value of the recipe that name it."""
    theirs, ours = (read_tokenizer(each, str(each)) for each in (directory, policy))
    if theirs.get_vocab() != ours.get_vocab():
        raise UserError(
            f"{where} has another tokenizer than the policy {policy}, whose tokens it would read;"
            " give one of the policy's tokenizer"
        )


def check_classifier(name: str, model: BroughtRewardModel, *, longest: int) -> None:
    """Raise UserError for a model of a local directory that cannot score conversations of
    ``longest`` tokens; one of the hub is looked at when a run loads it."""
    assert model.path is not None, "one with a url is probed"
    directory, where = Path(model.path).expanduser(), f"reward_models.{name}.path = '{model.path}'"
    if not directory.is_dir():
        if model.path.startswith((".", "~", "/")):
            raise UserError(f"{where} is not a directory; give one, or a hub name as owner/name")
        return
    config = read_config(directory)
    classes = config.get("architectures") or ["no class"]
    if not any(str(one).endswith(HEAD) for one in classes):
        raise UserError(
            f"{where} is a {classes[0]}, which has no head that scores; give a model for sequence"
            f" classification ({HEAD}) with one label"
        )
    labels = _labels(config)
    if labels != 1:
        raise UserError(
            f"{where} has {labels} labels, and a reward is one number; give a model with one label"
            " (num_labels = 1)"
        )
    if not is_own(directory) and not read_tokenizer(directory, where).chat_template:
        raise UserError(
            f"{where} has no chat template, by which conversations are written for it; save its"
            " tokenizer with the template that it was trained on"
        )
    context = context_of(config)
    if context is not None and context < longest:
        raise UserError(
            f"{where} reads {context} tokens (max_position_embeddings) and prompt and answer may"
            f" have {longest}; lower data.max_prompt_tokens or rl.rollout.max_new_tokens"
        )
    # transformers draws at random what files lack, and a head at random scores as well as any
    empty, shapes = empty_model(directory, where=where, scores=True), checkpoint_shapes(directory)
    shapes.pop(OWN, None)
    check_loading(empty, shapes, where)


def parameters_of(path: str | None) -> int:
    """Return how many parameters the model of ``path`` has; 0 for one of the hub, which is not
    looked up, and for None, one that is served."""
    directory = local_directory(path or None)
    return directory_parameters(directory) if directory else 0


def _labels(config: Mapping[str, Any]) -> int:
    """Return the outputs of the head: ``num_labels``, which older files give by their names alone;
    transformers' default is 2."""
    named = config.get("id2label")
    return int(config.get("num_labels") or (len(named) if isinstance(named, dict) else 2))


class Classifier:
    """One model, in a worker. ``score`` never pads: conversations of one length share a pass, so a
    score does not depend on what is scored beside it, nor on what the model takes for padding."""

    def __init__(self, name: str, directory: str, dtype: str, device: str, threads: int) -> None:
        """Load ``reward_models.NAME``. Raises UserError as ``check_classifier``, for a model of
        the hub too."""
        import torch
        from transformers import AutoConfig, AutoModelForSequenceClassification

        from rlcore.models.architectures import EAGER, caps_attention

        if device == "cpu":
            torch.set_num_threads(threads)
        check_classifier(name, BroughtRewardModel(path=directory), longest=0)
        self._tokenizer = read_tokenizer(Path(directory), directory)
        capped = caps_attention(AutoConfig.from_pretrained(directory))  # sdpa leaves a cap out
        model = AutoModelForSequenceClassification.from_pretrained(
            directory,
            dtype=getattr(torch, dtype),
            num_labels=1,
            use_safetensors=True,
            attn_implementation=EAGER if capped else None,
        )
        self._model = model.to(device).eval()
        self._device = device
        self._context = context_of(model.config.to_dict())
        # Without one, transformers refuses more than one conversation at a time.
        self._many = model.config.pad_token_id is not None

    def score(self, conversations: Sequence[Messages]) -> list[float | str]:
        """Return the logit of each conversation, which ends with the answer; why there is none, for
        one that does not fit the model's context or that its template cannot write."""
        scores: list[float | str] = [""] * len(conversations)
        rendered: dict[int, list[int]] = {}
        for index, messages in enumerate(conversations):
            try:
                said = [dict(message) for message in messages]
                ids: Any = self._tokenizer.apply_chat_template(
                    said, tokenize=True, return_dict=False
                )
            except Exception as error:  # noqa: BLE001  a template raises what its author chose
                scores[index] = f"its template cannot write the conversation: {error}"
                continue
            if self._context is not None and len(ids) > self._context:
                scores[index] = f"{len(ids)} tokens, and it reads {self._context}"
                continue
            rendered[index] = ids
        for batch in self._batches(rendered):
            logits = self._logits([rendered[index] for index in batch])
            for index, score in zip(batch, logits, strict=True):
                scores[index] = score if np.isfinite(score) else f"its score is {score}"
            advance()
        return scores

    def _batches(self, rendered: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
        """Yield the numbers of conversations that share a pass."""
        by_length: dict[int, list[int]] = {}
        for index, ids in rendered.items():
            by_length.setdefault(len(ids), []).append(index)
        for length, indices in sorted(by_length.items()):
            most = max(1, TOKENS // max(1, length)) if self._many else 1
            yield from (indices[start : start + most] for start in range(0, len(indices), most))

    def _logits(self, batch: Sequence[Sequence[int]]) -> list[float]:
        import torch

        ids: torch.Tensor = torch.tensor([*batch], device=self._device)
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return logits[:, 0].float().tolist()

    def close(self) -> None:
        """Free the model."""
        del self._model
