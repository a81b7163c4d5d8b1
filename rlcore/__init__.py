"""Everything that does not need Prefect: data, models, algorithms, learner, rollout, rewards,
cluster."""
