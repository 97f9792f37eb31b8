"""A model is a known name, a directory with a config.json, or sizes; what is none of these is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import dspark_ops
from dspark_ops.contracts import ModelShapes, model_shapes
from dspark_ops.errors import ModelError
from dspark_ops.selection.named_model import named_shapes

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny_v41"


def test_a_directory_gives_the_sizes_of_its_config_for_one_rank_and_for_two() -> None:
    whole, half = named_shapes(str(TINY)), named_shapes(f"{TINY}/tp2")
    assert (whole.name, whole.vocab, whole.heads, whole.ranks) == ("tiny_v41", 4096, 4, 1)
    assert (half.name, half.vocab_shard, half.heads, half.ranks) == ("tiny_v41/tp2", 2048, 2, 2)


def test_a_name_that_is_no_directory_is_that_of_a_known_model() -> None:
    assert named_shapes("deepseek-v4.1-flash/tp4") == model_shapes("deepseek-v4.1-flash/tp4")
    with pytest.raises(ModelError, match=r"unknown model 'deepseek-v4.1-flahs/tp4'.*a directory with.*did you mean"):
        named_shapes("deepseek-v4.1-flahs/tp4")


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("{", "config.json: cannot be read as JSON"),
        ("[1]", "config.json: wanted one JSON object, got list"),
        (json.dumps({"hidden_size": 8}), "the keys hc_mult, num_attention_heads, .*this one has not"),
    ],
)
def test_a_config_that_states_no_sizes_is_refused_with_what_is_missing(text: str, refusal: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=refusal):
        named_shapes(str(tmp_path))


def test_a_plan_takes_a_directory_and_refuses_what_is_no_model() -> None:
    cpu = dspark_ops.Device.simulate("cpu")
    plan = dspark_ops.plan(device=cpu, model=f"{TINY}/tp2", rows=[6], operators=["argmax_rows"])
    assert (plan.model, plan.of("argmax_rows")[0].problem.axes) == ("tiny_v41/tp2", {"V": 4096})
    wrong: Any = {"hidden_size": 8}
    with pytest.raises(ModelError, match=re.escape("or ModelShapes, got dict; ModelShapes.from_config")):
        dspark_ops.plan(device=cpu, model=wrong, rows=[6])
    assert isinstance(ModelShapes.from_config(json.loads((TINY / "config.json").read_text())), ModelShapes)


def test_a_plan_leaves_out_what_failed_a_trial_run_and_says_what_happened(site: Any, monkeypatch: Any) -> None:
    site.plugin("shaky", "name='shaky', api='>=1,<2', kernels=(Kernel('argmax_rows', 'one', 'shaky_kernels:run'),)")
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "shaky")
    cpu = dspark_ops.Device.simulate("cpu")

    def chosen(**more: Any) -> Any:
        plan = dspark_ops.plan(device=cpu, model=str(TINY), rows=[6], operators=["argmax_rows"], **more)
        return plan.of("argmax_rows")[0].choices[0]

    assert chosen().kernel.id == "shaky/argmax_rows/one"
    without = chosen(quarantined={"shaky/argmax_rows/one": "signal 11"})
    assert without.kernel.id == "core/argmax_rows/reference"
    (reason,) = without.refused[0].reasons
    assert reason.code.value == "QUARANTINED" and "signal 11" in str(reason)
