"""Rollout: one protocol (``types.RolloutEngine``), engines on vLLM and transformers.

Token ids in; token ids, log-probs and finish reasons out, stamped with the weights they came from.
"""
