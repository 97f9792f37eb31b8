"""Kernels that lie, one way each: the check finds every one, by name, and a kernel that does not lie passes."""

from __future__ import annotations

from typing import Any

import torch

from dspark_ops import contracts
from dspark_ops.api import Constraint, Evidence, Traits, axis, contiguous, dtype, family, option, unit_last_stride

ARGMAX = contracts.get("argmax_rows").reference
GATE = contracts.get("moe_gate_topk").reference
FINALIZE = contracts.get("accept_finalize").reference
ARGMAX_REGION = (dtype("x", "float32", "bfloat16", "float16"), unit_last_stride("x"), axis("V").between(1, 2**20))


def honest(x):
    return ARGMAX(x)


def test_an_honest_kernel_passes_every_level(planted: Any, recorded_graphs: Any) -> None:
    promises = Traits(graph_safe=True, batch_invariant=True)
    name = planted.kernel("argmax_rows", honest, region=ARGMAX_REGION, traits=promises)
    report = planted.check(harness=recorded_graphs)
    (record,) = report.kernels
    assert [str(failure) for failure in record.failures] == [] and report.findings == []
    assert (record.kernel, record.arch, record.level) == (name, "cpu", "conformant")
    assert {level.status for level in record.levels.values()} == {"passed"}
    assert record.levels["numbers"].counts["cases"] == 25
    assert record.levels["claims"].counts["calls"] >= 6


def test_the_wrong_tie_is_found(planted: Any) -> None:
    def last_of_equals(x):
        return x.shape[1] - 1 - ARGMAX(x.flip(1))

    name = planted.kernel("argmax_rows", last_of_equals)
    texts = planted.texts("numbers", seed=3)
    assert (
        f"argmax_rows ({name}), case 'all equal 1x8', seed 3: output output: 1 of 1 wrong by bitwise; [0]: wanted 0 "
        "(0x0000000000000000), got 7 (0x0000000000000007)\n    repeat: dspark-ops check planted --op argmax_rows "
        "--device cpu --level numbers --seed 3 --case 'all equal 1x8'"
    ) in texts
    assert not any("case 'random" in text for text in texts)


def test_the_wrong_rounding_edge_is_found(planted: Any) -> None:
    def rounds_half_up(ids, weights):
        bits = (weights.view(torch.int32).long() & 0xFFFFFFFF) + 0x8000
        return ((ids.long() << 16) | (bits >> 16 & 0xFFFF)).int()

    planted.kernel("pack_topk_ids", rounds_half_up)
    texts = planted.texts("numbers")
    assert texts and all("wanted" in text and "0x" in text for text in texts)
    assert not any("never written" in text or "raised" in text for text in texts)


def test_an_unwritten_tail_is_found_as_such_and_not_as_a_wrong_value(planted: Any) -> None:
    def leaves_the_last_column(correct_len, bonus, cap_trim, drafts, prefix_lens):
        commit, lens, tokens = FINALIZE(correct_len, bonus, cap_trim, drafts, prefix_lens)
        out = torch.empty(tokens.shape, dtype=tokens.dtype)
        out[:, :-1] = tokens[:, :-1]
        return commit, lens, out

    planted.kernel("accept_finalize", leaves_the_last_column)
    report = planted.check("numbers")
    assert all("elements were never written" in failure.what for failure in report.failures())
    first = next(report.failures())
    assert (first.output, first.index) == ("out_tokens", (0, 1))


def test_an_unwritten_byte_is_found_although_its_pattern_could_be_a_value(planted: Any) -> None:
    reference = contracts.get("fp8_grid_quantize").reference

    def leaves_the_last_scale(x):
        codes, scales = reference(x)
        out = torch.empty_like(scales)
        out[:, :-1] = scales[:, :-1]
        return codes, out

    planted.kernel("fp8_grid_quantize", leaves_the_last_scale)
    failures = list(planted.check("numbers").failures())
    assert failures and {failure.output for failure in failures} == {"scales"}
    assert all("never written" in failure.what for failure in failures)


def test_a_region_that_is_too_wide_in_a_size_is_found_at_its_border(planted: Any) -> None:
    def up_to_ten_thousand(x):
        if x.shape[1] > 10000:
            raise RuntimeError("too many columns")
        return ARGMAX(x)

    planted.kernel("argmax_rows", up_to_ten_thousand, region=ARGMAX_REGION)
    assert planted.texts("numbers") == []
    (failure,) = planted.check("claims").failures()
    assert failure.case.startswith("V = 1048576 claimed by '1 <= V <= 1048576', made from ")
    assert failure.what == "raised RuntimeError: too many columns"


def test_a_region_that_says_nothing_of_strides_is_found_too_wide_by_a_spaced_view(planted: Any) -> None:
    def as_if_contiguous(x):
        return ARGMAX(torch.as_strided(x, x.shape, (x.shape[1], 1)))

    region = (axis("V").between(1, 2**14),)
    planted.kernel("argmax_rows", as_if_contiguous, region=region)
    planted.kernel("argmax_rows", as_if_contiguous, region=(*region, *contiguous("x")), variant="says_so")
    found = {failure.kernel for failure in planted.check("claims").failures()}
    assert found == {"planted/argmax_rows/as_if_contiguous"}
    assert any("rows spaced in wider buffers" in text for text in planted.texts("numbers"))


def test_a_region_that_says_nothing_of_dtypes_or_of_odd_sizes_is_found_too_wide(planted: Any) -> None:
    def only_float32_and_even(x):
        if x.dtype != torch.float32 or x.shape[1] % 2:
            raise RuntimeError("misaligned address")
        return ARGMAX(x)

    planted.kernel("argmax_rows", only_float32_and_even)
    cases = {failure.case.split(",")[0] for failure in planted.check("claims").failures()}
    assert "x = bfloat16 claimed by 'dtype of the contract'" in cases
    assert "V = 9 claimed by 'no constraint on V'" in cases


def test_an_option_claimed_too_widely_is_found_though_the_smallest_cases_cannot_have_it(planted: Any) -> None:
    """Twelve choices need more experts than the first thirty cases have."""

    def ten_choices_at_most(
        logits, bias, top_k, routed_scaling=1.5, renorm_eps=1e-20, pad_id=-1, num_valid=None, bias_alt=None,
        input_ids=None, alt_token_id=-1, numerics="log1p",
    ):  # fmt: skip
        if top_k > 10:
            raise ValueError("ten at most")
        return GATE(logits, bias, top_k, routed_scaling, renorm_eps, pad_id, num_valid, bias_alt, input_ids,
                    alt_token_id, numerics)  # fmt: skip

    region = (option("numerics").is_("log1p"), option("top_k").one_of(2, 12))
    planted.kernel("moe_gate_topk", ten_choices_at_most, region=region)
    texts = planted.texts("claims")
    assert any("top_k = 12" in text and "ten at most" in text for text in texts)


def test_a_kernel_that_changes_an_input_is_found(planted: Any) -> None:
    def scribbles(x):
        result = ARGMAX(x)
        if x.numel():
            x[0, 0] += 1
        return result

    planted.kernel("argmax_rows", scribbles)
    assert any(
        "argument x is not written by contract, but 1 of its elements changed" in text for text in planted.texts()
    )


def test_a_stale_output_on_replay_is_found(planted: Any, recorded_graphs: Any) -> None:
    def computes_on_the_host(x):
        values = x.float().contiguous().numpy()  # seen by no graph
        ids = values.argmax(-1) if values.size else values.sum(-1).astype("int64")
        return torch.from_numpy(ids)

    planted.kernel("argmax_rows", computes_on_the_host, traits=Traits(graph_safe=True))
    assert planted.texts("numbers") == []
    failures = list(planted.check("traits", harness=recorded_graphs).failures())
    assert failures
    assert any("graph_safe: replay 1 differs from a call with the same changed inputs" in one.what for one in failures)


def test_a_call_that_waits_for_the_device_is_found(planted: Any, recorded_graphs: Any) -> None:
    def looks(x):
        largest = float(x.max()) if x.numel() else 0.0
        return ARGMAX(x) if largest < 1 else ARGMAX(x.float())

    planted.kernel("argmax_rows", looks, traits=Traits(graph_safe=True))
    texts = planted.texts("traits", harness=recorded_graphs)
    assert any("cannot be captured: RuntimeError: aten::_local_scalar_dense waits" in text for text in texts)


def test_a_row_that_depends_on_the_others_is_found_only_where_the_opposite_is_promised(planted: Any) -> None:
    reference = contracts.get("mhc_combine").reference

    def peeks(x, pre):
        return reference(x, pre) + (0.0078125 if len(x) > 1 else 0.0)

    planted.kernel("mhc_combine", peeks, traits=Traits(batch_invariant=True))
    planted.kernel("mhc_combine", peeks, variant="promises_nothing")
    failures = list(planted.check("traits").failures())
    assert {failure.kernel for failure in failures} == {"planted/mhc_combine/peeks"}
    assert "batch_invariant: a row alone differs from the same row among others: output output" in failures[0].what


def test_results_that_change_from_run_to_run_are_found(planted: Any) -> None:
    count = iter(range(10**6))

    def drifts(x):
        result = ARGMAX(x)
        return result + next(count) % 2

    planted.kernel("argmax_rows", drifts)
    texts = planted.texts("traits")
    assert any("deterministic: run 2 differs from run 1 on equal inputs" in text for text in texts)


def test_padding_that_reaches_valid_rows_is_found(planted: Any) -> None:
    reference = contracts.get("moe_gate_topk").reference

    def normalises_over_all_rows(logits, bias, top_k, routed_scaling=1.5, renorm_eps=1e-20, pad_id=-1, num_valid=None,
                                 bias_alt=None, input_ids=None, alt_token_id=-1, numerics="log1p"):  # fmt: skip
        poison = 0.0 if input_ids is None else (input_ids > 2**40).any() * 1.0
        weights, ids = reference(logits, bias, top_k, routed_scaling, renorm_eps, pad_id, num_valid, bias_alt,
                                 input_ids, alt_token_id, numerics)  # fmt: skip
        return weights + poison + 0 * logits[:1].sum() * 0, ids

    planted.kernel("moe_gate_topk", normalises_over_all_rows)
    assert any("in the padded rows" in text or "valid rows" in text for text in planted.texts("numbers"))


def test_a_region_that_excludes_everything_is_found(planted: Any) -> None:
    planted.kernel("argmax_rows", honest, region=(axis("V").at_most(8), axis("V").at_least(9)))
    (failure,) = planted.check("claims").failures()
    assert "no facts were found that the whole region admits: V <= 8; V >= 9" in failure.what


def test_a_constraint_that_refuses_nothing_is_found(planted: Any) -> None:
    class Lenient(Constraint):
        def check(self, facts):
            return None

    planted.kernel("argmax_rows", honest, region=(Lenient("axis", "V", "between", (1, 64), "1 <= V <= 64"),))
    failures = list(planted.check("claims", device="sm_103").failures())
    assert [failure.case for failure in failures] == [
        "V = 0, outside '1 <= V <= 64'",
        "V = 65, outside '1 <= V <= 64'",
    ]
    assert failures[0].what == "wanted it refused with SHAPE V, got eligible"


def test_evidence_for_an_architecture_that_the_kernel_refuses_is_found(planted: Any) -> None:
    planted.kernel("argmax_rows", honest, arch=family("sm_10x"), evidence=(("sm_90", Evidence.MEASURED),))
    (failure,) = planted.check("claims", device="sm_103").failures()
    assert failure.what == "it claims measured there, but sm_10x excludes sm_90"


def test_a_target_with_another_signature_and_a_preparation_that_raises_are_found(planted: Any) -> None:
    def other_name(logits):
        return ARGMAX(logits)

    def cannot(device, problem, rows):
        raise MemoryError("no shared memory")

    planted.kernel("argmax_rows", other_name)
    planted.kernel("argmax_rows", honest, prepare=cannot, variant="prepared")
    texts = planted.texts("claims", "numbers")
    assert any("parameter 1 is named 'logits', wanted 'x'" in text for text in texts)
    assert any("planted_kernels:cannot raised MemoryError: no shared memory" in text for text in texts)
    assert len(texts) < 8  # once per kernel and level, not once per case
