"""Sinkhorn normalisation of the stream-mixing matrices, with a backward that stores divisors, not matrices.

The backward walks the normalisations in reverse: a step ``Q = P / d`` with ``d = sum(P) + eps`` is undone by
``P = Q d`` and its gradient is ``(dQ - sum(dQ Q)) / d``. One opaque operator keeps the 39 steps out of the
compiled graph.
Source: N3.2 (softmax over destinations, then 20 column and 19 row normalisations).
"""

from __future__ import annotations

import torch

SOURCE, DESTINATION = -2, -1
"""Axes of a mixing matrix ``comb[source, destination]``."""


@torch.library.custom_op("tiny_v41::sinkhorn", mutates_args=())
def _sinkhorn(logits: torch.Tensor, iters: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (comb, divisors) for fp32 ``[rows, n, n]``; divisors are ``[2 iters - 1, rows, n]``."""
    if logits.is_cuda:
        from sinkhorn_triton import forward

        return forward(logits, iters, eps)
    comb = torch.softmax(logits, dim=DESTINATION) + eps
    divisors = []
    for step in range(2 * iters - 1):
        axis = SOURCE if step % 2 == 0 else DESTINATION
        divisor = comb.sum(axis, keepdim=True) + eps
        comb = comb / divisor
        divisors.append(divisor.squeeze(axis))
    return comb, torch.stack(divisors)


@_sinkhorn.register_fake
def _(logits: torch.Tensor, iters: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    rows, n, _ = logits.shape
    return torch.empty_like(logits), logits.new_empty(2 * iters - 1, rows, n)


@torch.library.custom_op("tiny_v41::sinkhorn_backward", mutates_args=())
def _sinkhorn_backward(grad: torch.Tensor, comb: torch.Tensor, divisors: torch.Tensor, eps: float) -> torch.Tensor:
    """Gradient by the logits, fp32 ``[rows, n, n]``."""
    if grad.is_cuda:
        from sinkhorn_triton import backward

        return backward(grad, comb, divisors, eps)
    for step in range(divisors.shape[0] - 1, -1, -1):
        axis = SOURCE if step % 2 == 0 else DESTINATION
        divisor = divisors[step].unsqueeze(axis)
        grad = (grad - (grad * comb).sum(axis, keepdim=True)) / divisor
        comb = comb * divisor
    soft = comb - eps
    return soft * (grad - (grad * soft).sum(DESTINATION, keepdim=True))


@_sinkhorn_backward.register_fake
def _(grad: torch.Tensor, comb: torch.Tensor, divisors: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(comb)


def _save(ctx, inputs, output) -> None:
    ctx.eps = inputs[2]
    ctx.save_for_backward(*output)


def _grad(ctx, grad: torch.Tensor, _):
    comb, divisors = ctx.saved_tensors
    return _sinkhorn_backward(grad.contiguous(), comb, divisors, ctx.eps), None, None


_sinkhorn.register_autograd(_grad, setup_context=_save)


def sinkhorn(logits: torch.Tensor, iters: int, eps: float) -> torch.Tensor:
    """Nearly doubly stochastic ``comb[..., source, destination]`` of fp32 logits of that shape; differentiable."""
    shape = logits.shape
    comb, _ = _sinkhorn(logits.reshape(-1, *shape[-2:]), iters, eps)
    return comb.view(shape)
