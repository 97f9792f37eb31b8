"""What both training scripts share: batches, the wall-clock schedule, the optimizer, the log."""

from __future__ import annotations

import json
import math
import pathlib
import time
from collections.abc import Callable

import numpy as np
import torch
from blocks import Params
from weights import decays


def pick_device() -> torch.device:
    """The GPU when there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_stream(path: pathlib.Path, device: torch.device) -> torch.Tensor:
    """A token stream as int64 ``[tokens]`` (or ``[rows, width]``) on ``device``."""
    return torch.from_numpy(np.load(path).astype(np.int64)).to(device)


def random_windows(stream: torch.Tensor, batch: int, length: int, bos: int) -> torch.Tensor:
    """int64 ``[batch, length]`` windows at random places; every second one starts with ``bos``, as a prompt may."""
    start = torch.randint(stream.numel() - length, (batch, 1), device=stream.device)
    ids = stream[start + torch.arange(length, device=stream.device)]
    ids[::2, 0] = bos
    return ids


def fixed_windows(stream: torch.Tensor, length: int) -> torch.Tensor:
    """int64 ``[windows, length]``: the stream cut without overlap, the rest dropped."""
    count = stream.numel() // length
    return stream[: count * length].view(count, length)


class Schedule:
    """A learning rate that follows the wall clock: warm-up, then a cosine that always reaches its end in time."""

    def __init__(self, peak: float, deadline: float, max_steps: int | None = None) -> None:
        self.peak, self.deadline, self.max_steps = peak, deadline, max_steps
        self.begin = time.monotonic()
        self.step = 0

    def restart(self) -> None:
        """Start the clock now: called once the compiled step has run."""
        self.begin = time.monotonic()

    @property
    def progress(self) -> float:
        """Share of the time (or of ``max_steps``) that is used, 0..1."""
        if self.max_steps is not None:
            return min(1.0, self.step / self.max_steps)
        return min(1.0, (time.monotonic() - self.begin) / max(1e-9, self.deadline - self.begin))

    def rate(self) -> float:
        """Learning rate now; advances the step count."""
        self.step += 1
        progress = self.progress
        floor = 0.02
        cosine = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
        return self.peak * cosine * min(1.0, self.step / 200)


def make_optimizer(params: Params, decay: float) -> torch.optim.AdamW:
    """AdamW over the trained tensors of ``params``; matrices decay, norms, sinks and mixing weights do not."""
    groups = [
        {"params": [v for k, v in params.items() if v.requires_grad and decays(k)], "weight_decay": decay},
        {"params": [v for k, v in params.items() if v.requires_grad and not decays(k)], "weight_decay": 0.0},
    ]
    fused = next(iter(params.values())).is_cuda
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=fused)


def update(params: Params, optimizer: torch.optim.Optimizer, loss: torch.Tensor, rate: float) -> torch.Tensor:
    """One optimizer step; returns the gradient norm before clipping at 1."""
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_([v for v in params.values() if v.requires_grad], 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


@torch.no_grad()
def balance(params: Params, prefixes: list[str], shares: torch.Tensor, rate: float) -> None:
    """Move each gate bias by ``rate`` toward even load; ``shares [layers, experts]`` are this step's chosen shares."""
    shift = rate * torch.sign(shares.mean(-1, keepdim=True) - shares)
    for prefix, row in zip(prefixes, shift, strict=True):
        params[prefix + "ffn.gate.bias"] += row


def trainable(params: Params) -> Params:
    """The tensors with gradients switched on, except the gate biases, which follow the load."""
    for name, value in params.items():
        value.requires_grad_(not name.endswith("gate.bias"))
    return params


def compiled(function: Callable, enabled: bool) -> Callable:
    """``function`` under ``torch.compile`` with static shapes, or as it is."""
    return torch.compile(function, dynamic=False) if enabled else function


class Log:
    """JSON lines on disk and on standard output, each with the seconds since the start."""

    def __init__(self, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")
        self.begin = time.monotonic()

    def __call__(self, **record: object) -> None:
        """Write one record; floats keep five digits."""
        record = {"seconds": round(time.monotonic() - self.begin, 1)} | record
        record = {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in record.items()}
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        print(json.dumps(record), flush=True)
