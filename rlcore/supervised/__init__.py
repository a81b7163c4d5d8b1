"""Supervised training: one resumable loop (``loop``) for SFT and the reward model, and the
preferences that the latter is trained on."""
