"""Measuring: single operators, the decode cycle, and the difference between two ways to serve them."""
