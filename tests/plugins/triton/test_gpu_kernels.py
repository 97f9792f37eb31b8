"""The other kernels on a real GPU: numbers, graphs, and the conversions that the interpreter must agree with."""

from __future__ import annotations

import pytest
import torch
import triton

from dspark_ops import contracts
from dspark_ops.binding.facts import facts_of
from dspark_ops.binding.targets import resolve
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.selection.planner import make_plan
from dspark_ops.selection.probe import probe
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.registry import RegisteredKernel, Registry
from dspark_ops.selection.settings import Settings
from dspark_ops_triton.plugin import KERNELS, dspark_ops_manifest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]

MODEL = contracts.model_shapes("deepseek-v4.1-flash/tp4")
#: argmax_rows has a file of its own.
OPERATORS = {kernel.op: kernel for kernel in KERNELS if kernel.op != "argmax_rows"}


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


def prepared(name: str):
    contract = contracts.get(name)
    kernel = OPERATORS[name]
    problem = Problem.at(contract, contract.sites(MODEL)[0])
    function = resolve(kernel.prepare, kernel.op, name)(probe(0), problem, (1, 6, 64)) if kernel.prepare else None
    return function or resolve(kernel.target, kernel.op, name)


def inside(name: str):
    """Return a function that returns the inputs of a call if they lie in the kernel's region, else None."""

    def adapt(inputs):
        facts = facts_of(contracts.get(name), inputs)
        return None if any(constraint.check(facts) for constraint in OPERATORS[name].region) else inputs

    return adapt


def through_graph(function):
    """Return a function that captures a call on zeros, copies its arguments in, replays, and copies them back."""

    def run(*arguments):
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        if any(tensor.numel() == 0 for tensor in tensors):
            return function(*arguments)
        held = [torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="cuda") for item in tensors]
        # A row that stands for all rows (stride 0) cannot be copied into: such an argument becomes a plain tensor.
        held = [
            torch.empty_like(item, memory_format=torch.contiguous_format) if 0 in item.stride() else item
            for item in held
        ]
        left = iter(held)
        call = [next(left) if isinstance(argument, torch.Tensor) else argument for argument in arguments]
        for item in held:
            item.zero_()
        function(*call)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.cuda.set_sync_debug_mode("error")
            try:
                outputs = function(*call)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        for item, given in zip(held, tensors, strict=True):
            item.copy_(given)
        graph.replay()
        for item, given in zip(held, tensors, strict=True):
            if 0 not in given.stride():
                given.copy_(item)
        torch.cuda.synchronize()
        return outputs

    return run


@pytest.mark.parametrize("name", OPERATORS)
def test_a_graph_follows_changed_inputs_without_a_host_sync(name: str) -> None:
    function = through_graph(prepared(name))
    assert check_numbers(contracts.get(name), function, device="cuda", seed=3, adapt=inside(name)) == []


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("scale", ["small", "model"])
def test_every_case_passes(name: str, scale: str) -> None:
    contract, function = contracts.get(name), prepared(name)
    assert check_numbers(contract, function, device="cuda", scale=scale, seed=0, adapt=inside(name)) == []


def combine_inputs(seed: int, tokens: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(tokens, 4 * 5120, generator=generator, device="cuda").bfloat16()
    pre = torch.rand(tokens, 4, generator=generator, device="cuda")
    return x, pre, torch.randn(5120, generator=generator, device="cuda").bfloat16()


def test_the_combine_differs_from_float64_rounding_in_few_elements_and_by_one_step() -> None:
    x, pre, weight = combine_inputs(0, tokens=512)
    got = prepared("mhc_combine_norm")(x, pre, weight).cpu().view(torch.int16).int()
    wanted = contracts.get("mhc_combine_norm").reference(x.cpu(), pre.cpu(), weight.cpu()).view(torch.int16).int()
    steps = (got - wanted).abs()
    assert steps.max() <= 1
    assert (steps > 0).float().mean() < 1e-4


def test_a_token_of_the_combine_does_not_depend_on_the_others() -> None:
    combine = prepared("mhc_combine_norm")
    x, pre, weight = combine_inputs(1, tokens=48)
    together = combine(x, pre, weight)
    alone = torch.cat([combine(x[i : i + 1], pre[i : i + 1], weight) for i in range(48)])
    assert torch.equal(together, alone)


def test_a_token_of_the_mix_does_not_depend_on_how_many_share_its_programs() -> None:
    mix = prepared("mhc_mix_sinkhorn")
    x, _, _ = combine_inputs(2, tokens=64)
    fn = torch.randn(24, 20480, generator=torch.Generator("cuda").manual_seed(3), device="cuda") * 0.01
    scale, base = torch.full((3,), 1.5, device="cuda"), torch.zeros(24, device="cuda")
    together = mix(x, fn, scale, base)
    for first, last in ((0, 1), (63, 64), (3, 8), (20, 28), (5, 14), (40, 64), (1, 26)):
        some = mix(x[first:last], fn, scale, base)
        assert all(torch.equal(whole[first:last], part) for whole, part in zip(together, some, strict=True))


def test_a_graph_of_the_combine_follows_changed_inputs_without_a_host_sync() -> None:
    combine = prepared("mhc_combine_norm")
    static = combine_inputs(2)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cuda.set_sync_debug_mode("error")
        try:
            out = combine(*static)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for seed in (3, 4, 5):
        for held, fresh in zip(static, combine_inputs(seed), strict=True):
            held.copy_(fresh)
        graph.replay()
        assert torch.equal(out, combine(*combine_inputs(seed)))


def test_a_graph_of_finalize_follows_changed_lengths_and_padded_requests() -> None:
    contract, finalize = contracts.get("accept_finalize"), prepared("accept_finalize")
    lens = torch.tensor([2, 0, 5, 1], dtype=torch.int32, device="cuda")
    bonus = torch.arange(4, device="cuda") + 100
    drafts = torch.arange(20, device="cuda").view(4, 5)
    prefix = torch.arange(4, device="cuda") + 2**33
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = finalize(lens, bonus, lens, drafts, prefix)
    for values in ([2, 0, 5, 1], [-1, 5, -1, 0], [4, 4, 3, -1]):
        lens.copy_(torch.tensor(values, dtype=torch.int32))
        graph.replay()
        wanted = contract.reference(*(value.cpu() for value in (lens, bonus, lens, drafts, prefix)))
        assert all(torch.equal(got.cpu(), want) for got, want in zip(outs, wanted, strict=True))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_compiled_conversion_rounds_as_the_repaired_interpreter_is_proved_to(name: str) -> None:
    from dspark_ops.conformance import _interpreter_proof as proof

    inputs, wanted = proof._narrowing_table(name)
    out = torch.empty(inputs.size, dtype=getattr(torch, name), device="cuda")
    kernel = triton.jit(proof._convert_kernel)
    grid = (triton.cdiv(inputs.size, 1024),)
    kernel[grid](torch.from_numpy(inputs).cuda(), out, inputs.size, BLOCK=1024, EXPLICIT=True)
    assert (proof._codes(out.cpu()) == wanted).all()


def test_a_plan_for_this_device_binds_the_kernels_and_they_run() -> None:
    manifest = dspark_ops_manifest()
    registered = [
        RegisteredKernel(f"{manifest.name}/{kernel.op}/{kernel.variant}", manifest.name, "dspark-ops-triton", kernel)
        for kernel in manifest.kernels
    ]
    operators = tuple(sorted({entry.kernel.op for entry in registered}))
    registry = Registry({op: tuple(entry for entry in registered if entry.kernel.op == op) for op in operators})
    plan = make_plan(
        device=probe(0), shapes=MODEL, rows=(1, 6, 64), settings=Settings(), registry=registry,
        contracts=contracts.all_contracts(), operators=operators, packages=lambda package: None,
    )  # fmt: skip
    ops = plan.bind()
    x = torch.randn(6, 129280, device="cuda")
    assert torch.equal(ops.at(site="verify", rows=6).argmax_rows(x), x.argmax(-1))
    assert torch.equal(ops.argmax_rows(x[:1]), x[:1].argmax(-1))
