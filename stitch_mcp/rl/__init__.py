"""Reinforcement learning with the judge as the reward: rewards, data, training, and backends."""
