"""Device functions of the hyper-connection mix: Sinkhorn steps on matrices of which a thread holds all 16 elements."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def reciprocal(x, PTX: tl.constexpr):
    """Return 1 / x of float32 values; with PTX in one instruction, within a unit in the last place.

    That one takes subnormal values for 0.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def sigmoid(x, PTX: tl.constexpr):
    """Return 1 / (1 + exp(-x)) of float32 values, 1.8e-35 or more; a NaN stays."""
    return reciprocal(1.0 + tl.exp(tl.where(x < -80.0, 80.0, -x)), PTX)


@triton.jit
def dot4(a, b, c, d, x, y, z, w, more):
    """Return more + a*x + b*y + c*z + d*w, a chain of fused steps."""
    return tl.fma(d, w, tl.fma(c, z, tl.fma(b, y, tl.fma(a, x, more))))


@triton.jit
def sinkhorn_factors(elements, eps, iterations, PTX: tl.constexpr):
    """Return the factors of four rows, then of four columns, that make 4x4 matrices nearly doubly stochastic (N3.2).

    The result of the steps is ``elements[i, j] * row[i] * column[j]``, columns normalised last. The elements stay as
    they are and the factors change: with the factor of a column being 1 / p, a step that divides it by the sum of the
    column plus `eps` makes p the sum of the elements times the factors of their rows, plus `eps` times the p before.
    So a step is four sums of products and four reciprocals; what `eps` adds is known before.

    Args:
        elements: tuple of 16 positive float32 blocks, row after row.
        eps: added to each sum.
        iterations: column steps, 1 or more.
        PTX: whether the device takes PTX.
    """
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = elements
    p0, p1, p2, p3 = a0 + b0 + (c0 + d0), a1 + b1 + (c1 + d1), a2 + b2 + (c2 + d2), a3 + b3 + (c3 + d3)
    p0, p1, p2, p3 = p0 + eps, p1 + eps, p2 + eps, p3 + eps
    v0, v1, v2, v3 = reciprocal(p0, PTX), reciprocal(p1, PTX), reciprocal(p2, PTX), reciprocal(p3, PTX)
    q0, q1, q2, q3 = (tl.full(p0.shape, 1.0, tl.float32),) * 4
    u0, u1, u2, u3 = q0, q1, q2, q3
    for _ in range(iterations - 1):
        q0 = dot4(a0, a1, a2, a3, v0, v1, v2, v3, q0 * eps)
        q1 = dot4(b0, b1, b2, b3, v0, v1, v2, v3, q1 * eps)
        q2 = dot4(c0, c1, c2, c3, v0, v1, v2, v3, q2 * eps)
        q3 = dot4(d0, d1, d2, d3, v0, v1, v2, v3, q3 * eps)
        u0, u1, u2, u3 = reciprocal(q0, PTX), reciprocal(q1, PTX), reciprocal(q2, PTX), reciprocal(q3, PTX)
        p0 = dot4(a0, b0, c0, d0, u0, u1, u2, u3, p0 * eps)
        p1 = dot4(a1, b1, c1, d1, u0, u1, u2, u3, p1 * eps)
        p2 = dot4(a2, b2, c2, d2, u0, u1, u2, u3, p2 * eps)
        p3 = dot4(a3, b3, c3, d3, u0, u1, u2, u3, p3 * eps)
        v0, v1, v2, v3 = reciprocal(p0, PTX), reciprocal(p1, PTX), reciprocal(p2, PTX), reciprocal(p3, PTX)
    return u0, u1, u2, u3, v0, v1, v2, v3
