"""A small PPO trainer, right enough to be an oracle. Knows nothing of the harness or its reports."""
