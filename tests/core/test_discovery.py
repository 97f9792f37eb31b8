"""Discovery: broken plugins, plugins seen twice, equal names and equal ranks. Case O26."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.errors import PluginError
from dspark_ops.selection.discovery import discover, find_plugins, survey
from dspark_ops.selection.registry import PluginFailure, Registry
from dspark_ops.selection.settings import Policy, Settings

ONE_KERNEL = (
    "name={name!r}, api='>=1,<2', "
    "kernels=(Kernel('argmax_rows', 'one', '{name}_kernels:argmax', rank=RankClass.FUSED),)"
)


def fields(name: str) -> str:
    return ONE_KERNEL.format(name=name)


def case_o26(site: Any) -> None:
    """Write P1 to P8 of the case; P5 is the same folder seen through a link."""
    site.plugin("p1", before="raise OSError('libfoo.so.2: cannot open shared object file')")
    site.distribution("dist-p2", "2.0", {"p2": "p4_plugin:absent"})
    site.plugin("p3", inside="Kernel('argmax_rows', 'first', 'm:f'); raise ValueError('after its first kernel')")
    site.plugin("p4", fields("p4"))
    site.distribution("dist-p6", "6.0", {"taken": "p4_plugin"})
    site.distribution("other-p6", "6.1", {"taken": "p4_plugin"})
    site.plugin("p8", fields("p8"))
    site.plugin("p7", fields("p7"))
    link = site.path.parent / "link"
    link.symlink_to(site.path, target_is_directory=True)


def look(site: Any, *more: str, settings: Settings | None = None) -> Registry:
    return survey(settings or Settings(), [str(site.path), *more])


def by_name(registry: Registry) -> dict[str, PluginFailure]:
    return {failure.name: failure for failure in registry.failures}


def test_o26_good_plugins_load_beside_broken_ones_and_each_failure_has_its_cause(site: Any) -> None:
    case_o26(site)
    registry = look(site, str(site.path.parent / "link"))
    assert [(record.name, record.distribution, record.version) for record in registry.plugins] == [
        ("p4", "dist-p4", "1.0"),
        ("p7", "dist-p7", "1.0"),
        ("p8", "dist-p8", "1.0"),
    ]
    failures = by_name(registry)
    assert set(failures) == {"p1", "p2", "p3", "taken"}
    assert (failures["p1"].stage, failures["p1"].cause) == (
        "import",
        "OSError: libfoo.so.2: cannot open shared object file",
    )
    assert (failures["p2"].distribution, failures["p2"].version, failures["p2"].entry_point) == (
        "dist-p2",
        "2.0",
        "p4_plugin:absent",
    )
    assert failures["p2"].cause == "AttributeError: module 'p4_plugin' has no attribute 'absent'"
    assert (failures["p3"].stage, failures["p3"].cause) == ("hook", "ValueError: after its first kernel")
    assert "p3_plugin.py" in failures["p3"].detail


def test_o26_nothing_of_a_plugin_that_fails_midway_is_kept(site: Any) -> None:
    case_o26(site)
    assert [kernel.id for kernel in look(site).of("argmax_rows")] == [
        "p4/argmax_rows/one",
        "p7/argmax_rows/one",
        "p8/argmax_rows/one",
    ]


def test_o26_one_distribution_seen_through_two_path_entries_counts_once(site: Any) -> None:
    site.plugin("p4", fields("p4"))
    link = site.path.parent / "link"
    link.symlink_to(site.path, target_is_directory=True)
    registry = look(site, str(link), str(site.path))
    assert len(registry.plugins) == 1
    assert registry.failures == ()


def test_o26_two_distributions_with_one_plugin_name_load_neither_and_both_are_named(site: Any) -> None:
    case_o26(site)
    taken = [failure for failure in look(site).failures if failure.name == "taken"]
    assert [failure.distribution for failure in taken] == ["dist-p6", "other-p6"]
    assert {failure.stage for failure in taken} == {"duplicate"}
    for failure in taken:
        assert "dist-p6 6.0 (p4_plugin) and other-p6 6.1 (p4_plugin): none of them is loaded" in failure.cause


def test_a_name_that_is_denied_settles_nothing_between_two_claimants(site: Any) -> None:
    site.distribution("one-dist", "1", {"taken": "a"})
    site.distribution("two-dist", "1", {"taken": "b"})
    registry = look(site, settings=Settings(deny=("taken",)))
    assert [failure.stage for failure in registry.failures] == ["blocked", "blocked"]


def test_o26_the_order_of_installation_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Any
) -> None:
    folders = []
    for name in ("p4", "p7", "p8"):
        part = type(site)(tmp_path / name, monkeypatch.syspath_prepend)
        part.plugin(name, fields(name))
        folders.append(str(part.path))
    seen = {repr(survey(Settings(), order)) for order in permutations(folders)}
    assert len(seen) == 1


def test_o26_equal_ranks_are_ordered_by_name_in_every_process_and_explain_says_so(site: Any) -> None:
    site.plugin("p8", fields("p8"))
    site.plugin("p7", fields("p7"))
    words = ["explain", "argmax_rows", "--device", "sm_103", "--rows", "6", "--json"]
    outputs = set()
    for seed in ("0", "1", "2", "3"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "DSPARK_OPS_PLUGINS": "p7,p8"}
        environ["PYTHONPATH"] = os.pathsep.join([str(site.path), environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "dspark_ops.cli", *words]
        outputs.add(
            subprocess.run(command, capture_output=True, text=True, check=True, env=environ, cwd=site.path).stdout
        )
    assert len(outputs) == 1
    (selection,) = json.loads(outputs.pop())["selections"]
    (choice,) = selection["choices"]
    assert (choice["kernel"]["id"], choice["tie"]) == ("p7/argmax_rows/one", "p8/argmax_rows/one")


def test_o26_the_strict_policy_turns_the_reports_into_one_error(site: Any) -> None:
    case_o26(site)
    strict = Settings(policy=Policy(plugin_error="fail"), origins={"policy.plugin_error": "dspark-ops.toml:2"})
    with pytest.raises(PluginError) as error:
        discover(strict, [str(site.path)])
    text = str(error.value)
    assert text.startswith("policy.plugin_error is 'fail' (dspark-ops.toml:2), and plugins could not be loaded:\n")
    assert len(text.splitlines()) == 6
    assert "plugin p1 (dist-p1 1.0, p1_plugin) not loaded at import: OSError: libfoo.so.2" in text


def test_a_failure_is_logged_and_a_blocked_plugin_is_not(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    site.plugin("p1", before="raise OSError('gone')")
    site.plugin("p4", fields("p4"))
    registry = discover(Settings(deny=("p4",), origins={"plugins.deny": "argument"}), [str(site.path)])
    assert [record.message for record in caplog.records] == [
        "plugin p1 (dist-p1 1.0, p1_plugin) not loaded at import: OSError: gone"
    ]
    assert by_name(registry)["p4"].stage == "blocked"
    assert by_name(registry)["p4"].cause == "plugins.deny names it (argument)"


def test_a_blocked_plugin_is_not_imported(site: Any) -> None:
    site.plugin("p1", before="raise OSError('gone')")
    site.plugin("p4", fields("p4"))
    registry = look(site, settings=Settings(allow=("p4",)))
    assert [record.name for record in registry.plugins] == ["p4"]
    assert by_name(registry)["p1"].cause == "plugins.allow does not name it (built-in)"
    assert "p1_plugin" not in sys.modules


def test_a_blocked_plugin_is_no_failure_under_the_strict_policy(site: Any) -> None:
    site.plugin("p4", fields("p4"))
    settings = Settings(policy=Policy(plugin_error="fail"), deny=("p4",))
    assert discover(settings, [str(site.path)]).plugins == ()


def test_a_plugin_that_is_allowed_by_name_and_not_installed_is_a_failure(site: Any) -> None:
    site.plugin("p4", fields("p4"))
    registry = look(
        site, settings=Settings(allow=("p44",), origins={"plugins.allow": "environment DSPARK_OPS_PLUGINS"})
    )
    failure = by_name(registry)["p44"]
    assert failure.stage == "identity"
    assert failure.cause == (
        "plugins.allow names it (environment DSPARK_OPS_PLUGINS), but no distribution provides it: installed are p4; "
        "did you mean 'p4'?"
    )


def test_looking_for_plugins_imports_nothing(site: Any) -> None:
    case_o26(site)
    found, failures = find_plugins([str(site.path)])
    assert [plugin.name for plugin in found] == ["p1", "p2", "p3", "p4", "p7", "p8", "taken", "taken"]
    assert failures == []
    assert not [name for name in sys.modules if name.startswith("p") and name[1:2].isdigit()]


def test_a_distribution_with_broken_metadata_is_reported_and_stops_no_other(site: Any) -> None:
    site.plugin("p4", fields("p4"))
    folder = site.distribution("dist-p9", "1.0", {"p9": "p9_plugin"})
    (folder / "METADATA").unlink()
    registry = look(site)
    assert [record.name for record in registry.plugins] == ["p4"]
    (failure,) = registry.failures
    assert (failure.stage, failure.distribution) == ("identity", str(site.path))
    assert "Error: " in failure.cause


def test_an_empty_path_gives_an_empty_registry(tmp_path: Path) -> None:
    assert survey(Settings(), [str(tmp_path)]) == Registry({})


def test_the_modules_search_path_is_the_default(site: Any) -> None:
    site.plugin("p4", fields("p4"))
    assert "p4" in {record.name for record in discover().plugins}


def test_entry_points_that_cannot_be_read_are_logged_and_stop_no_other(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.plugin("p4", fields("p4"))
    folder = site.distribution("foreign", "1.0")
    (folder / "entry_points.txt").write_bytes(b"[console_scripts]\nx = \xff\xfe\n")
    registry = look(site)
    assert [record.name for record in registry.plugins] == ["p4"]
    assert registry.failures == ()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"entry points of {site.path} cannot be read"
    ]
