"""The subcommands of ``rl-pipeline``, one file each."""
