"""The calls of a decode cycle, counted; and what the two benches say where there is no GPU."""

from __future__ import annotations

from collections import Counter

import pytest

from dspark_ops import contracts
from dspark_ops.bench.cycle import preset_settings
from dspark_ops.bench.cycle_steps import GEMM, cycle_layout, cycle_steps
from dspark_ops.bench.peers import Peer, load_peer, peer_names
from dspark_ops.cli import main
from dspark_ops.errors import ConfigError, ModelError
from dspark_ops.selection.settings import OperatorSettings, Settings

MODEL = "deepseek-v4.1-flash/tp4"
SHAPES = contracts.model_shapes(MODEL)


def steps(rows: int):
    return list(cycle_steps(cycle_layout(MODEL), SHAPES, rows))


def test_a_cycle_has_the_counts_of_the_model():
    calls = Counter((step.operator, step.site) for step in steps(6))
    assert calls["mhc_mix_sinkhorn", "verify"] == calls["mhc_post", "verify"] == 80  # two in each of 40 layers
    assert calls["sparse_mla_decode", "verify"] == 40
    assert calls["sparse_mla_decode", "draft"] == 3
    assert calls["compress_c2", "verify"] == 3
    assert calls["compress_c1", "verify"] == 1
    assert calls["index_scores", "verify"] == 8
    assert calls["candidate_blocks", "verify"] == 5  # layer 20 and the index layers behind it
    assert calls["engram_gather", "verify"] == 2
    assert calls["mla_sched_meta", "verify"] + calls["mla_sched_meta", "draft"] == 4
    assert calls["accept_tail", "verify"] == calls["markov_block", "draft"] == 1


def test_rows_are_those_of_each_operators_own_axis():
    rows = {(step.operator, step.site): step.rows for step in steps(24)}
    assert rows["mhc_post", "verify"] == 24
    assert rows["mhc_post", "draft"] == 20  # four requests of five drafts
    assert rows["accept_tail", "verify"] == rows["markov_block", "draft"] == 4
    assert rows["k_norm_rope_store", "commit"] == 24


def test_every_call_is_of_a_known_operator_at_one_of_its_places():
    for step in steps(6):
        if step.operator != GEMM:
            assert step.site in [site.name for site in contracts.get(step.operator).sites(SHAPES)]


def test_a_step_that_is_no_whole_number_of_requests_is_refused():
    with pytest.raises(ModelError, match="6 rows per request: wanted a multiple, got 8"):
        steps(8)


def test_a_model_without_known_layers_is_refused_with_those_that_are_known():
    with pytest.raises(ModelError, match=r"wanted deepseek-v4\.1-flash"):
        cycle_layout("deepseek-v4.1-flush/tp4")


def test_the_parts_plan_takes_whole_kernels_from_fused_operators_alone():
    made = preset_settings("parts", Settings())
    assert made.of("accept_tail").order == ("core/*/composed", "core/*/reference")
    assert made.of("argmax_rows") == OperatorSettings()


def test_a_plan_that_is_neither_preset_nor_file_is_refused():
    with pytest.raises(ConfigError, match="did you mean"):
        preset_settings("refrence", Settings())


@pytest.mark.parametrize("verb", ["micro", "cycle"])
def test_without_a_gpu_a_bench_says_so_and_is_misuse(verb, capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", verb]) == 2
    assert "times kernels on a GPU" in capsys.readouterr().err


def test_too_few_rounds_are_misuse(capsys):
    assert main(["bench", "micro", "--rounds", "3"]) == 2
    assert "wanted 5 or more" in capsys.readouterr().err


def test_a_peer_is_a_file_with_a_function(tmp_path):
    (tmp_path / "other_peer.py").write_text(
        "from dspark_ops.bench.peers import Peer\n"
        "def peer():\n    return Peer('other', 'other 1.0', lambda contract: 'it has none')\n"
    )
    assert peer_names(tmp_path) == ["other"]
    found = load_peer("other", tmp_path)
    assert isinstance(found, Peer)
    assert found.adapter(contracts.get("argmax_rows")) == "it has none"


def test_a_peer_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    (tmp_path / "sglang_peer.py").write_text("")
    with pytest.raises(ConfigError, match=r"has sglang.*did you mean"):
        load_peer("sglan", tmp_path)
    with pytest.raises(ConfigError, match="AttributeError"):
        load_peer("sglang", tmp_path)
