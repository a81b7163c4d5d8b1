"""What happens, in order: the pipeline flow, the RL loop, and how they are deployed."""
