"""Shaping: what a model learns from its rows, where that is to differ from the rows as they came.

What is scored is never shaped: the live metrics, their baselines and the proof at a start see the rows as they came.
The parts act on the rows of one batch, inside the compiled call, between scoring and learning.
"""
