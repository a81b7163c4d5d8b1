"""The steps of the flow retrain: what is new, whether the candidate is better, who is champion."""
