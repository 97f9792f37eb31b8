"""A model on several ranks drafts and decodes as on one, whatever is sampled, scheduled or batched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from dspark_ops import Device
from dspark_ops.decode import (
    DecodeOptions,
    Generation,
    Model,
    PrefixPolicy,
    Request,
    SamplingParams,
    ThresholdPolicy,
    decode_plain,
    generate,
)
from dspark_ops.decode.forced import ForcedAcceptance
from dspark_ops.decode.options import Execution
from dspark_ops.decode.ranks.shards import cut_weights
from dspark_ops.decode.ranks.threads import ThreadGroup, run_in_threads
from dspark_ops.decode.v41.synthetic import random_weights, small_config
from dspark_ops.errors import ModelError, RankError

CONFIG = small_config(num_hidden_layers=2, compress_ratios=[0, 2, 0, 0], kv_source_layer_ids=[1],
                      index_source_layer_ids=[1], dspark_target_layer_ids=[0, 1])  # fmt: skip
WEIGHTS = random_weights(CONFIG, seed=4)
CPU = Device.simulate("cpu")
GENERATOR = torch.Generator().manual_seed(5)
PROMPTS = [tuple(torch.randint(5, 97, (length,), generator=GENERATOR).tolist()) for length in (4, 13, 9)]


def requests(sampled: int = 0) -> list[Request]:
    """Three requests, of which the first `sampled` are sampled."""
    return [
        Request(prompt, 6 + number, SamplingParams(0.9 if number < sampled else 0.0, seed=number))
        for number, prompt in enumerate(PROMPTS)
    ]


def rank_model(group: ThreadGroup, weights: Mapping[str, torch.Tensor] = WEIGHTS, **changes: Any) -> Model:
    cut = cut_weights(CONFIG, weights, group.rank, group.size)
    return Model(CONFIG, cut, **{"device": CPU, "ranks": group, **changes})


def facts(found: Generation) -> list[tuple[Any, ...]]:
    """What must not depend on ranks: tokens, endings, and how often how many drafts of each request were accepted."""
    return [
        (result.tokens, result.finish, result.metrics.verify_steps, dict(result.metrics.histogram))
        for result in found.results
    ]


@pytest.fixture(scope="module")
def solo() -> Model:
    return Model(CONFIG, WEIGHTS, device=CPU)


def test_the_text_is_varied_enough_to_show_a_fault(solo: Model) -> None:
    found = generate(solo, requests())
    assert len({token for result in found.results for token in result.tokens}) > 8
    assert found.metrics.verify_steps > 6


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_greedy_tokens_and_accepted_drafts_are_those_of_one_rank(solo: Model, ranks: int) -> None:
    wanted = facts(generate(solo, requests()))
    assert run_in_threads(ranks, lambda group: facts(generate(rank_model(group), requests()))) == [wanted] * ranks


@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(policy=ThresholdPolicy(0.5), max_batch=2),
        DecodeOptions(policy=PrefixPolicy(mode="global"), execution=Execution.STATIC),
        DecodeOptions(3, policy=ThresholdPolicy(0.5), execution=Execution.FOLDED),
    ],
    ids=["threshold, two at once", "prefix, static sizes", "threshold, folded"],
)
def test_every_way_of_running_a_step_works_on_two_ranks(solo: Model, options: DecodeOptions) -> None:
    wanted = facts(generate(solo, requests(), options))
    assert run_in_threads(2, lambda group: facts(generate(rank_model(group), requests(), options))) == [wanted] * 2


def test_every_operator_call_of_a_rank_keeps_to_its_contract(solo: Model) -> None:
    asked, options = [Request(PROMPTS[0], 3)], DecodeOptions(2, check_invariants=True)
    wanted = facts(generate(solo, asked, options))
    assert run_in_threads(2, lambda group: facts(generate(rank_model(group), asked, options))) == [wanted] * 2


def test_sampled_and_greedy_requests_share_a_batch_on_three_ranks(solo: Model) -> None:
    wanted = facts(generate(solo, requests(sampled=2)))
    assert run_in_threads(3, lambda group: facts(generate(rank_model(group), requests(sampled=2)))) == [wanted] * 3


def test_drawn_accept_lengths_are_drawn_alike(solo: Model) -> None:
    options = DecodeOptions(forced=ForcedAcceptance(2.5), execution=Execution.FOLDED)
    wanted = facts(generate(solo, requests(), options))
    assert run_in_threads(2, lambda group: facts(generate(rank_model(group), requests(), options))) == [wanted] * 2


def test_ranks_with_other_settings_run_the_plan_of_a_leader(solo: Model) -> None:
    wanted = facts(generate(solo, requests()[:1]))

    def work(group: ThreadGroup) -> tuple[str, list[tuple[Any, ...]]]:
        own = {"fallback": "warn"} if group.rank else {"fallback": "allow", "rank_mismatch": "leader"}
        model = rank_model(group, configuration={"policy": own})
        found = facts(generate(model, requests()[:1]))
        return model.ops().plan.settings.policy.fallback, found

    assert run_in_threads(2, work) == [("allow", wanted)] * 2


def test_plain_decoding_gathers_no_logits_of_greedy_requests(solo: Model) -> None:
    wanted = facts(decode_plain(solo, requests()))
    sizes: list[torch.Size] = []

    class Watched(ThreadGroup):
        def gather(self, tensor: torch.Tensor) -> torch.Tensor:
            if self.rank == 0:
                sizes.append(tensor.shape)
            return super().gather(tensor)

    def work(group: ThreadGroup) -> list[tuple[Any, ...]]:
        group.__class__ = Watched
        return facts(decode_plain(rank_model(group), requests()))

    assert run_in_threads(2, work) == [wanted] * 2
    # 97 tokens on two ranks are 49 columns; the rest of the model has no such width
    assert sizes and not [shape for shape in sizes if shape[-1] == 49]


def test_ranks_whose_replicated_numbers_differ_still_take_the_same_steps() -> None:
    """A rank with other float results may change the text, but can never split the ranks, which would hang them."""

    def work(group: ThreadGroup) -> list[tuple[Any, ...]]:
        weights = dict(WEIGHTS)
        if group.rank == 1:
            for name in ("layers.1.attn.wkv.weight", "mtp.0.main_proj.weight"):
                weights[name] = (weights[name].float() * 1.25).bfloat16()
            weights["mtp.1.confidence_head.weight"] = -weights["mtp.1.confidence_head.weight"]
        options = DecodeOptions(policy=ThresholdPolicy(0.5))
        return facts(generate(rank_model(group, weights), requests(sampled=1), options))

    first, second = run_in_threads(2, work, seconds=60)
    assert first == second


def test_different_requests_options_or_models_are_one_error_on_every_rank_before_any_step() -> None:
    def refusal(group: ThreadGroup, what: str) -> str:
        asked = requests()[: 3 - (group.rank if what == "requests" else 0)]
        options = DecodeOptions(max_batch=8 - (group.rank if what == "options" else 0))
        try:
            generate(rank_model(group), asked, options)
        except RankError as error:
            return str(error)
        return "nothing"

    for what in ("requests", "options"):
        found = run_in_threads(2, lambda group, what=what: refusal(group, what))
        assert found[0] == found[1]
        assert f"the ranks have different {what} (rank 0 has " in found[0]

    def other_model(group: ThreadGroup) -> None:
        config = small_config(rope_theta=10000.0 + group.rank)
        Model(config, cut_weights(config, random_weights(config, 1), group.rank, 2), device=CPU, ranks=group)

    with pytest.raises(
        RankError, match=r"the ranks have different model configuration .*: give every rank the same model directory"
    ):
        run_in_threads(2, other_model)

    def other_weights(group: ThreadGroup) -> None:
        rank_model(group, random_weights(CONFIG, seed=4 + group.rank))

    with pytest.raises(RankError, match=r"the ranks have different weights .*: give every rank the same checkpoint"):
        run_in_threads(2, other_weights)


def test_whole_weights_on_a_rank_and_a_part_on_a_single_one_are_refused() -> None:
    def whole(group: ThreadGroup) -> None:
        Model(CONFIG, WEIGHTS, device=CPU, ranks=group)

    with pytest.raises(ModelError, match="of 2 got whole weights: give it what cut_weights returns for it"):
        run_in_threads(2, whole)
    with pytest.raises(ModelError, match="rank 0 of 1 got a rank's part of the weights"):
        Model(CONFIG, cut_weights(CONFIG, WEIGHTS, 0, 2), device=CPU)
