"""Architectures are compared by membership, never by order. Cases O22 and O23."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_ops.api import Arch, any_gpu, any_of, dtype, exact, family
from dspark_ops.api.reason import ReasonCode
from dspark_ops.errors import SelectionError
from dspark_ops.selection.device import Device
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.settings import OperatorSettings

CAPABILITIES = ("9.0", "10.0", "10.3", "11.0", "12.0", "12.1")


@pytest.mark.parametrize(
    ("accepted", "column"),
    [
        (exact("sm_100a"), [False, True, False, False, False, False]),
        (family("sm_10x"), [False, True, True, False, False, False]),
        (exact("10.0", "10.3"), [False, True, True, False, False, False]),
        (any_of("nvidia"), [True] * 6),
    ],
    ids=["exact 100a", "family 10x", "list of 10.0 and 10.3", "any NVIDIA"],
)
def test_o22_each_capability_is_a_member_or_not_and_never_merely_high_enough(accepted: Any, column: list[bool]) -> None:
    assert [accepted.matches(Arch.parse(capability)) for capability in CAPABILITIES] == column


def test_o22_all_spellings_of_one_chip_give_one_device() -> None:
    spellings = ("sm_103", "sm_103a", "sm_103f", "10.3", " SM103 ")
    assert {Device.simulate(text).arch for text in spellings} == {Arch("nvidia", "sm_103", "sm_10x")}
    assert len({repr(Device.simulate(text)) for text in spellings}) == 1


@pytest.mark.parametrize("requirement", [">=10.0", "<12.0", "=10.0", " >= sm_100"])
def test_o22_a_bare_minimum_is_refused_where_the_kernel_is_written(requirement: str) -> None:
    with pytest.raises(ValueError, match="is an order, not a membership: list the architectures, or use family"):
        exact(requirement)


def test_o22_a_deny_entry_beats_what_the_kernel_allows_and_its_text_shows_in_explain(fakes: Any) -> None:
    hangs = fakes.kernel(variant="hangs", arch=family("sm_10x"))
    other = fakes.kernel(variant="other")
    settings = fakes.settings(
        pick=OperatorSettings(deny=("plug/pick/hangs",), order=("plug/*",)),
        origins={"ops.pick.deny": "dspark-ops.toml:3"},
    )
    plan = fakes.plan(hangs, other, settings=settings)
    assert {choice.kernel.id for item in plan.selections for choice in item.choices} == {"plug/pick/other"}
    text = plan.explain("pick")
    assert "DENIED" in text
    assert "dspark-ops.toml:3" in text
    pinned = fakes.settings(pick=OperatorSettings(deny=("plug/pick/hangs",), pin="plug/pick/hangs"))
    with pytest.raises(SelectionError, match="DENIED"):
        fakes.plan(hangs, other, settings=pinned)


def test_an_unknown_but_well_formed_name_has_family_unknown_and_is_accepted_by_no_family() -> None:
    arch = Arch.parse("sm_140")
    assert (arch.vendor, arch.name, arch.family) == ("nvidia", "sm_140", "unknown")
    assert not family("sm_10x", "sm_12x").matches(arch)
    assert any_gpu().matches(arch)
    assert not any_gpu().matches(Arch.parse("cpu"))


def test_sets_join_only_where_both_list_their_members() -> None:
    both = exact("sm_90") | family("gfx95x")
    assert [both.matches(Arch.parse(name)) for name in ("sm_90", "gfx950", "gfx942")] == [True, True, False]
    with pytest.raises(ValueError, match="only listed sets can be joined"):
        exact("sm_90") | any_of("amd")
    with pytest.raises(ValueError, match="unknown family 'sm_13x'"):
        family("sm_13x")


@pytest.mark.parametrize(
    ("name", "base", "flags"),
    [
        ("gfx950:sramecc+:xnack-", "gfx950", {"sramecc": "+", "xnack": "-"}),
        ("gfx942:sramecc+:xnack-", "gfx942", {"sramecc": "+", "xnack": "-"}),
        ("amdgcn-amd-amdhsa--gfx950:sramecc+:xnack-", "gfx950", {"sramecc": "+", "xnack": "-"}),
        ("gfx950", "gfx950", {}),
        ("gfx90a", "gfx90a", {}),
    ],
)
def test_o23_feature_flags_are_kept_apart_from_the_name(name: str, base: str, flags: dict[str, str]) -> None:
    arch = Arch.parse(name)
    assert (arch.vendor, arch.name, dict(arch.flags)) == ("amd", base, flags)


@pytest.mark.parametrize("name", ["", "cuda", "gfx", "xnack-", "sm_", "gfx950:", "sm_10.3"])
def test_o23_a_text_that_names_no_architecture_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="cannot read an architecture"):
        Arch.parse(name)


def test_o23_a_part_without_eight_bit_float_units_has_no_such_dtype() -> None:
    assert Arch.parse("gfx90a").fp8_dtype is None
    assert Arch.parse("sm_80").fp8_dtype is None


def test_o23_a_gfx950_kernel_refuses_a_tensor_in_the_gfx942_format() -> None:
    facts = Problem("anything", "verify", dtypes={"x": "float8_e4m3fnuz"})
    reason = dtype("x", "float8_e4m3fn").check(facts)
    assert reason is not None
    assert (reason.code, reason.wanted, reason.got) == (ReasonCode.DTYPE, "float8_e4m3fn", "float8_e4m3fnuz")
