"""A rollout engine of a user: forty lines of code on what the documentation names."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlcore.engines.transformers_engine import choose, processed_logprobs
from rlcore.engines.types import EngineSpec, Generation, check_requests
from rlcore.engines.weight_check import read_update, require_verified, verify_handed
from rlcore.models.weight_digest import UNVERIFIED, DigestTap, WeightStamp, canonical_names
from schemas.outcomes import FinishReason


class SmallEngine:
    def __init__(self, spec: EngineSpec) -> None:
        self.spec, self.loaded = spec, UNVERIFIED
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(spec.model_dir))
        self.model.float().eval().requires_grad_(False)

    def load_weights(self, update):
        own = self.model.state_dict()
        state = read_update(update.path, {n: own[n].shape for n in canonical_names(self.model)})
        self.loaded, tap = UNVERIFIED, DigestTap()
        for name, tensor in tap.through(state.items()):
            own[name].copy_(tensor)
        digest = verify_handed(tap.digests, update.tensors)
        self.loaded = WeightStamp(update.stamp.version, digest)
        return self.loaded

    def stamp(self):
        return self.loaded

    def generate(self, requests, sampling):
        require_verified(self.loaded)
        check_requests(requests, self.spec.max_model_len, self.model.config.vocab_size)
        return [self.answer(request, sampling) for request in requests]

    def answer(self, request, sampling):
        ids, logprobs, reason = list(request.token_ids), [], FinishReason.LENGTH
        noise, end = torch.Generator().manual_seed(request.seed), len(ids) + request.max_new_tokens
        while reason == FinishReason.LENGTH and len(ids) < min(end, self.spec.max_model_len):
            scores = processed_logprobs(self.model(torch.tensor([ids])).logits[:, -1], sampling)
            drawn = choose(scores, torch.rand(1, generator=noise))
            ids.append(int(scores.argmax() if sampling.temperature == 0 else drawn))
            logprobs.append(float(scores[0, ids[-1]]))
            reason = FinishReason.STOP if ids[-1] in sampling.stop_token_ids else reason
        return Generation(ids[len(request.token_ids) :], logprobs, reason, self.loaded)

    def probe(self, token_ids):
        require_verified(self.loaded)
        rows = [
            (ids, self.model(torch.tensor([ids])).logits[0].log_softmax(-1)) for ids in token_ids
        ]
        return [[float(row[t, ids[t + 1]]) for t in range(len(ids) - 1)] for ids, row in rows]

    def close(self):
        pass
