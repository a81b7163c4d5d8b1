"""What a policy is worth, and the policy as a model: completions sampled, scored and summarised
with confidence intervals (``evaluate``, ``summary``), whether one may replace another
(``promotion``), and the exported Hugging Face directory with its card (``export``,
``hf_directory``).
"""
