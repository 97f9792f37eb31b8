"""The hyper-connection kernels against their contracts' cases, one launch each, and the update's order of roundings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops_triton.blocks.hyper import load_copies, load_weights, updated_copy
from dspark_ops_triton.mhc import mhc_combine, mhc_combine_norm
from dspark_ops_triton.mhc_mxfp8 import mhc_combine_norm_mxfp8
from dspark_ops_triton.mhc_post import mhc_post
from dspark_ops_triton.mhc_post_combine import mhc_post_combine, mhc_post_combine_norm
from dspark_ops_triton.quantize import mxfp8_quantize

KERNELS = {
    "mhc_combine": mhc_combine,
    "mhc_post": mhc_post,
    "mhc_post_combine": mhc_post_combine,
    "mhc_post_combine_norm": mhc_post_combine_norm,
    "mhc_combine_norm_mxfp8": mhc_combine_norm_mxfp8,
}
LAUNCHES = {
    "mhc_combine": ["combine_kernel"],
    "mhc_post": ["post_kernel"],
    "mhc_post_combine": ["post_combine_kernel"],
    "mhc_post_combine_norm": ["post_combine_norm_kernel"],
    "mhc_combine_norm_mxfp8": ["combine_norm_kernel"],
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    return seen


def _inputs(name: str, seed: int) -> dict[str, Any]:
    """Return the random inputs with the most tokens."""
    cases = [case.inputs for case in contracts.get(name).cases("small", seed) if case.name.startswith("random")]
    return dict(max(cases, key=lambda inputs: len(inputs["x"])))


def _rows(inputs: dict[str, Any], rows: slice) -> dict[str, Any]:
    per_token = ("x", "residual", "post", "comb", "pre")
    return {name: value[rows] if name in per_token else value for name, value in inputs.items()}


def _not_the_middle(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Leave out the middle one of three sizes, which has no case of its own."""
    return None if len(inputs["x"]) == 3 else inputs


def _tensors(outputs: Any) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_passes_every_case_of_its_contract(name: str) -> None:
    adapt = _not_the_middle if name in ("mhc_combine", "mhc_combine_norm_mxfp8") else None
    assert check_numbers(contracts.get(name), KERNELS[name], adapt=adapt) == []


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_one_launch_and_none_for_no_tokens(name: str, launches: list[str]) -> None:
    inputs = _inputs(name, seed=1)
    KERNELS[name](**_rows(inputs, slice(0, 2)))
    assert launches == LAUNCHES[name]
    assert all(output.shape[0] == 0 for output in _tensors(KERNELS[name](**_rows(inputs, slice(0, 0)))))
    assert launches == LAUNCHES[name]


@pytest.mark.parametrize("name", KERNELS)
def test_a_token_does_not_depend_on_the_others(name: str) -> None:
    inputs = _inputs(name, seed=2)
    together = _tensors(KERNELS[name](**inputs))
    alone = _tensors(KERNELS[name](**_rows(inputs, slice(3, 4))))
    for whole, one in zip(together, alone, strict=True):
        if one.dim() > 1:  # scale bytes of several tokens lie in one dimension
            assert torch.equal(whole[3:4].view(torch.uint8), one.view(torch.uint8))


def test_columns_beyond_one_program_are_served() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 4 * 1300, generator=generator).bfloat16()
    pre, post = torch.rand(1, 4, generator=generator), torch.rand(1, 4, generator=generator)
    comb = torch.rand(1, 4, 4, generator=generator)
    assert torch.equal(mhc_combine(x, pre), contracts.get("mhc_combine").reference(x, pre))
    residual = x.view(1, 4, 1300)
    wanted = contracts.get("mhc_post").reference(x[:, :1300], residual, post, comb)
    assert torch.equal(mhc_post(x[:, :1300], residual, post, comb), wanted)


def test_the_fused_forms_give_the_bits_of_their_parts() -> None:
    inputs = _inputs("mhc_combine_norm_mxfp8", seed=4)
    y, q, scales = mhc_combine_norm_mxfp8(**inputs)
    assert torch.equal(y, mhc_combine_norm(**inputs))
    wanted_q, wanted_scales = mxfp8_quantize(y)
    assert torch.equal(q.view(torch.uint8), wanted_q.view(torch.uint8))
    assert torch.equal(scales, wanted_scales)
    update = _inputs("mhc_post_combine_norm", seed=5)
    new, combined, _ = mhc_post_combine_norm(**update)
    parts = ("x", "residual", "post", "comb")
    assert torch.equal(new, mhc_post(**{name: update[name] for name in parts}))
    assert torch.equal(combined, mhc_post_combine(**{name: update[name] for name in (*parts, "pre")})[1])


@triton.jit
def _update_kernel(branch, residual, post, comb, out, COPY: tl.constexpr, LANES: tl.constexpr):
    lanes = tl.arange(0, LANES)
    old = load_copies(residual, lanes, lanes < LANES, 4, LANES)
    posts, combs = load_weights(post, 4), load_weights(comb, 16)
    tl.store(out + lanes, updated_copy(tl.load(branch + lanes), old, posts, combs, COPY, 4))


def test_the_first_product_of_the_update_is_rounded_and_the_others_are_fused() -> None:
    # (1 + 2**-12)**2 needs 25 bits: rounded, its last bit is lost, and minus 1 + 2**-11 leaves 0; fused, it leaves it.
    precise, lost = 1 + 2.0**-12, 2.0**-24
    branch, residual = torch.full((16,), -1 - 2.0**-11), torch.zeros(4, 16)
    residual[0], residual[1] = precise, precise
    post, comb = torch.ones(4), torch.zeros(4, 4)
    comb[0, 2] = precise
    out = torch.empty(16)
    _update_kernel[(1,)](branch, residual, post, comb, out, COPY=2, LANES=16)
    assert out.tolist() == [0.0] * 16
    comb[:, 2] = torch.tensor([0.0, precise, 0.0, 0.0])
    _update_kernel[(1,)](branch, residual, post, comb, out, COPY=2, LANES=16)
    assert out.tolist() == [lost] * 16
