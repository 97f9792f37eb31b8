"""Two hundred requests through every way to decode: each gives what it gives alone, and nothing is left."""

from __future__ import annotations

import random

from dspark_ops import Device
from dspark_ops.conformance.soak import MODES, SoakSpec, run_soak
from dspark_ops.decode import Model
from dspark_ops.decode.figures import figures_of
from dspark_ops.decode.tokenizer import TextTokenizer
from dspark_ops.decode.v41.synthetic import random_weights, small_config

CONFIG = small_config(vocab_size=300)


def test_two_hundred_requests_give_what_each_gives_alone_and_nothing_is_left(letter_tokenizer: TextTokenizer) -> None:
    model = Model(CONFIG, random_weights(CONFIG, seed=6), device=Device.simulate("cpu"), tokenizer=letter_tokenizer)
    rng = random.Random(1)
    prompts = [tuple(rng.randrange(5, 300) for _ in range(rng.randint(1, 7))) for _ in range(6)]
    # Five pages for up to twelve requests of one page each: mostly slots are free and pages are not.
    report = run_soak(model, SoakSpec(prompts, 200, longest=5, max_batch=12, cache_pages=5, cancelled=0.1))
    assert report.different == [] and report.leaked == []
    assert sum(report.modes.values()) == 200 and set(report.modes) == set(MODES)
    assert report.compared > 120 and report.waited > 0
    assert min(report.finishes[name] for name in ("max_tokens", "cancelled", "stop")) > 0
    for metrics in report.metrics.values():
        figures_of(metrics)
    assert report.metrics["folded"].folded + sum(report.metrics["folded"].unfolded.values()) == (
        report.metrics["folded"].forwards
    )
    assert report.metrics["cap-accept"].capped + report.metrics["cap-accept"].cut_by_schedule > 0
