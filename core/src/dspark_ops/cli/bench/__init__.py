"""Measure operators, decode cycles and the difference between two ways to serve them.

Each bench is one module of this package, named like its verb, with a function of that name; the command group finds it.
"""
