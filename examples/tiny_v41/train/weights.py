"""Names, shapes, first values and files of the weights."""

from __future__ import annotations

import pathlib

import torch
from blocks import Params
from safetensors.torch import load_file, save_file
from settings import Settings

FP32_PARTS = ("hc_attn_", "hc_ffn_", "attn_sink", "gate.bias", "confidence_head.weight")
"""Weights whose name holds one of these stay fp32 in the file; all others are stored bf16."""


def layer_shapes(s: Settings, prefix: str, experts: int) -> dict[str, tuple[int, ...]]:
    """Shapes of one target layer or draft stage, without compressor."""
    d, n = s.d, s.hc
    shapes: dict[str, tuple[int, ...]] = {"attn_norm.weight": (d,), "ffn_norm.weight": (d,)}
    for site in ("hc_attn", "hc_ffn"):
        shapes |= {f"{site}_fn": ((2 + n) * n, n * d), f"{site}_base": ((2 + n) * n,), f"{site}_scale": (3,)}
    shapes |= {
        "attn.wq_a.weight": (s.q_rank, d),
        "attn.q_norm.weight": (s.q_rank,),
        "attn.wq_b.weight": (s.heads * s.head_dim, s.q_rank),
        "attn.wkv.weight": (s.head_dim, d),
        "attn.kv_norm.weight": (s.head_dim,),
        "attn.attn_sink": (s.heads,),
        "attn.wo_a.weight": (s.o_groups, s.o_rank, s.heads // s.o_groups * s.head_dim),
        "attn.wo_b.weight": (d, s.o_groups * s.o_rank),
        "ffn.gate.weight": (experts, d),
        "ffn.gate.bias": (experts,),
    }
    for name in ("w1", "w3"):
        shapes |= {f"ffn.experts.{name}": (experts, s.inter, d), f"ffn.shared_experts.{name}": (s.inter, d)}
    shapes |= {"ffn.experts.w2": (experts, d, s.inter), "ffn.shared_experts.w2": (d, s.inter)}
    return {prefix + name: shape for name, shape in shapes.items()}


def target_shapes(s: Settings) -> dict[str, tuple[int, ...]]:
    """Shapes of the target's weights, in the order of the file."""
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (s.vocab, s.d), "norm.weight": (s.d,)}
    for i in range(s.layers):
        shapes |= layer_shapes(s, f"layers.{i}.", s.experts)
        if i in s.kv_sources:
            prefix = f"layers.{i}.attn.compressor."
            shapes |= {prefix + "wkv.weight": (s.head_dim, s.d), prefix + "norm.weight": (s.head_dim,)}
            if s.ratios[i] == 2:
                shapes[prefix + "wgate.weight"] = (s.head_dim, s.d)
    return shapes


def draft_shapes(s: Settings) -> dict[str, tuple[int, ...]]:
    """Shapes of the drafter's own weights (embedding and head are the target's)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(s.stages):
        shapes |= layer_shapes(s, f"mtp.{i}.", s.draft_experts)
    last = f"mtp.{s.stages - 1}."
    return shapes | {
        "mtp.0.main_proj.weight": (s.d, len(s.taps) * s.d),
        "mtp.0.main_norm.weight": (s.d,),
        last + "norm.weight": (s.d,),
        last + "markov_head.embed.weight": (s.vocab, s.markov_rank),
        last + "markov_head.head.weight": (s.vocab, s.markov_rank),
        last + "confidence_head.weight": (1, s.d + s.markov_rank),
    }


def first_values(shapes: dict[str, tuple[int, ...]], s: Settings, seed: int) -> Params:
    """fp32 start values. Streams start apart: a site reads mostly its own stream and the mixing is near identity."""
    generator = torch.Generator().manual_seed(seed)
    values: Params = {}
    for name, shape in shapes.items():
        fan_in = shape[-1]
        if name.endswith("norm.weight"):
            value = torch.ones(shape)
        elif name.endswith(("attn_sink", "gate.bias", "confidence_head.weight")):
            value = torch.zeros(shape)
        elif name.endswith("_base"):
            value = _first_base(name, s)
        elif name.endswith("_scale"):
            value = torch.full(shape, 0.1)
        else:
            gain = 0.5 if name.endswith(("wo_b.weight", "experts.w2")) else 1.0
            std = 0.04 if name == "embed.weight" else 0.02 if "markov_head" in name else gain * fan_in**-0.5
            value = torch.randn(shape, generator=generator) * std
        values[name] = value
    return values


def _first_base(name: str, s: Settings) -> torch.Tensor:
    """Base of a mixing site: ``pre`` favours one stream in turn, ``post`` is one, ``comb`` nearly the identity."""
    n = s.hc
    depth = 2 * int(name.split(".")[1]) + ("hc_ffn" in name)
    base = torch.zeros((2 + n) * n)
    base[:n] = -2.0
    base[(depth + 1) % n] = 1.0
    base[2 * n :] = 4.0 * torch.eye(n).flatten()
    return base


def decays(name: str) -> bool:
    """True for matrices that weight decay shrinks: all but norms, biases, sinks and the stream-mixing weights."""
    return not name.endswith("norm.weight") and not any(part in name for part in FP32_PARTS)


def save(params: Params, path: pathlib.Path) -> None:
    """Write ``model.safetensors`` with the dtypes of ``FP32_PARTS``'s rule."""
    tensors = {}
    for name, value in params.items():
        dtype = torch.float32 if any(part in name for part in FP32_PARTS) else torch.bfloat16
        tensors[name] = value.detach().to("cpu", dtype).contiguous()
    save_file(tensors, str(path), metadata={"format": "pt"})


def load(path: pathlib.Path, device: torch.device | str = "cpu") -> Params:
    """The weights of a file as fp32 tensors."""
    return {name: value.to(device, torch.float32) for name, value in load_file(str(path)).items()}
