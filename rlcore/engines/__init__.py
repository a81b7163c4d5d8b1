"""Engines sample: one protocol (``types.RolloutEngine``), vLLM and transformers behind it, and the
``EnginePool`` that makes several of them one."""
