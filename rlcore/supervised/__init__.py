"""Supervised training: one resumable loop (``loop``) for SFT, DPO, KTO and the reward model, and
the preferences that all but the first are trained on."""
