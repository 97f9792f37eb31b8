"""A model that is ready to decode: weights on a device, and for each block length a frozen set of operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspark_ops
from dspark_ops._entry import started
from dspark_ops._lazy import torch
from dspark_ops.contracts.model_shapes import ModelShapes
from dspark_ops.decode.tokenizer import TextTokenizer
from dspark_ops.decode.v41.config import MAX_GAMMA, V41Config, read_config
from dspark_ops.decode.v41.drafter import V41Drafter
from dspark_ops.decode.v41.geometry import LAYOUT, MAX_STEP_ROWS
from dspark_ops.decode.v41.state import DecodeState
from dspark_ops.decode.v41.target import Target
from dspark_ops.decode.v41.weights import read_weights
from dspark_ops.errors import DeviceError, ModelError
from dspark_ops.selection.start import Purpose

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OPERATORS", "Model", "load_model"]

OPERATORS = (
    "accept_finalize",
    "accept_sampled",
    "accept_tail",
    "argmax_rows",
    "compress_c1",
    "compress_c2",
    "confidence_survival",
    "k_norm_rope_store",
    "markov_block",
    "mhc_combine",
    "mhc_combine_norm",
    "mhc_mix_sinkhorn",
    "mhc_post",
    "moe_gate_topk",
    "q_rope_store",
    "rope_wo_a",
    "schedule_prefix",
    "silu_mul_clamp",
    "sparse_mla_decode",
)
"""What decoding calls; a plan for it has no other operators, so that it says what runs and nothing else."""


class Model:
    """Target and drafter over one set of weights.

    Args:
        config: the checked configuration.
        weights: the checked tensors, on the device they run on.
        name: how plans call the model.
        device: what plans are for, a `dspark_ops.Device`; None: as `dspark_ops.plan` chooses.
        configuration: what `dspark_ops.plan` takes as its ``config``.
        tokenizer: text to tokens, if there is one.

    Attributes:
        config, tokenizer: as given.
        target: the target model.
        drafter: the draft stages with their heads.
    """

    def __init__(
        self,
        config: V41Config,
        weights: Mapping[str, Tensor],
        *,
        name: str = "model",
        device: Any = None,
        configuration: Any = None,
        tokenizer: TextTokenizer | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.target = Target(config, weights)
        self.drafter = V41Drafter(config, weights)
        self.torch_device: str = str(weights["embed.weight"].device)
        self._name = name
        self._device = device
        self._configuration = configuration
        self._plans: dict[int, Any] = {}
        self._bound: dict[tuple[int, bool], Any] = {}

    def plan(self, gamma: int | None = None) -> Any:
        """Return the plan that serves blocks of `gamma` drafts; None takes the model's own length.

        Raises:
            ModelError: gamma is out of range.
            SelectionError: the configuration lets no kernel serve some operator.
        """
        length = self._length(gamma)
        if length not in self._plans:
            self._plans[length] = self._planned(length, {})
        return self._plans[length]

    def _planned(self, gamma: int, quarantined: Mapping[str, str]) -> Any:
        shapes = replace(ModelShapes.from_config(self.config.raw, self._name), gamma=gamma)
        plan = started(
            device=self._device,
            model=shapes,
            rows=range(1, MAX_STEP_ROWS + 1),
            config=self._configuration,
            operators=OPERATORS,
            purpose=Purpose(quarantined=quarantined),
        ).plan
        chosen = plan.layouts.get("kv_page", LAYOUT)
        if chosen != LAYOUT:
            raise ModelError(
                f"layouts.kv_page: the plan chose {chosen}, but this model's caches are in {LAYOUT}: "
                f'set  layouts.kv_page = ["{LAYOUT}"]  or leave it out'
            )
        return plan

    def ops(self, gamma: int | None = None, *, check: bool = False) -> Any:
        """Return the frozen operators for blocks of `gamma` drafts; they are planned and bound at the first call.

        Args:
            gamma: drafts per block; None takes the model's own length.
            check: hold every call against its contract before it runs; for tests and debugging.

        Raises:
            ModelError: gamma is out of range.
            SelectionError, BindingError: see `dspark_ops.plan` and ``plan.bind``.
        """
        key = self._length(gamma), check
        if key not in self._bound:
            self._bound[key] = self.plan(gamma).bind(
                check=check, replan=lambda plan, quarantined: self._planned(key[0], quarantined)
            )
        return self._bound[key]

    def text(self) -> TextTokenizer:
        """Return the tokenizer.

        Raises:
            ModelError: the model was made without one.
        """
        if self.tokenizer is None:
            raise ModelError("this model has no tokenizer, and text is asked for: give Model(..., tokenizer=...)")
        return self.tokenizer

    def state(self, requests: int, shared: int = 0) -> DecodeState:
        """Return empty caches for a number of concurrent requests; see `DecodeState.empty`."""
        return DecodeState.empty(self.config, requests, self.torch_device, shared)

    def _length(self, gamma: int | None) -> int:
        length = self.config.gamma if gamma is None else gamma
        if not 1 <= length <= MAX_GAMMA:
            raise ModelError(f"gamma is {length}: wanted 1 to {MAX_GAMMA} drafts per block")
        return length


def load_model(path: str | Path, device: str = "cpu", config: Any = None) -> Model:
    """Return a model directory's model on a device.

    Args:
        path: directory with config.json, tokenizer.json and model.safetensors. Only data is read from it, never code.
        device: ``cpu`` or ``cuda``.
        config: configuration of the operator selection, as `dspark_ops.plan` takes it.

    Raises:
        ModelError: the directory, its configuration, tokenizer or weights cannot be used; every fault is named.
        DeviceError: the device does not exist here.
    """
    folder = Path(path)
    settings = read_config(folder)
    tokenizer = TextTokenizer(folder / "tokenizer.json", settings.vocab, settings.bos)
    place = _torch_device(device)
    weights = {name: tensor.to(place) for name, tensor in read_weights(folder, settings).items()}
    planned_for = dspark_ops.probe()
    if device == "cpu" and planned_for.is_accelerator:
        planned_for = dspark_ops.Device.simulate("cpu")
    return Model(
        settings, weights, name=folder.resolve().name, device=planned_for, configuration=config, tokenizer=tokenizer
    )


def _torch_device(device: str) -> torch.device:
    if device not in ("cpu", "cuda"):
        raise DeviceError(f"device is {device!r}: wanted cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device is 'cuda', and torch finds no usable GPU here: run  dspark-ops devices  or use cpu")
    return torch.device(device)
