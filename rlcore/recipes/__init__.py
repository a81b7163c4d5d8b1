"""From YAML and overrides to one frozen recipe; its errors, and where each value comes from."""
