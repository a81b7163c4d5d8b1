"""Everything that would be true without Prefect: data, models, algorithms, learner, rollout,
rewards, cluster."""
