"""Thin adapters of the reward service for hosts of reinforcement learning.

Their pins collide with ours and with each other's, so that each runs in its host's own environment, where
stitch-mcp is installed without its dependencies: these modules import the standard library and their host
alone.
"""
