"""Configuration: precedence, origins, and one report of every fault with its line. Case O25."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.api import RankClass
from dspark_ops.config import load_configuration, load_settings
from dspark_ops.errors import ConfigError
from dspark_ops.selection.settings import BUILT_IN, OperatorSettings, Settings

TYPOS = """\
[ops.argmx]                      # unknown operator
pin = "triton/argmx/one_launch"

[ops.argmax_rows]
pin = "tritn"                    # no kernel id
requre_class = "fused"           # unknown key

[ops.moe_gate_topk]
require_class = 10               # wrong type
"""


def load(directory: Path, config: Any = None, cli: Any = None, **environ: str) -> Settings:
    return load_settings(config, cli, {f"DSPARK_OPS_{key}": value for key, value in environ.items()}, directory)


def faults(directory: Path, config: Any = None, cli: Any = None, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load(directory, config, cli, **environ)
    first, *lines = str(error.value).splitlines()
    assert first.endswith("so none of it is applied:")
    return [line.strip() for line in lines]


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


@pytest.mark.parametrize("value", ["triton,", "none,triton", "Triton", "a b", "triton/argmax_rows"])
def test_o25_a_plugins_variable_that_is_no_list_of_names_is_an_error(tmp_path: Path, value: str) -> None:
    (line,) = faults(tmp_path, PLUGINS=value)
    assert line == (
        "environment DSPARK_OPS_PLUGINS: wrong value: "
        f"wanted names of plugins separated by commas, or 'none' alone, got {value!r}"
    )


@pytest.mark.parametrize("name", ["CONFIG", "LOCK", "PROFILE", "PLUGINS", "LOG"])
@pytest.mark.parametrize("value", ["", "  "])
def test_o25_an_empty_variable_is_an_error_and_not_a_guess(tmp_path: Path, name: str, value: str) -> None:
    (line,) = faults(tmp_path, **{name: value})
    expected = (
        f"environment DSPARK_OPS_{name}: empty value: wanted a value, got ''; unset it if it should have no effect"
    )
    assert line == expected


@pytest.mark.parametrize(
    ("name", "value", "wanted", "guess"),
    [
        ("PROFILE", "prd", "dev or ci or prod", "prod"),
        ("PROFILE", "CI", "dev or ci or prod", None),
        ("PROFILE", "1", "dev or ci or prod", None),
        ("LOG", "debg", "debug or info or warning or error", "debug"),
        ("LOG", "true", "debug or info or warning or error", None),
    ],
)
def test_o25_a_variable_with_a_wrong_value_names_itself_the_value_and_what_is_allowed(
    tmp_path: Path, name: str, value: str, wanted: str, guess: str | None
) -> None:
    (line,) = faults(tmp_path, **{name: value})
    hint = f"; did you mean {guess!r}?" if guess else ""
    assert line == f"environment DSPARK_OPS_{name}: wrong value: wanted {wanted}, got {value!r}{hint}"


def test_o25_an_unknown_variable_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, PLUGIN="triton")
    assert line.startswith("environment DSPARK_OPS_PLUGIN: unknown variable: wanted one of DSPARK_OPS_CONFIG, ")
    assert line.endswith("did you mean 'DSPARK_OPS_PLUGINS'?")


def test_variables_of_other_programs_are_not_looked_at(tmp_path: Path) -> None:
    assert load_settings(environ={"DSPARK_CONFIG": "x", "PATH": "y"}, directory=tmp_path) == Settings()


def test_o25_typing_errors_are_reported_together_with_lines_and_nearest_names(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text(TYPOS)
    lines = faults(tmp_path)
    assert [line.split(": ")[0] for line in lines] == [f"dspark-ops.toml:{number}" for number in (1, 5, 6, 9)]
    assert lines[0].endswith(
        "unknown operator: wanted the name of an operator, got 'argmx'; did you mean 'argmax_rows'?"
    )
    assert (
        "not a kernel id: wanted plugin/operator/variant, got 'tritn'; did you mean 'tritn/argmax_rows/...'?"
        in lines[1]
    )
    assert "unknown key ops.argmax_rows.requre_class: wanted one of deny, order, pin, require_class" in lines[2]
    assert lines[2].endswith("did you mean 'require_class'?")
    assert (
        "wrong value of ops.moe_gate_topk.require_class: wanted fused or portable or composed or reference" in lines[3]
    )
    assert lines[3].endswith("got 10 (a whole number)")


def test_faults_of_all_sources_stand_in_one_report(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text('[policy]\nfallback = "fial"\n')
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n[tool.dspark-ops.device]\nsimulat = 'H100'\n")
    lines = faults(tmp_path, "missing.toml", {"plugins": {"deny": "triton"}}, LOG="loud")
    assert [line.split(":")[0] for line in lines] == [
        "environment DSPARK_OPS_LOG",
        "missing.toml",
        "command line",
        "dspark-ops.toml",
        "pyproject.toml",
    ]
    assert "wrong type of plugins.deny: wanted a list of texts, got 'triton' (text)" in lines[2]
    assert lines[4].startswith("pyproject.toml:4: unknown key device.simulat:")


def test_a_wrong_leaf_is_refused_even_where_a_stronger_source_would_hide_it(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text('[policy]\nfallback = "fial"\n')
    (line,) = faults(tmp_path, {"policy": {"fallback": "warn"}})
    assert line.startswith("dspark-ops.toml:2:")


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"dispatch": {}}, "unknown table dispatch: wanted one of device, ops, plugins, policy, got dispatch"),
        ({"policy": "strict"}, "wrong type of policy: wanted a table, got 'strict' (text)"),
        ({"ops": {"argmax_rows": "triton"}}, "wrong type of ops.argmax_rows: wanted a table, got 'triton' (text)"),
        ({"plugins": {"deny": ["a", 1]}}, "wrong type of plugins.deny.1: wanted text, got 1 (a whole number)"),
        ({"policy": {"fallback": True}}, "wanted fail or warn or allow, got True (a boolean)"),
        ({"device": {"simulate": "sm_120"}}, "unknown device: wanted a device of the catalogue, got 'sm_120'"),
        ({"plugins": {"allow": ["Triton"]}}, "wrong plugin name: wanted ^[a-z][a-z0-9_]*$, got 'Triton'"),
        (
            {"ops": {"argmax_rows": {"pin": "triton/accept_greedy/one"}}},
            "kernel of another operator: wanted plugin/argmax_rows/variant, got 'triton/accept_greedy/one'",
        ),
        (
            {"ops": {"argmax_rows": {"deny": ["triton"]}}},
            "matches no kernel id: wanted a kernel id plugin/operator/variant, or a glob such as 'triton/*', "
            "got 'triton'; did you mean 'triton/*'?",
        ),
        ({"ops": {"argmax_rows": {"order": ["Triton/*"]}}}, "matches no kernel id"),
        ({"ops": {"argmax_rows": {"order": ["a/b/c/*"]}}}, "matches no kernel id"),
    ],
)
def test_each_kind_of_fault_says_what_was_wanted_and_what_was_got(tmp_path: Path, table: Any, fault: str) -> None:
    (line,) = faults(tmp_path, table)
    assert line.startswith("argument: ")
    assert fault in line


@pytest.mark.parametrize("glob", ["triton/*", "*", "*/reference", "triton/argmax_rows/one_launch", "nvidia_sm10[0x]/*"])
def test_globs_that_can_match_an_id_are_accepted(tmp_path: Path, glob: str) -> None:
    assert load(tmp_path, {"ops": {"argmax_rows": {"deny": [glob]}}}).of("argmax_rows").deny == (glob,)


def test_a_file_that_is_not_toml_gives_its_line(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text("[policy]\nfallback = fail\n")
    (line,) = faults(tmp_path)
    assert line.startswith("dspark-ops.toml:2: not valid TOML: ")


def test_a_file_that_is_not_text_or_not_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"[policy]\n\xff\xfe")
    (line,) = faults(tmp_path, tmp_path / "bad.toml")
    assert line.endswith("not a text file: wanted UTF-8, got byte 0xff at 9")
    (line,) = faults(tmp_path, CONFIG=str(tmp_path))
    assert "cannot be read" in line
    (line,) = faults(tmp_path, 3)
    assert line == "argument: wrong type of config: wanted a path, a mapping or None, got 3 (int)"


def test_a_broken_pyproject_that_does_not_speak_of_this_library_is_not_our_matter(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project\n")
    assert load(tmp_path) == Settings()
    (tmp_path / "pyproject.toml").write_text("[tool.dspark-ops\n")
    (line,) = faults(tmp_path)
    assert line.startswith("pyproject.toml:1: not valid TOML")


def test_a_file_that_is_named_and_found_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text('[device]\nsimulate = "cpu"\n')
    configuration = load_configuration("dspark-ops.toml", environ={}, directory=tmp_path)
    assert configuration.sources == ("dspark-ops.toml",)


def test_a_lock_file_is_kept_and_said_not_to_be_compared(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="DSPARK_OPS_LOCK names 'a.lock', but this version does not compare plans"):
        configuration = load_configuration(
            environ={"DSPARK_OPS_LOCK": "a.lock", "DSPARK_OPS_LOG": "info"}, directory=tmp_path
        )
    assert (configuration.lock, configuration.log) == ("a.lock", "info")


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "none")
    monkeypatch.chdir(tmp_path)
    assert load_settings().allow == ()


def test_naming_the_package_loads_no_pydantic() -> None:
    code = "import sys, dspark_ops.config, dspark_ops.selection.discovery; print('pydantic' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
