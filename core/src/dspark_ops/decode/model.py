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
from dspark_ops.decode.ranks.agree import agreed_plan, check_same, quarantine_everywhere
from dspark_ops.decode.ranks.group import SOLO, RankGroup
from dspark_ops.decode.ranks.ops import RANK_OPERATORS, RankOps
from dspark_ops.decode.ranks.shards import HEAD, Shards, cut_weights, norms_text, rank_shapes
from dspark_ops.decode.ranks.vocab import Vocabulary
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
        weights: the checked tensors, on the device they run on; on a rank, what `cut_weights` gave of them.
        name: how plans call the model.
        device: what plans are for, a `dspark_ops.Device`; None: as `dspark_ops.plan` chooses.
        configuration: what `dspark_ops.plan` takes as its ``config``.
        tokenizer: text to tokens, if there is one.
        ranks: the ranks that the model is spread over, seen from this one.
        graphs: its steps will be captured; see `load_model`.

    Attributes:
        config, name, tokenizer, ranks: as given.
        target: the target model.
        drafter: the draft stages with their heads.

    Raises:
        ModelError: whole weights on one of several ranks, or a rank's part on a single one.
        RankError: the ranks have different models.
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
        ranks: RankGroup = SOLO,
        graphs: bool = False,
    ) -> None:
        if (HEAD in weights) != (ranks.size > 1):
            held = "a rank's part of the weights" if HEAD in weights else "whole weights"
            raise ModelError(f"rank {ranks.rank} of {ranks.size} got {held}: give it what cut_weights returns for it")
        if ranks.size > 1:
            check_same(ranks, "model configuration", repr(config.raw), "give every rank the same model directory")
            check_same(ranks, "weights", norms_text(weights), "give every rank the same checkpoint")
        self.config = config
        self.tokenizer = tokenizer
        self.ranks = ranks
        self.target = Target(config, weights, ranks)
        self.drafter = V41Drafter(config, weights, ranks)
        self.torch_device: str = str(weights["embed.weight"].device)
        self.name = name
        self._device = device
        self._configuration = configuration
        self._graphs = graphs
        self._plans: dict[tuple[int, bool], Any] = {}
        self._bound: dict[tuple[int, bool, bool], Any] = {}

    def plan(self, gamma: int | None = None, *, simulated: bool = False) -> Any:
        """Return the plan that serves blocks of `gamma` drafts.

        Args:
            gamma: drafts per block; None takes the model's own length.
            simulated: whether `accept_forced` is among the operators.

        Raises:
            ModelError: gamma is out of range.
            SelectionError: the configuration lets no kernel serve some operator.
            RankError: the ranks have made different plans; see `agreed_plan`.
        """
        key = self._length(gamma), simulated
        if key not in self._plans:
            self._plans[key] = agreed_plan(self.ranks, self._planned(*key, {}))
        return self._plans[key]

    def _planned(self, gamma: int, simulated: bool, quarantined: Mapping[str, str]) -> Any:
        whole = replace(ModelShapes.from_config(self.config.raw, self.name), gamma=gamma)
        shapes = rank_shapes(whole, self.ranks.size)
        plan = started(
            device=self._device,
            model=shapes,
            rows=range(1, MAX_STEP_ROWS + 1),
            config=self._configuration,
            operators=_operators(self.ranks, simulated),
            purpose=Purpose(quarantined=quarantined),
            graph=self._graphs,
        ).plan
        chosen = plan.layouts.get("kv_page", LAYOUT)
        if chosen != LAYOUT:
            raise ModelError(
                f"layouts.kv_page: the plan chose {chosen}, but this model's caches are in {LAYOUT}: "
                f'set  layouts.kv_page = ["{LAYOUT}"]  or leave it out'
            )
        return plan

    def ops(self, gamma: int | None = None, *, check: bool = False, simulated: bool = False) -> Any:
        """Return the frozen operators for blocks of `gamma` drafts; they are planned and bound at the first call.

        Args:
            gamma: drafts per block; None takes the model's own length.
            check: hold every call against its contract before it runs; for tests and debugging.
            simulated: whether `accept_forced` is among the operators.

        Raises:
            ModelError: gamma is out of range.
            SelectionError, BindingError: see `dspark_ops.plan` and ``plan.bind``.
        """
        key = self._length(gamma), simulated, check
        if key not in self._bound:
            plan = self.plan(gamma, simulated=simulated)
            bound = plan.bind(
                check=check,
                replan=lambda plan, quarantined: self._planned(*key[:2], quarantined),
                agree=quarantine_everywhere(self.ranks),
            )
            if bound.plan is not plan:  # made again without kernels that failed a trial run
                check_same(self.ranks, "plans after trial runs", bound.plan.digest, "install the same on every rank")
            vocabulary = Vocabulary(self.ranks, Shards(self.config.vocab, self.ranks.size))
            self._bound[key] = bound if self.ranks.size == 1 else RankOps(bound, vocabulary)
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


def load_model(
    path: str | Path, device: str = "cpu", config: Any = None, ranks: RankGroup = SOLO, graphs: bool = False
) -> Model:
    """Return a model directory's model on a device.

    Args:
        path: directory with config.json, tokenizer.json and model.safetensors. Only data is read from it, never code.
        device: ``cpu`` or ``cuda``.
        config: configuration of the operator selection, as `dspark_ops.plan` takes it.
        ranks: the ranks that the model is spread over; each reads the whole file and keeps its part.
        graphs: its steps will be captured, so that only kernels that promise to bear it may serve, as ``policy.graphs``
            says. Without it a kernel that promises nothing is noticed where its capture fails, or not at all.

    Raises:
        ModelError: the directory, its configuration, tokenizer or weights cannot be used; every fault is named.
        DeviceError: the device does not exist here.
    """
    folder = Path(path)
    settings = read_config(folder)
    tokenizer = TextTokenizer(folder / "tokenizer.json", settings.vocab, settings.bos)
    place = _torch_device(device)
    held = cut_weights(settings, read_weights(folder, settings), ranks.rank, ranks.size)
    weights = {name: tensor.to(place) for name, tensor in held.items()}
    planned_for = dspark_ops.probe()
    if device == "cpu" and planned_for.is_accelerator:
        planned_for = dspark_ops.Device.simulate("cpu")
    return Model(
        settings,
        weights,
        name=folder.resolve().name,
        device=planned_for,
        configuration=config,
        tokenizer=tokenizer,
        ranks=ranks,
        graphs=graphs,
    )


def _operators(ranks: RankGroup, simulated: bool) -> tuple[str, ...]:
    """Return what decoding calls, on a single rank or on one of several."""
    wanted = (*OPERATORS, "accept_forced") if simulated else OPERATORS
    if ranks.size == 1:
        return wanted
    return tuple(sorted({name for whole in wanted for name in RANK_OPERATORS.get(whole, (whole,))}))


def _torch_device(device: str) -> torch.device:
    if device not in ("cpu", "cuda"):
        raise DeviceError(f"device is {device!r}: wanted cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device is 'cuda', and torch finds no usable GPU here: run  dspark-ops devices  or use cpu")
    return torch.device(device)
