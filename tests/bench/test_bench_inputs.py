"""Inputs of measured calls: every operator has some, at every place of the model, inside its contract."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dspark_ops import contracts  # noqa: E402
from dspark_ops.bench import inputs_dense  # noqa: E402
from dspark_ops.bench.agreement import Wanted, called_once  # noqa: E402
from dspark_ops.bench.inputs import Place, bench_inputs  # noqa: E402
from dspark_ops.binding.facts import outside, rows_of_inputs  # noqa: E402
from dspark_ops.contracts.contract import Site  # noqa: E402
from dspark_ops.errors import EvidenceError  # noqa: E402

SHAPES = contracts.model_shapes("deepseek-v4.1-flash/tp4")
#: Their tables and weights take seconds to draw on a CPU; a GPU run makes them.
LARGE = ("markov_block", "main_projection", "accept_sampled", "rope_wo_a", "rope_wo_a_mxfp8", "confidence_survival")


def place(name: str, rows: int, site: Site | None = None, seed: int = 0) -> Place:
    contract = contracts.get(name)
    return Place(contract, site or contract.sites(SHAPES)[0], rows, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", [name for name in contracts.names() if name not in LARGE])
def test_inputs_of_every_operator_lie_inside_its_contract_at_every_place(name, monkeypatch):
    monkeypatch.setattr(inputs_dense, "ENGRAM_ROWS", 4096)
    contract = contracts.get(name)
    for site in contract.sites(SHAPES):
        for rows in (1, 6):
            made = bench_inputs(place(name, rows, site))
            assert [*made] == [parameter.name for parameter in contract.parameters]
            assert outside(contract, made) == ""
            assert rows_of_inputs(contract, made) == rows


@pytest.mark.parametrize("name", ["compress_c1", "index_k_store", "k_norm_rope_store", "compress_c2"])
def test_slots_that_a_call_writes_are_all_different(name):
    slots = bench_inputs(place(name, 24))["out_loc"]
    slots = slots[slots >= 0] >> (1 if name == "compress_c2" else 0)
    # A pair of tokens shares its slot.
    assert slots.unique().numel() == (12 if name == "compress_c2" else 24)


def test_a_generator_gives_each_set_other_values():
    where = place("argmax_rows", 6)
    first, second = bench_inputs(where), bench_inputs(where)
    assert not torch.equal(first["x"], second["x"])


def test_drafts_of_an_accept_call_are_partly_right():
    made = bench_inputs(place("accept_greedy", 64))
    correct, _, _ = contracts.get("accept_greedy").reference(**made)
    assert {0, 5} < set(correct.tolist())


def test_a_size_that_nobody_states_is_an_error_that_names_the_argument():
    with pytest.raises(EvidenceError, match=r"mhc_post: argument x .* does not state"):
        bench_inputs(place("mhc_post", 6, Site("verify", axes={"N": 4})))


def test_a_right_call_agrees_and_a_wrong_one_is_told_with_the_place():
    contract = contracts.get("mhc_post")
    made = bench_inputs(place("mhc_post", 1))
    wanted = Wanted(contract, made)
    arguments = [parameter.name for parameter in contract.parameters]

    def prepare(inputs):
        return lambda: contract.reference(*(inputs[name] for name in arguments))

    def broken(inputs):
        def call():
            out = prepare(inputs)()
            out[0, 2, 17] += 1
            return out

        return call

    assert wanted.disagreement(called_once(contract, prepare, made)) == ""
    assert "1 of 20480 wrong by bitwise" in wanted.disagreement(called_once(contract, broken, made))


def test_the_call_that_is_looked_at_changes_none_of_the_inputs():
    contract = contracts.get("compress_c1")
    made = bench_inputs(place("compress_c1", 6))
    before = made["cache"].clone()
    arguments = [parameter.name for parameter in contract.parameters]
    got = called_once(contract, lambda inputs: lambda: contract.reference(*(inputs[name] for name in arguments)), made)
    assert torch.equal(made["cache"], before)
    assert not torch.equal(got["cache"], before)


def test_outputs_that_an_implementation_lacks_are_not_compared():
    contract = contracts.get("candidate_lengths")
    made = bench_inputs(place("candidate_lengths", 6))
    wanted = Wanted(contract, made)
    assert wanted.disagreement({"block_lens": wanted.outputs["block_lens"]}) == ""
    assert "block_lens" in wanted.disagreement({"block_lens": wanted.outputs["block_lens"] + 1})
