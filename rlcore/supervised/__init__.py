"""Supervised training: one resumable loop for SFT and the reward model."""
