"""The architectures that ``make architectures`` takes through the whole pipeline.

``docs/architectures.md`` has what it found. A model of another class is tried when a run starts
(``rlcore.learner.trial``).
"""

LISTED = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
    "GPTNeoXForCausalLM",
    "GPT2LMHeadModel",
    "Olmo2ForCausalLM",
    "GraniteForCausalLM",
    "SmolLM3ForCausalLM",
    "Qwen3NextForCausalLM",
    "FalconH1ForCausalLM",
    "Lfm2ForCausalLM",
)
