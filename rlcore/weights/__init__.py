"""Weights on their way from learner to engines: the stamp that names them, their digest, the file
that carries them, and the checks on arrival."""
