"""What a run is given by its user (functions, data, a model), looked at before anything starts."""
