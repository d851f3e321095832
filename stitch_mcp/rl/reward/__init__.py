"""The reward of a program: from typed evidence to parts and a total, and the doors through which it is asked.

`score` is pure. Nothing here reads a number that a candidate printed: the evidence comes from the judge.
"""
