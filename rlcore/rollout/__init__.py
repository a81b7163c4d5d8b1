"""Rollout: one protocol (``types.RolloutEngine``), two engines (vLLM, transformers). Token ids in, token ids and log-probs out."""
