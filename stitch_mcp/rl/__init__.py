"""Reinforcement learning with the judge as the reward: rewards, data, training, and where programs are judged."""
