"""Decoding at sizes that are fixed ahead: static buffers, and on a GPU captured graphs over them.

A `Runtime` owns the draft and verify steps of one block length. `RuntimeSet` holds those of a run and says which one a
step takes. `RuntimeSteps` ties them to the loop; with `FoldedSteps` accepting is the tail of the verify step, and the
host learns what a step gave while the next one is under way (C2.8, C2.9).
"""
