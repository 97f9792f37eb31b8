"""Configuration: precedence, origins, and what each variable sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.api import Evidence, RankClass
from dspark_ops.config import load_configuration, load_settings
from dspark_ops.errors import ConfigError
from dspark_ops.selection.settings import BUILT_IN, Files, OperatorSettings, Policy, Settings


def load(directory: Path, config: Any = None, cli: Any = None, **environ: str) -> Settings:
    return load_settings(config, cli, {f"DSPARK_OPS_{key}": value for key, value in environ.items()}, directory)


def test_nothing_configured_gives_built_in_values(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings == Settings()
    assert settings.origin("policy.fallback") == BUILT_IN


def test_a_file_sets_every_leaf_and_each_keeps_its_line(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text(
        "[policy]\n"
        'fallback = "warn"\n'
        'require_class = "fused"\n'
        'plugin_error = "fail"\n'
        "\n"
        "[plugins]\n"
        'allow = ["triton"]\n'
        'deny = [\n  "amd_gfx950",\n]\n'
        "[device]\n"
        'simulate = "sm_103"\n'
        "[ops]\n"
        'argmax_rows.pin = "triton/argmax_rows/one_launch"\n'
        'accept_greedy = { deny = ["triton/*"], order = ["*/reference", "x/y/z"], require_class = "reference" }\n'
    )
    settings = load(tmp_path)
    assert settings.policy.fallback == "warn"
    assert settings.policy.require_class is RankClass.FUSED
    assert settings.policy.plugin_error == "fail"
    assert (settings.allow, settings.deny, settings.simulate) == (("triton",), ("amd_gfx950",), "sm_103")
    assert settings.of("argmax_rows") == OperatorSettings(pin="triton/argmax_rows/one_launch")
    assert settings.of("accept_greedy") == OperatorSettings(
        deny=("triton/*",), order=("*/reference", "x/y/z"), require_class=RankClass.REFERENCE
    )
    assert dict(settings.origins) == {
        "policy.fallback": "dspark-ops.toml:2",
        "policy.require_class": "dspark-ops.toml:3",
        "policy.plugin_error": "dspark-ops.toml:4",
        "plugins.allow": "dspark-ops.toml:7",
        "plugins.deny": "dspark-ops.toml:8",
        "device.simulate": "dspark-ops.toml:12",
        "ops.argmax_rows.pin": "dspark-ops.toml:14",
        "ops.accept_greedy.deny": "dspark-ops.toml:15",
        "ops.accept_greedy.order": "dspark-ops.toml:15",
        "ops.accept_greedy.require_class": "dspark-ops.toml:15",
    }


def _sources(directory: Path) -> list[tuple[str, dict[str, Any], str]]:
    """Every source of ``policy.fallback`` from weak to strong: what to write or pass, and the origin to expect."""
    (directory / "pyproject.toml").write_text(
        '[tool.dspark-ops.policy]\nfallback = "allow"\nrequire_class = "reference"\n'
    )
    (directory / "given.toml").write_text('[policy]\n\n\nfallback = "fail"\n')
    return [
        ("allow", {}, "pyproject.toml:2"),
        ("warn", {"file": '[policy]\nfallback = "warn"\n'}, "dspark-ops.toml:2"),
        ("fail", {"CONFIG": "given.toml"}, "given.toml:4"),
        ("warn", {"PROFILE": "dev"}, "environment DSPARK_OPS_PROFILE=dev"),
        ("allow", {"cli": {"policy": {"fallback": "allow"}}}, "command line"),
        ("fail", {"config": {"policy": {"fallback": "fail"}}}, "argument"),
    ]


@pytest.mark.parametrize("strongest", range(6))
def test_the_stronger_source_wins_and_names_itself(tmp_path: Path, strongest: int) -> None:
    steps = _sources(tmp_path)[: strongest + 1]
    given: dict[str, Any] = {}
    for _, extra, _ in steps:
        given.update(extra)
    if text := given.pop("file", None):
        (tmp_path / "dspark-ops.toml").write_text(text)
    settings = load(tmp_path, **given)
    value, _, origin = steps[-1]
    assert (settings.policy.fallback, settings.origin("policy.fallback")) == (value, origin)
    assert settings.policy.require_class is RankClass.REFERENCE, "leaves that only a weaker source sets are kept"


def test_a_file_given_as_argument_takes_the_place_of_the_environments(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[device]\nsimulate = "H100"\n')
    (tmp_path / "b.toml").write_text('[device]\nsimulate = "H200"\n')
    settings = load(tmp_path, "a.toml", CONFIG="b.toml")
    assert (settings.simulate, settings.origin("device.simulate")) == ("H100", "a.toml:2")


def test_tables_merge_by_key_and_lists_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text(
        '[plugins]\ndeny = ["a", "b"]\n[ops.argmax_rows]\ndeny = ["a/*", "b/*"]\nrequire_class = "fused"\n'
    )
    settings = load(
        tmp_path, {"ops": {"argmax_rows": {"deny": ("c/*",), "require_class": None}}, "plugins": {"deny": []}}
    )
    assert settings.of("argmax_rows") == OperatorSettings(deny=("c/*",), require_class=RankClass.FUSED)
    assert settings.deny == ()
    assert settings.origin("ops.argmax_rows.require_class") == "dspark-ops.toml:5"


def test_enumerations_are_taken_from_a_program(tmp_path: Path) -> None:
    settings = load(tmp_path, {"policy": {"require_class": RankClass.FUSED}})
    assert settings.policy.require_class is RankClass.FUSED


def test_settings_that_are_complete_are_returned_as_they_are() -> None:
    settings = Settings(deny=("x",))
    assert load_settings(settings, environ={"DSPARK_OPS_PROFILE": "nonsense"}) is settings
    with pytest.raises(ConfigError, match="nothing can be merged into it"):
        load_settings(settings, cli={"policy": {}})


@pytest.mark.parametrize(
    ("profile", "fallback", "plugin_error"), [("dev", "warn", "warn"), ("ci", "fail", "fail"), ("prod", "fail", "warn")]
)
def test_a_profile_is_a_preset_of_the_policy(tmp_path: Path, profile: str, fallback: str, plugin_error: str) -> None:
    settings = load(tmp_path, PROFILE=profile)
    assert (settings.policy.fallback, settings.policy.plugin_error) == (fallback, plugin_error)


@pytest.mark.parametrize(
    ("value", "allow"), [("triton", ("triton",)), (" triton , amd_gfx950 ", ("triton", "amd_gfx950")), ("none", ())]
)
def test_the_plugins_variable_lists_names_or_none(tmp_path: Path, value: str, allow: tuple[str, ...]) -> None:
    settings = load(tmp_path, PLUGINS=value)
    assert settings.allow == allow
    assert settings.origin("plugins.allow") == "environment DSPARK_OPS_PLUGINS"


def test_variables_of_other_programs_are_not_looked_at(tmp_path: Path) -> None:
    assert load_settings(environ={"DSPARK_CONFIG": "x", "PATH": "y"}, directory=tmp_path) == Settings()


@pytest.mark.parametrize("glob", ["triton/*", "*", "*/reference", "triton/argmax_rows/one_launch", "nvidia_sm10[0x]/*"])
def test_globs_that_can_match_an_id_are_accepted(tmp_path: Path, glob: str) -> None:
    assert load(tmp_path, {"ops": {"argmax_rows": {"deny": [glob]}}}).of("argmax_rows").deny == (glob,)


def test_a_file_that_is_named_and_found_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text('[device]\nsimulate = "cpu"\n')
    configuration = load_configuration("dspark-ops.toml", environ={}, directory=tmp_path)
    assert configuration.sources == ("dspark-ops.toml",)


def test_the_lock_variable_names_the_lock_file_over_a_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text('[files]\nlock = "b.lock"\n[policy]\nlock = "require"\n')
    configuration = load_configuration(
        environ={"DSPARK_OPS_LOCK": "a.lock", "DSPARK_OPS_LOG": "info"}, directory=tmp_path
    )
    settings = configuration.settings
    assert (settings.files.lock, settings.policy.lock, configuration.log) == ("a.lock", "require", "info")
    assert settings.origin("files.lock") == "environment DSPARK_OPS_LOCK"
    assert settings.origin("policy.lock") == "dspark-ops.toml:4"


def test_files_evidence_and_shared_layouts_are_read_with_their_origins(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text(
        '[policy]\nevidence = "conformant"\nsmoke = "on"\nsmoke_seconds = 30\n'
        '[files]\nevidence = ["a.json", "b.json"]\nknown_bad = ["c.json"]\nmeasured = "d.json"\n'
        '[layouts]\nkv_page = ["kv_v41", "kv_v41_new"]\n'
    )
    settings = load_settings(environ={}, directory=tmp_path)
    assert settings.policy == Policy(evidence=Evidence.CONFORMANT, smoke="on", smoke_seconds=30)
    assert settings.files == Files(evidence=("a.json", "b.json"), known_bad=("c.json",), measured="d.json")
    assert settings.layouts == {"kv_page": ("kv_v41", "kv_v41_new")}
    assert settings.origin("layouts.kv_page") == "dspark-ops.toml:10"


def test_a_time_that_nothing_can_meet_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text("[policy]\nsmoke_seconds = 0\n")
    with pytest.raises(ConfigError, match=r"policy\.smoke_seconds: wanted at least 1, got 0"):
        load_settings(environ={}, directory=tmp_path)


def test_wrong_layouts_and_a_wrong_number_are_faults_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text(
        '[policy]\nsmoke_seconds = "30"\n[layouts]\nkv_pages = ["kv_v4"]\nkv_page = ["kv_v14"]\nindex_k_page = []\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_settings(environ={}, directory=tmp_path)
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "dspark-ops.toml:2: wrong type of policy.smoke_seconds: wanted a whole number, got '30' (text)",
        "dspark-ops.toml:4: unknown shared layout: wanted kv_page or index_k_page or mxfp8_scales, got 'kv_pages'; "
        "did you mean 'kv_page'?",
        "dspark-ops.toml:5: unknown layout of kv_page: wanted kv_v4 or kv_v41 or kv_v41_fp4 or kv_v41_new or "
        "kv_v41_fp4_new, got 'kv_v14'; did you mean 'kv_v4'?",
        "dspark-ops.toml:6: no layout: wanted the layouts that the caller can make, got []",
    ]


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "none")
    monkeypatch.chdir(tmp_path)
    assert load_settings().allow == ()


def test_naming_the_package_loads_no_pydantic() -> None:
    code = "import sys, dspark_ops.config, dspark_ops.selection.discovery; print('pydantic' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
