"""Names that several sections and processes agree on. Imports nothing."""

REWARD_MODEL = "reward_model"  # the trained model among ``reward.functions``; also its stage
BASE_MODEL = "base_model"  # the stage, its artifact and the role of it as a parent
