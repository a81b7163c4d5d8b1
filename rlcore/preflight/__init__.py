"""What must hold before a run: what its user gave (functions, data, a model), and room for it."""
