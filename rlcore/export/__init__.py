"""The end of a run: a Hugging Face directory that is proven to be the policy, with a model card."""
