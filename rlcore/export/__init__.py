"""The export: a Hugging Face directory that is verified to be the policy, with a model card."""
