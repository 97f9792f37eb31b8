"""Device functions of the hyper-connection mix: Sinkhorn steps on matrices of which a thread holds all 16 elements."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)) of float32 values, 1.8e-35 or more; a NaN stays."""
    return 1.0 / (1.0 + tl.exp(tl.where(x < -80.0, 80.0, -x)))


@triton.jit
def softmax4(a, b, c, d, offset):
    """Return the softmax of four values plus `offset` each."""
    top = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
    a, b, c, d = tl.exp(a - top), tl.exp(b - top), tl.exp(c - top), tl.exp(d - top)
    inverse = 1.0 / ((a + b) + (c + d))
    return a * inverse + offset, b * inverse + offset, c * inverse + offset, d * inverse + offset


@triton.jit
def divide4(a, b, c, d, eps):
    """Return four values divided by their sum plus `eps`."""
    inverse = 1.0 / ((a + b) + (c + d) + eps)
    return a * inverse, b * inverse, c * inverse, d * inverse


@triton.jit
def sinkhorn4(logits, eps, iterations):
    """Return 4x4 matrices made nearly doubly stochastic, as 16 blocks, row after row, columns normalised last (N3.2).

    Args:
        logits: tuple of 16 float32 blocks, source major.
        eps: added after the softmax and to each sum.
        iterations: column steps, 1 or more.
    """
    a0, a1, a2, a3 = softmax4(logits[0], logits[1], logits[2], logits[3], eps)
    b0, b1, b2, b3 = softmax4(logits[4], logits[5], logits[6], logits[7], eps)
    c0, c1, c2, c3 = softmax4(logits[8], logits[9], logits[10], logits[11], eps)
    d0, d1, d2, d3 = softmax4(logits[12], logits[13], logits[14], logits[15], eps)
    a0, b0, c0, d0 = divide4(a0, b0, c0, d0, eps)
    a1, b1, c1, d1 = divide4(a1, b1, c1, d1, eps)
    a2, b2, c2, d2 = divide4(a2, b2, c2, d2, eps)
    a3, b3, c3, d3 = divide4(a3, b3, c3, d3, eps)
    for _ in range(iterations - 1):
        a0, a1, a2, a3 = divide4(a0, a1, a2, a3, eps)
        b0, b1, b2, b3 = divide4(b0, b1, b2, b3, eps)
        c0, c1, c2, c3 = divide4(c0, c1, c2, c3, eps)
        d0, d1, d2, d3 = divide4(d0, d1, d2, d3, eps)
        a0, b0, c0, d0 = divide4(a0, b0, c0, d0, eps)
        a1, b1, c1, d1 = divide4(a1, b1, c1, d1, eps)
        a2, b2, c2, d2 = divide4(a2, b2, c2, d2, eps)
        a3, b3, c3, d3 = divide4(a3, b3, c3, d3, eps)
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3
