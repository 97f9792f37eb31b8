"""Loading: a manifest is taken whole or refused with its full cause. Cases O26 and O27."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_ops.api import (
    API_VERSION,
    Arch,
    Constraint,
    Evidence,
    Kernel,
    Manifest,
    Package,
    Traits,
    axis,
    dtype,
    option,
)
from dspark_ops.errors import PluginError
from dspark_ops.selection.discovery import survey
from dspark_ops.selection.loading import build_registry
from dspark_ops.selection.registry import PluginFailure
from dspark_ops.selection.settings import Settings


def failure(site: Any, fields: str = "", **parts: str) -> PluginFailure:
    """The one failure of a plugin ``p`` written with these parts."""
    site.plugin("p", fields, **parts)
    registry = survey(Settings(), [str(site.path)])
    assert registry.plugins == ()
    (only,) = registry.failures
    return only


def manifest(*kernels: Any, name: str = "p", api: Any = ">=1,<2") -> Manifest:
    return Manifest(name, api, kernels)


def kernel(**fields: Any) -> Kernel:
    given = {"op": "argmax_rows", "variant": "one", "target": "m:f", **fields}
    return Kernel(**given)


def faults(*kernels: Any) -> list[str]:
    with pytest.raises(PluginError) as error:
        build_registry([manifest(*kernels)])
    return [line.strip() for line in str(error.value).splitlines()[1:]]


@pytest.mark.parametrize("api", [">=1,<2", ">=1", "==1.*", "~=1.0", "<3"])
def test_o27_a_range_that_holds_this_cores_version_is_accepted(site: Any, api: str) -> None:
    assert API_VERSION == "1.0"
    site.plugin("p", f"name='p', api={api!r}")
    assert [record.api for record in survey(Settings(), [str(site.path)]).plugins] == [api]


@pytest.mark.parametrize(
    ("api", "cause"),
    [
        ("'>=2,<3'", "it needs API >=2,<3, and this core offers API 1.0"),
        ("'<1'", "it needs API <1, and this core offers API 1.0"),
        ("'two'", "api='two' is no range of versions, and this core offers API 1.0: write api='>=1,<2'"),
        ("'1'", "api='1' is no range of versions, and this core offers API 1.0: write api='>=1,<2'"),
        ("''", "it declares no range of API versions (api=''), and this core offers API 1.0: write api='>=1,<2'"),
        ("None", "it declares no range of API versions (api=None), and this core offers API 1.0: write api='>=1,<2'"),
        ("1", "it declares no range of API versions (api=1), and this core offers API 1.0: write api='>=1,<2'"),
    ],
)
def test_o27_any_other_declaration_is_refused_before_a_kernel_is_looked_at(site: Any, api: str, cause: str) -> None:
    refused = failure(site, f"name='p', api={api}, kernels=('no kernel', 3)")
    assert (refused.stage, refused.cause) == ("api", cause)


def test_o27_a_manifest_that_states_no_api_cannot_be_made(site: Any) -> None:
    refused = failure(site, "name='p'")
    assert refused.stage == "hook"
    assert "missing 1 required positional argument: 'api'" in refused.cause


def test_causes_are_chained_in_the_line_and_in_the_detail(site: Any) -> None:
    before = "try:\n    import no_such_library\nexcept ImportError as e:\n    raise RuntimeError('needs libfoo') from e"
    refused = failure(site, before=before)
    assert refused.cause == (
        "RuntimeError: needs libfoo, caused by ModuleNotFoundError: No module named 'no_such_library'"
    )
    assert "The above exception was the direct cause" in refused.detail


def test_a_plugin_that_ends_the_process_is_a_failure(site: Any) -> None:
    refused = failure(site, before="import sys; sys.exit(3)")
    assert (refused.stage, refused.cause) == ("import", "SystemExit: 3")


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit"])
def test_an_interrupt_by_the_user_is_no_failure_and_passes_through(site: Any, error: str) -> None:
    site.plugin("p", inside=f"raise {error}")
    with pytest.raises(KeyboardInterrupt if error == "KeyboardInterrupt" else GeneratorExit):
        survey(Settings(), [str(site.path)])


def test_a_module_without_the_hook_is_refused(site: Any) -> None:
    site.module("p_plugin", "def dspark_ops_manifest():\n    return None\n")
    site.distribution("dist-p", "1.0", {"p": "p_plugin"})
    (refused,) = survey(Settings(), [str(site.path)]).failures
    assert refused.stage == "hook"
    assert refused.cause == "p_plugin implements no hook: wanted dspark_ops_manifest() marked with @hookimpl"


def test_a_misspelled_hook_is_refused_by_name(site: Any) -> None:
    site.module("p_plugin", "from dspark_ops.api import hookimpl\n@hookimpl\ndef dspark_ops_manifst(): return None\n")
    site.distribution("dist-p", "1.0", {"p": "p_plugin"})
    (refused,) = survey(Settings(), [str(site.path)]).failures
    assert refused.stage == "hook"
    assert "PluginValidationError: unknown hook 'dspark_ops_manifst'" in refused.cause


def test_a_hook_with_an_argument_that_the_interface_does_not_have_is_refused(site: Any) -> None:
    site.module(
        "p_plugin", "from dspark_ops.api import hookimpl\n@hookimpl\ndef dspark_ops_manifest(device): return 1\n"
    )
    site.distribution("dist-p", "1.0", {"p": "p_plugin"})
    (refused,) = survey(Settings(), [str(site.path)]).failures
    assert "Argument(s) {'device'} are declared in the hookimpl but can not be found in the hookspec" in refused.cause


def test_a_hook_that_returns_no_manifest_is_refused(site: Any) -> None:
    site.module(
        "p_plugin", "from dspark_ops.api import hookimpl\n@hookimpl\ndef dspark_ops_manifest(): return {'name': 'p'}\n"
    )
    site.distribution("dist-p", "1.0", {"p": "p_plugin"})
    (refused,) = survey(Settings(), [str(site.path)]).failures
    assert refused.cause == "dspark_ops_manifest() gave dict: wanted a Manifest"


def test_the_manifest_and_the_entry_point_must_have_one_name(site: Any) -> None:
    refused = failure(site, "name='q', api='>=1,<2'")
    assert refused.stage == "identity"
    assert refused.cause == "its manifest is named 'q', its entry point 'p': they must be equal"


def test_the_name_of_cores_own_candidates_is_reserved(site: Any) -> None:
    site.plugin("core")
    (refused,) = survey(Settings(), [str(site.path)]).failures
    assert (refused.stage, refused.cause) == (
        "identity",
        "the name 'core' is reserved: core's own candidates have it in their ids",
    )


def test_kernels_are_checked_against_the_contracts_and_all_faults_are_told(site: Any) -> None:
    refused = failure(
        site,
        "name='p', api='>=1,<2', kernels=(Kernel('argmx_rows', 'a', 'm:f'), "
        "Kernel('argmax_rows', 'b', 'm:f', region=[axis('Q').at_least(1)]))",
    )
    assert refused.stage == "manifest"
    assert refused.detail.splitlines() == [
        "p/argmx_rows/a: unknown operator 'argmx_rows'; did you mean 'argmax_rows'?",
        "p/argmax_rows/b: constraint 'Q >= 1': the contract has no axis 'Q' (it has R, V)",
    ]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"region": [axis("Q").at_least(3)]}, "constraint 'Q >= 3': the contract has no axis 'Q' (it has R, V)"),
        (
            {"region": [Constraint("elements", "R*W", "between", (None, 9), "R*W < 10")]},
            "constraint 'R*W < 10': the contract has no axis 'W' (it has R, V)",
        ),
        ({"region": [dtype("y", "float32")]}, "constraint 'float32': the contract has no argument 'y' (it has x)"),
        (
            {"region": [dtype("x", "float23")]},
            "constraint 'float23': the contract admits no dtype 'float23' for x (it has float32, bfloat16, float16); "
            "did you mean 'float32'?",
        ),
        (
            {"region": [option("tie").is_("lowest")]},
            "constraint 'tie = lowest': the contract has no option 'tie' (it has nan, ties); did you mean 'ties'?",
        ),
        (
            {"region": [option("ties").is_("lowst")]},
            "constraint 'ties = lowst': the contract admits no value 'lowst' for ties (it has lowest, any); "
            "did you mean 'lowest'?",
        ),
        ({"traits": Traits(nan="frist")}, "traits: nan='frist': wanted first or ignored; did you mean 'first'?"),
        (
            {"traits": Traits(padding="zero")},
            "traits: padding='zero', but the contract has no rule 'padding' (it has nan, ties)",
        ),
        ({"features": "pdl"}, "features: wanted a tuple of str, got 'pdl'"),
        ({"features": (1,)}, "features: wanted a tuple of str, got 1 in it"),
        ({"packages": ("flashinfer",)}, "packages: wanted a tuple of Package, got 'flashinfer' in it"),
        (
            {"packages": (Package("m", "d", "0.6"),)},
            "package m: versions '0.6' is no range such as '>=0.6,<0.8'",
        ),
        ({"arch": "sm_103"}, "arch: wanted family(...), exact(...) or None, got 'sm_103'"),
        ({"arch": Arch.parse("sm_103")}, "arch: wanted family(...), exact(...) or None, got Arch("),
        ({"rank": "portable"}, "rank: wanted a RankClass, got 'portable'"),
        ({"traits": {"pdl": True}}, "traits: wanted Traits(...), got {'pdl': True}"),
        ({"contract_versions": 1}, "contract_versions: wanted a tuple of int, got 1"),
        (
            {"evidence": (("sm_130", Evidence.COMPILED),)},
            "evidence: unknown architecture 'sm_130': known are sm_80, ",
        ),
        (
            {"evidence": ("sm_103", Evidence.COMPILED)},
            "evidence: wanted pairs such as ('sm_103', Evidence.COMPILED), got 'sm_103'",
        ),
    ],
)
def test_each_fault_of_a_kernel_names_the_kernel_and_what_is_known(fields: dict[str, Any], fault: str) -> None:
    lines = faults(kernel(**fields))
    assert lines[0].startswith(f"p/argmax_rows/one: {fault}")


def test_two_kernels_with_one_id_are_a_fault() -> None:
    assert faults(kernel(), kernel(), kernel(variant="two")) == [
        "p/argmax_rows/one: 2 kernels have this id; give each its own variant"
    ]


def test_something_that_is_no_kernel_is_a_fault() -> None:
    assert faults(kernel(), 3) == ["kernels[1]: wanted a Kernel, got int 3"]


def test_constraints_within_the_contract_are_accepted() -> None:
    region = [axis("R").between(1, 64), axis("V").multiple_of(4), dtype("x", "float32"), option("nan").is_("first")]
    registry = build_registry([manifest(kernel(region=region, traits=Traits(nan="ignored", ties="any")))])
    assert [item.id for item in registry.of("argmax_rows")] == ["p/argmax_rows/one"]


def test_a_registry_is_built_from_given_manifests_in_any_order() -> None:
    first, second = manifest(kernel(), name="b"), manifest(kernel(), kernel(variant="a"), name="a")
    registry = build_registry([first, second])
    assert registry == build_registry([second, first])
    assert [item.id for item in registry.of("argmax_rows")] == [
        "a/argmax_rows/a",
        "a/argmax_rows/one",
        "b/argmax_rows/one",
    ]
    assert [(record.name, record.kernels) for record in registry.plugins] == [("a", 2), ("b", 1)]


def test_given_manifests_with_one_name_or_another_api_are_an_error() -> None:
    with pytest.raises(PluginError, match="two manifests are named 'p'"):
        build_registry([manifest(), manifest()])
    with pytest.raises(PluginError, match=r"p: it needs API >=2, and this core offers API 1\.0"):
        build_registry([manifest(api=">=2")])
    with pytest.raises(PluginError, match="the name 'core' is reserved"):
        build_registry([manifest(name="core")])
