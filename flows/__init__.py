"""The pipeline flow, the RL loop, the command line, and their deployment."""
