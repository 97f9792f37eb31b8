"""Operators of torch.library: one opaque node per contract in a compiled graph, and nothing of it in eager calls."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import dspark_ops
from dspark_ops import contracts
from dspark_ops.binding.bound import BoundOps
from dspark_ops.binding.fake_outputs import shapes_only
from dspark_ops.binding.torch_library import torch_schema
from dspark_ops.errors import BindingError
from dspark_ops.selection.device import Device
from dspark_ops.selection.plan import Plan

NAMES = contracts.names()
SPACE = "dspark_ops_test"

# torch's schema check perturbs its inputs by a multiplication, which float8 does not have on the CPU.
FLOAT8 = ("engram_gather", "main_projection")
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return dspark_ops.plan(device=Device.simulate("cpu"), model="deepseek-v4.1-flash/tp4", rows=range(1, 65), config={})


@pytest.fixture(scope="module")
def ops(plan: Plan) -> BoundOps:
    return plan.bind()


@pytest.fixture(scope="module")
def registered(plan: Plan, ops: BoundOps) -> Iterator[Any]:
    with plan.register_torch_ops(ops, namespace=SPACE):
        yield getattr(torch.ops, SPACE)


def arguments_of(name: str, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(inputs.get(parameter.name, parameter.default) for parameter in contracts.get(name).parameters)


def case_of(name: str, index: int = 0) -> tuple[Any, ...]:
    return arguments_of(name, next(islice(contracts.get(name).cases("small", 0), index, None)).inputs)


def likeness(result: Any) -> list[Any]:
    values = result if isinstance(result, tuple) else (result,)
    return [(list(item.shape), item.dtype) if item is not None else None for item in values]


def test_a_plan_for_every_operator_registers_every_operator(registered: Any, plan: Plan) -> None:
    assert plan.operators == tuple(sorted(NAMES)) and len(NAMES) >= 58
    assert all(hasattr(registered, name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_opcheck_passes(registered: Any, name: str) -> None:
    checks = CHECKS[1:] if name in FLOAT8 else CHECKS
    verdicts = opcheck(getattr(registered, name).default, case_of(name), test_utils=checks)
    assert verdicts == dict.fromkeys(checks, "SUCCESS")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_call_gives_is_known_without_storage(name: str) -> None:
    contract = contracts.get(name)
    for case in islice(contract.cases("small", 1), 0, 12, 3):
        arguments = arguments_of(name, case.inputs)
        with FakeTensorMode() as mode:
            empty = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in arguments]
            told = likeness(shapes_only(contract, tuple(empty)))
        result = contract.reference(*(v.clone() if isinstance(v, torch.Tensor) else v for v in arguments))
        returned = {output.name for output in contract.outputs} - {a.name for a in contract.arguments if a.written}
        assert told == (likeness(result) if returned else [None]), case.name


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_written_arguments_are_declared_as_mutated(registered: Any, name: str) -> None:
    schema = getattr(registered, name).default._schema
    mutated = {item.name for item in schema.arguments if item.alias_info is not None and item.alias_info.is_write}
    assert mutated == {argument.name for argument in contracts.get(name).arguments if argument.written}
    assert [item.name for item in schema.arguments] == [*contracts.get(name).signature().parameters, "site"]


def test_a_schema_shows_mutation_options_defaults_and_outputs_that_may_be_none() -> None:
    assert torch_schema(contracts.get("fill_padded_topk")) == (
        "fill_padded_topk(Tensor(a0!) ids, Tensor(a1!) weights, Tensor num_valid, SymInt pad_id=-1, *, "
        "str site='') -> ()"
    )
    assert torch_schema(contracts.get("candidate_blocks")) == (
        "candidate_blocks(Tensor logits, Tensor seq_lens, Tensor? published=None, SymInt topk_blocks=2048, "
        "SymInt block_size=8, *, str site='') -> (Tensor, Tensor?)"
    )


def accept(ops: Any, candidates: Any, logits: Any, prefix: Any) -> Any:
    """Three operators and plain torch arithmetic between them."""
    ids = ops.argmax_rows(logits * 2).view(candidates.shape)
    correct, bonus, trim = ops.accept_greedy(candidates, ids)
    commit, lens, tokens = ops.accept_finalize(correct, bonus, trim, candidates[:, 1:], prefix)
    return commit + 1, lens, tokens


def accept_inputs(requests: int = 3) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(requests)
    logits = torch.randn(requests * 4, 50, generator=generator)
    candidates = logits.argmax(-1).view(requests, 4).roll(1, 1)
    candidates[0, 2] = 49 - candidates[0, 2]
    return candidates, logits, torch.arange(requests)


def nodes(graph: Any) -> list[str]:
    return [str(node.target).split(".")[1] for node in graph.nodes if str(node.target).startswith(f"{SPACE}.")]


def test_a_compiled_function_holds_one_node_per_call_without_a_graph_break(registered: Any, ops: BoundOps) -> None:
    seen = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.append(nodes(module.graph))
        return module

    torch._dynamo.reset()
    compiled = torch.compile(lambda *arguments: accept(registered, *arguments), fullgraph=True, backend=backend)
    inputs = accept_inputs()
    for got, wanted in zip(compiled(*inputs), accept(ops, *inputs), strict=True):
        assert torch.equal(got, wanted)
    assert seen == [["argmax_rows", "accept_greedy", "accept_finalize"]]


def test_a_written_argument_is_written_by_the_compiled_function_too(registered: Any, ops: BoundOps) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda ids, weights, count: registered.fill_padded_topk(ids + 0, weights, count, 7),
        fullgraph=True,
        backend="aot_eager",
    )
    ids = torch.arange(6, dtype=torch.int32).view(3, 2)
    got, wanted = torch.ones(3, 2), torch.ones(3, 2)
    compiled(ids, got, torch.tensor([1], dtype=torch.int32))
    ops.fill_padded_topk(ids.clone(), wanted, torch.tensor([1], dtype=torch.int32), 7)
    assert torch.equal(got, wanted) and wanted.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert ids.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_an_exported_program_holds_the_operators_and_follows_another_number_of_requests(
    registered: Any, ops: BoundOps
) -> None:
    class Accept(torch.nn.Module):
        def forward(self, candidates: Any, logits: Any, prefix: Any) -> Any:
            return accept(registered, candidates, logits, prefix)

    requests = torch.export.Dim("requests", min=2, max=16)
    program = torch.export.export(
        Accept(), accept_inputs(), dynamic_shapes=({0: requests}, {0: 4 * requests}, {0: requests})
    )
    assert nodes(program.graph) == ["argmax_rows", "accept_greedy", "accept_finalize"]
    inputs = accept_inputs(5)
    for got, wanted in zip(program.module()(*inputs), accept(ops, *inputs), strict=True):
        assert torch.equal(got, wanted)


class Recorder(TorchDispatchMode):
    """Writes down every operator that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_an_eager_call_is_the_kernels_own_function_and_not_a_torch_operator(registered: Any, ops: BoundOps) -> None:
    logits = torch.randn(4, 50)
    assert ops.argmax_rows is contracts.get("argmax_rows").reference
    with Recorder() as eager:
        ops.argmax_rows(logits)
    with Recorder() as through:
        registered.argmax_rows(logits)
    assert not [name for name in eager.seen if name.startswith(SPACE)]
    assert through.seen[0] == f"{SPACE}.argmax_rows.default"


def test_a_namespace_holds_one_plan_and_the_error_says_which_and_what_to_do(plan: Plan, registered: Any) -> None:
    text = rf"torch.ops.{SPACE} holds the operators of plan {plan.digest} already: call unregister\(\)"
    with pytest.raises(BindingError, match=text):
        plan.register_torch_ops(namespace=SPACE)


@pytest.mark.parametrize("namespace", ["", "a.b", "1st", "dspark-ops"])
def test_a_namespace_is_an_identifier(plan: Plan, ops: BoundOps, namespace: str) -> None:
    with pytest.raises(BindingError, match="torch namespace: wanted an identifier such as 'dspark_ops', got "):
        plan.register_torch_ops(ops, namespace=namespace)


def test_operators_of_another_plan_are_refused(plan: Plan, ops: BoundOps) -> None:
    other = dspark_ops.plan(device=Device.simulate("cpu"), rows=[1], operators=["argmax_rows"], config={})
    with pytest.raises(
        BindingError, match=rf"the operators follow plan {plan.digest}, wanted those of plan {other.digest}"
    ):
        other.register_torch_ops(ops)


def test_two_plans_live_side_by_side_and_each_can_be_taken_out(plan: Plan) -> None:
    one = dspark_ops.plan(device=Device.simulate("cpu"), rows=[1], operators=["argmax_rows"], config={})
    two = dspark_ops.plan(device=Device.simulate("cpu"), rows=[2], operators=["argmax_rows"], config={})
    with one.register_torch_ops(namespace="dspark_one") as first, two.register_torch_ops(namespace="dspark_two"):
        assert (torch.ops.dspark_one.plan_digest(), torch.ops.dspark_two.plan_digest()) == (one.digest, two.digest)
        assert list(first) == ["argmax_rows"]
        assert repr(first) == f"<TorchOps torch.ops.dspark_one: 1 operators of plan {one.digest}>"
        first.unregister()
        assert not hasattr(torch.ops.dspark_one, "argmax_rows")
        with two.register_torch_ops(namespace="dspark_one"):
            assert torch.ops.dspark_one.plan_digest() == two.digest
    assert not hasattr(torch.ops.dspark_two, "argmax_rows")


def test_operators_stay_registered_when_nobody_keeps_what_registering_returned(plan: Plan, ops: BoundOps) -> None:
    kept = [plan.register_torch_ops(ops, namespace="dspark_kept")]
    kept.clear()
    gc.collect()
    assert torch.ops.dspark_kept.argmax_rows(torch.tensor([[1.0, 3.0, 2.0]])).tolist() == [1]


def test_registered_operators_refuse_pickling(plan: Plan, ops: BoundOps) -> None:
    with (
        plan.register_torch_ops(ops, namespace="dspark_pickle") as made,
        pytest.raises(BindingError, match="belong to their process and cannot be pickled: pickle the plan"),
    ):
        pickle.dumps(made)
