"""Weights of a model directory, checked against the configuration by name, shape, dtype and finiteness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dspark_ops._lazy import LazyModule, torch
from dspark_ops.decode.v41.config import V41Config
from dspark_ops.decode.v41.tensors import TensorSpec, tensor_specs
from dspark_ops.errors import ModelError
from dspark_ops.suggest import did_you_mean

if TYPE_CHECKING:
    import safetensors
    from torch import Tensor
else:
    safetensors = LazyModule("safetensors", "decode")

__all__ = ["FILE_NAME", "check_weights", "read_weights"]

FILE_NAME = "model.safetensors"
_SHOWN = 12


def read_weights(directory: str | Path, config: V41Config) -> dict[str, Tensor]:
    """Return the tensors of a model directory by name, on the CPU.

    Raises:
        ModelError: the file is missing, truncated or not safetensors, or `check_weights` refuses what it holds.
    """
    path = Path(directory) / FILE_NAME
    if not path.is_file():
        raise ModelError(f"{path}: missing; a model directory holds config.json, tokenizer.json and {FILE_NAME}")
    try:
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, RuntimeError, ValueError, safetensors.SafetensorError) as error:
        size = path.stat().st_size
        raise ModelError(
            f"{path}: wanted a complete safetensors file, got {size} bytes that do not read as one ({error}); "
            "copy the file again"
        ) from error
    check_weights(weights, config, origin=str(path))
    return weights


def check_weights(weights: Mapping[str, Tensor], config: V41Config, origin: str = "weights") -> None:
    """Return if the tensors are exactly those that the configuration asks for, all of them finite.

    Raises:
        ModelError: names every tensor that is missing, unexpected, of another shape or dtype, or not finite.
    """
    specs = tensor_specs(config)
    faults = [*_names(weights, specs), *_values(weights, specs)]
    if faults:
        shown = faults[:_SHOWN] + ([f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else [])
        lines = "".join(f"\n  {fault}" for fault in shown)
        raise ModelError(f"{origin}: the tensors do not fit the model's config.json ({len(faults)} faults):{lines}")


def _names(weights: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]) -> Iterable[str]:
    missing = [name for name in specs if name not in weights]
    for name in missing:
        yield f"{name}: missing, wanted {specs[name]}"
    for name in weights:
        if name not in specs:
            yield f"{name}: unexpected{did_you_mean(name, missing)}"


def _values(weights: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]) -> Iterable[str]:
    for name, spec in specs.items():
        if name not in weights:
            continue
        tensor = weights[name]
        got = TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if got != spec:
            yield f"{name}: wanted {spec}, got {got}"
        elif not torch.isfinite(tensor).all():
            yield f"{name}: holds {int((~torch.isfinite(tensor)).sum())} values that are not finite"
