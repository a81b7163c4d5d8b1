"""Environments: what answers the policy between its turns, in processes that can be killed."""
