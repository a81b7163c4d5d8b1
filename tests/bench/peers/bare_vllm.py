"""vLLM in a loop as its own documentation has it: requests in, tokens and their log-probs out."""

from time import perf_counter
from typing import Any


class BareVllm:
    """``vllm.LLM`` on the weights of ``model_dir``, in float32 on CPU.

    What is set is what a seeded batch needs on CPU (``_llm_arguments`` of the engine says why), and
    what spares it work: blocks so small that samples share a prompt, no tokenizer, no text, no
    log-prob but that of the token.
    """

    def __init__(self, model_dir: str, max_model_len: int, max_num_seqs: int) -> None:
        import vllm

        self._llm = vllm.LLM(
            model=model_dir,
            dtype="float32",
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=16384,
            block_size=32,
            enforce_eager=True,
            enable_chunked_prefill=False,
            kv_cache_memory_bytes=2**30,
            skip_tokenizer_init=True,
            generation_config="vllm",
        )

    def seconds(self, requests: tuple[list[list[int]], list[int]], new_tokens: int) -> float:
        """Return how long ``requests``, prompts and seeds, take for ``new_tokens`` tokens each."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        began = perf_counter()
        prompts: Any = [{"prompt_token_ids": prompt} for prompt in requests[0]]
        params = [
            SamplingParams(
                max_tokens=new_tokens,
                seed=seed,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            for seed in requests[1]
        ]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = perf_counter() - began
        drawn = sum(len(output.outputs[0].token_ids) for output in outputs)
        assert drawn == len(prompts) * new_tokens, "all sides sample equally many tokens"
        return seconds
