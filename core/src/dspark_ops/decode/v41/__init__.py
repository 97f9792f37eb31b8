"""Inference of DeepSeek-V4.1-shaped models: configuration, weights, caches, target and drafter.

A model directory holds data only; all code is here. Operators are called through the frozen operators of a plan,
whatever is no operator (embedding, linears, expert products) is plain torch.
"""
