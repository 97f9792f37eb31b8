"""Tensor parallel: one model over several ranks, each with a part of the weights, all with the very tokens of one rank.

No sum crosses a rank. Each rank computes its own columns of a product over the whole inner dimension, and columns are
gathered, not added; so every number is computed as on one rank, and nothing depends on an order of addition. What a
later step branches on is either a function of integers that were gathered, or what rank 0 found:

========================  ===========================================  =============================================
value                     decided from                                 the same on every rank because
========================  ===========================================  =============================================
greedy target tokens      best value and token of each rank's columns  the pairs are gathered and reduced as integers
greedy drafts             the same, slot by slot                       the same
accept and commit length  drafts, target tokens, verify lengths        integers, all of them the same
verify lengths            confidences                                  rank 0's are sent
sampled drafts, accepts   whole rows of logits, gathered               rank 0's are sent
what is emitted and ends  the tokens above, requests                   requests are compared at the start
========================  ===========================================  =============================================

A drafter from outside has to propose the same on every rank by itself, and so has whatever submits requests.

`group` is what ranks are to the model; `distributed` has it over torch.distributed, `threads` inside one process.
"""
