"""A reward function tried before a run pays for it, on stored rollouts or on demonstrations."""
