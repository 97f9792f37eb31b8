"""The command line: verbs, exit codes, JSON, and errors as one readable block. Cases O24 and O25."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.cli import main
from dspark_ops.selection.catalogue import catalogue

KERNELS = (
    "name='p7', api='>=1,<2', docs='https://example.invalid/p7', kernels=("
    "Kernel('argmax_rows', 'fast', 'p7_kernels:argmax', arch=family('sm_10x'), rank=RankClass.FUSED,"
    " region=[axis('R').between(1, 16)], evidence=(('sm_103', Evidence.COMPILED),), note='one [launch]'),"
    "Kernel('argmax_rows', 'any', 'p7_kernels:argmax'))"
)


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str], site: Any) -> None:
        self.capsys = capsys
        self.site = site

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Run a command and return its exit code, stdout and stderr."""
        self.capsys.readouterr()
        code = main(words)
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err

    def json(self, *words: str, code: int = 0) -> Any:
        got, out, err = self(*words, "--json")
        assert got == code, err
        return json.loads(out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, site: Any) -> Cli:
    """The command line in an empty folder, with one made-up plugin allowed."""
    site.plugin("p7", KERNELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "p7")
    return Cli(capsys, site)


def test_devices_lists_this_machine_with_origins_and_the_whole_catalogue(cli: Cli) -> None:
    data = cli.json("devices")
    assert data["problem"] == ""
    assert all(device["origins"]["arch"] and not device["simulated"] for device in data["found"])
    assert [entry["product"] for entry in data["catalogue"]] == [product.name for product in catalogue()]
    code, out, err = cli("devices")
    assert (code, err) == (0, "")
    assert "catalogue, by architecture" in out
    assert "MI355X" in out


def test_a_driver_that_fails_is_a_finding_and_the_catalogue_is_still_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dspark_ops.cli import devices
    from dspark_ops.errors import DeviceError

    def broken() -> None:
        raise DeviceError("the NVIDIA driver cannot be asked")

    monkeypatch.setattr(devices, "probe_all", broken)
    code, out, _ = cli("devices")
    assert code == 1
    assert "This machine: the NVIDIA driver cannot be asked" in out
    assert "GB300" in out
    assert cli.json("devices", code=1)["found"] == []


def test_plugins_lists_what_loaded_and_what_is_blocked(cli: Cli) -> None:
    cli.site.plugin("p8")
    data = cli.json("plugins")
    (plugin,) = data["plugins"]
    assert (plugin["name"], plugin["distribution"], plugin["api"]) == ("p7", "dist-p7", ">=1,<2")
    assert plugin["kernels"] == ["p7/argmax_rows/any", "p7/argmax_rows/fast"]
    assert {failure["stage"] for failure in data["failures"]} == {"blocked"}
    code, out, _ = cli("plugins")
    assert code == 0
    assert "one [launch]" in out, "square brackets of a note are text, not markup"
    assert "sm_103 compiled" in out


def test_a_broken_plugin_is_a_finding_with_its_cause_and_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "p7,p1")
    cli.site.plugin("p1", before="raise OSError('libfoo.so.2: not found')")
    code, out, _ = cli("plugins")
    assert code == 1
    assert "OSError: libfoo.so.2: not found" in out
    assert "Traceback" not in out
    code, out, _ = cli("plugins", "--traceback")
    assert "Traceback (most recent call last)" in out
    broken = [failure for failure in cli.json("plugins", code=1)["failures"] if failure["stage"] != "blocked"]
    assert [(failure["name"], failure["stage"]) for failure in broken] == [("p1", "import")]


def test_a_strict_plugin_policy_does_not_stop_the_verb_that_shows_failures(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "p7,p1")
    cli.site.plugin("p1", before="raise OSError('gone')")
    (tmp_path / "dspark-ops.toml").write_text('[policy]\nplugin_error = "fail"\n')
    assert cli("plugins")[0] == 1
    code, _, err = cli("plan", "--device", "sm_103")
    assert code == 1
    assert err.startswith(
        "dspark-ops: policy.plugin_error is 'fail' (dspark-ops.toml:2), and plugins could not be loaded"
    )


def test_plan_says_what_serves_each_operator(cli: Cli) -> None:
    data = cli.json("plan", "--device", "sm_103", "--rows", "1-32")
    assert data["plan"]["device"]["arch"]["name"] == "sm_103"
    assert data["digest"].startswith("sha256:")
    (argmax,) = [item for item in data["plan"]["selections"] if item["problem"]["operator"] == "argmax_rows"]
    assert [(choice["rows"], choice["kernel"]["id"]) for choice in argmax["choices"]] == [
        ("1-16", "p7/argmax_rows/fast"),
        ("17-32", "p7/argmax_rows/any"),
    ]
    code, out, err = cli("plan", "--device", "sm_103", "--rows", "1-32")
    assert (code, err) == (0, "")
    assert data["digest"] in out
    assert "refused p7/argmax_rows/fast: R: wanted 1 <= R <= 16, got 17-32" in " ".join(out.split())


def test_the_default_model_is_one_rank_of_four(cli: Cli) -> None:
    assert cli.json("plan", "--device", "cpu", "--rows", "6")["plan"]["model"] == "deepseek-v4.1-flash/tp4"


def test_plan_prints_the_plan_that_the_library_reads_back(cli: Cli) -> None:
    from dspark_ops import Plan

    data = cli.json("plan", "--device", "sm_103", "--rows", "6")
    assert Plan.from_json(json.dumps(data["plan"])).digest == data["digest"]


def test_plan_uses_the_configured_simulated_device(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[device]\nsimulate = "MI355X"\n')
    data = cli.json("plan", "--rows", "6", "--config", "mine.toml")
    assert data["plan"]["device"]["name"] == "AMD Instinct MI355X"
    over = cli.json("plan", "--rows", "6", "--config", "mine.toml", "--device", "H100")
    assert over["plan"]["device"]["arch"]["name"] == "sm_90"


def test_o24_a_weaker_class_than_required_is_a_finding_under_the_policy_warn(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text(
        '[policy]\nfallback = "warn"\n[ops.argmax_rows]\nrequire_class = "fused"\n'
    )
    words = ("explain", "argmax_rows", "--device", "sm_103", "--rows", "17")
    code, out, err = cli(*words)
    assert code == 1
    assert "chosen, weaker than required" in out
    assert err.startswith(
        "dspark-ops: warning: argmax_rows at verify, rows 17: served by p7/argmax_rows/any (portable)"
    )
    assert len(cli.json(*words, code=1)["findings"]) == 1


def test_o24_a_pinned_kernel_that_may_not_serve_ends_with_its_reasons(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.toml").write_text('[ops.argmax_rows]\npin = "p7/argmax_rows/fast"\n')
    code, out, err = cli("plan", "--device", "H200", "--rows", "6")
    assert (code, out) == (1, "")
    assert "the pinned kernel p7/argmax_rows/fast may not serve it (ops.argmax_rows.pin, dspark-ops.toml:2)" in err
    assert "wanted sm_10x, got sm_90" in err
    assert "Traceback" not in err


def test_explain_shows_candidates_reasons_settings_and_what_to_change(cli: Cli) -> None:
    words = ("explain", "argmax_rows", "--device", "H200", "--rows", "6")
    code, out, err = cli(*words)
    assert (code, err) == (0, "")
    flat = " ".join(out.split())
    assert (
        "p7/argmax_rows/fast fused declared DEVICE_ARCH arch sm_10x sm_90 catalogue a device with arch sm_10x" in flat
    )
    assert "1 p7/argmax_rows/any portable declared chosen" in flat
    assert "2 core/argmax_rows/reference reference declared stand-by" in flat
    assert "policy.fallback = allow (built-in for a simulated accelerator)" in flat
    data = cli.json(*words)
    (selection,) = data["selections"]
    (refused,) = selection["choices"][0]["refused"]
    assert refused["reasons"][0]["code"] == "DEVICE_ARCH"
    assert data["settings"][-1].startswith("policy.fallback = allow")


def test_explain_shows_a_decomposition_as_a_tree(cli: Cli) -> None:
    code, out, _ = cli("explain", "accept_tail", "--device", "sm_103", "--rows", "6")
    assert code == 0
    assert "├── argmax_rows rows 36: p7/argmax_rows/any" in out
    assert "└── accept_finalize rows 6: core/accept_finalize/reference" in out


def test_explain_can_show_one_site(cli: Cli) -> None:
    data = cli.json("explain", "mhc_combine", "--device", "cpu", "--rows", "6", "--site", "draft")
    assert [selection["problem"]["site"] for selection in data["selections"]] == ["draft"]
    code, _, err = cli("explain", "mhc_combine", "--device", "cpu", "--site", "drft")
    assert code == 2
    assert err == "dspark-ops: --site drft: mhc_combine is called at verify, draft; did you mean 'draft'?\n"


def test_o25_plan_reports_all_typing_errors_of_a_file_and_applies_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "typos.toml").write_text(
        '[ops.argmx]\npin = "triton/argmx/one"\n[ops.argmax_rows]\npin = "tritn"\nrequre_class = "fused"\n'
        "[ops.moe_gate_topk]\nrequire_class = 10\n"
    )
    code, out, err = cli("plan", "--config", "typos.toml", "--device", "sm_103")
    assert (code, out) == (2, "")
    assert err.startswith("dspark-ops: the configuration has 4 faults, so none of it is applied:\n")
    assert err.count("did you mean") == 3
    assert [line.strip().split(": ")[0] for line in err.splitlines()[1:]] == [
        f"typos.toml:{line}" for line in (1, 4, 5, 7)
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plam",), "no verb 'plam': wanted"),
        (("plan", "--device", "sm_120"), "no device with architecture sm_120 to simulate"),
        (("plan", "--device", "cpu", "--model", "deepseek-v4.1-flsh"), "did you mean 'deepseek-v4.1-flash'?"),
        (("plan", "--device", "cpu", "--rows", "1-x"), "--rows: cannot read row counts from '1-x'"),
        (("plan", "--device", "cpu", "--rows", "1-9999999999999"), "--rows: "),
        (
            ("plan", "--device", "cpu", "--which", "0"),
            "--device cpu is simulated, --which 0 is a device of this machine",
        ),
        (("plan", "--which", "99"), "no device 99: this machine has 0: "),
        (("plan", "--device", "cpu", "--rows", "6", "--write", "no/such/folder/x"), "--write no/such/folder/x: "),
        (("plan", "--write", "--check"), "--write, --check and --diff are three different things to do"),
        (("plan", "a.lock"), "a.lock: a lock file is named, but nothing to do with it: give --write or --check"),
        (("plan", "--device", "cpu", "--diff", "none.lock"), "--diff none.lock: there is no such file"),
        (("lock", "upgrade"), "there is no lock file dspark-ops.lock to upgrade: run  dspark-ops plan --write"),
        (("plan", "--config", "absent.toml"), "absent.toml: no such file"),
        (("explain", "argmx_rows"), "unknown operator 'argmx_rows'; did you mean 'argmax_rows'?"),
    ],
)
def test_misuse_ends_with_code_two_and_one_block_on_stderr(cli: Cli, words: tuple[str, ...], says: str) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert err.startswith("dspark-ops: ")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("plan", "--nonsense"), ("explain",), ()])
def test_words_that_no_verb_takes_are_misuse_too(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli(*words)[0] == 2


def test_an_unknown_variable_is_misuse_of_every_planning_verb(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_OPS_PLUGIN", "p7")
    for words in (("plugins",), ("plan", "--device", "cpu"), ("explain", "argmax_rows", "--device", "cpu")):
        code, _, err = cli(*words)
        assert code == 2
        assert "did you mean 'DSPARK_OPS_PLUGINS'?" in err


def test_help_and_version_end_with_code_zero(cli: Cli) -> None:
    code, out, _ = cli("--help")
    assert code == 0
    assert all(verb in out for verb in ("devices", "plugins", "plan", "explain"))
    assert cli("explain", "--help")[0] == 0
    assert cli("--version")[1].startswith("dspark-ops 0.")


def test_a_verb_whose_package_is_missing_breaks_no_other(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from dspark_ops import cli as package

    cli.site.module("verbs.needy", "import no_such_library\n")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(cli.site.path / "verbs")])
    code, out, _ = cli("--help")
    assert code == 0
    assert "No module named 'no_such_library'" in " ".join(out.split())
    assert cli("devices")[0] == 0
    code, _, err = cli("needy", "--any", "words")
    assert (code, err) == (2, "dspark-ops: the verb needy cannot run here: No module named 'no_such_library'\n")


def test_a_log_level_from_the_environment_is_followed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    monkeypatch.setenv("DSPARK_OPS_LOG", "debug")
    assert cli("plugins")[0] == 0
    assert logging.getLogger("dspark_ops").level == logging.DEBUG
    monkeypatch.delenv("DSPARK_OPS_LOG")
    assert cli("plugins")[0] == 0
    assert logging.getLogger("dspark_ops").level == logging.WARNING
