"""Regions as sets: a constraint admits what its words say, and a region what all of its constraints admit."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_ops.api import Constraint, ReasonCode, axis, contiguous, dtype, elements, layout, option, unit_last_stride

SIZES = st.integers(0, 2**20)
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Point:
    """Facts of one problem."""

    axes: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    strides: dict[str, str] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def admits(region: list[Constraint], point: Point) -> bool:
    return all(constraint.check(point) is None for constraint in region)


@given(size=SIZES, low=SIZES, more=SIZES, step=st.integers(1, 4096), sizes=st.lists(SIZES, min_size=1, max_size=4))
def test_a_constraint_of_an_axis_admits_what_its_words_say(
    size: int, low: int, more: int, step: int, sizes: list[int]
) -> None:
    wanted = [
        (axis("R").between(low, low + more), low <= size <= low + more),
        (axis("R").at_least(low), size >= low),
        (axis("R").at_most(low), size <= low),
        (axis("R").one_of(*sizes), size in sizes),
        (axis("R").multiple_of(step), size % step == 0),
        (axis("R").power_of_two(), size > 0 and bin(size).count("1") == 1),
    ]
    for constraint, inside in wanted:
        reason = constraint.check(Point({"R": size}))
        assert (reason is None) is inside, constraint.text
        if reason is not None:
            assert (reason.code, reason.field, reason.wanted, reason.got) == (
                ReasonCode.SHAPE, "R", constraint.text, str(size)
            )  # fmt: skip


@given(sizes=st.lists(st.integers(0, 2**12), min_size=1, max_size=4), below=st.integers(1, 2**34))
def test_a_count_of_elements_is_the_product_of_its_axes(sizes: list[int], below: int) -> None:
    axes = {f"A{place}": size for place, size in enumerate(sizes)}
    assert (elements("*".join(axes), below).check(Point(axes)) is None) is (prod(sizes) < below)


REGIONS = st.lists(
    st.one_of(
        st.builds(lambda name, low, more: axis(name).between(low, low + more), st.sampled_from("RV"), SIZES, SIZES),
        st.builds(lambda name, step: axis(name).multiple_of(step), st.sampled_from("RV"), st.integers(1, 64)),
        st.builds(lambda below: elements("R*V", below), st.integers(1, 2**40)),
        st.builds(lambda names: dtype("x", *names), st.lists(st.sampled_from(DTYPES), min_size=1, unique=True)),
        st.sampled_from([*contiguous("x"), *unit_last_stride("x"), layout("c", "kv_v4"), option("nan").is_("first")]),
    ),
    max_size=6,
)
POINTS = st.builds(
    Point,
    axes=st.fixed_dictionaries({"R": SIZES, "V": SIZES}),
    dtypes=st.fixed_dictionaries({"x": st.sampled_from(DTYPES)}),
    strides=st.fixed_dictionaries({"x": st.sampled_from(["contiguous", "unit_last", "any"])}),
    layouts=st.fixed_dictionaries({"c": st.sampled_from(["kv_v4", "kv_v41"])}),
    options=st.fixed_dictionaries({"nan": st.sampled_from(["first", "ignored"])}),
)


@given(first=REGIONS, second=REGIONS, point=POINTS, order=st.randoms(use_true_random=False))
def test_a_region_is_the_intersection_of_its_constraints_in_any_order(
    first: list[Constraint], second: list[Constraint], point: Point, order: Any
) -> None:
    joined = [*first, *second]
    assert admits(joined, point) is (admits(first, point) and admits(second, point))
    shuffled = order.sample(joined, len(joined))
    assert admits(shuffled, point) is admits(joined, point)
    assert admits([*joined, *first], point) is admits(joined, point)


@given(region=REGIONS, point=POINTS)
def test_a_looser_stride_form_never_lets_a_point_in(region: list[Constraint], point: Point) -> None:
    forms = ["contiguous", "unit_last", "any"]
    verdicts = [
        admits(region, Point(point.axes, point.dtypes, {"x": form}, point.layouts, point.options)) for form in forms
    ]
    assert verdicts == sorted(verdicts, reverse=True)


@given(region=REGIONS.filter(bool))
def test_a_point_that_states_nothing_lies_in_no_region(region: list[Constraint]) -> None:
    for constraint in region:
        reason = constraint.check(Point())
        assert reason is not None and reason.got == "not stated by the problem"


@pytest.mark.parametrize("wrong", [lambda: axis("R").between(3, 2), lambda: axis("R").multiple_of(0)])
def test_a_constraint_that_admits_nothing_by_mistake_is_refused_where_it_is_written(wrong: Any) -> None:
    with pytest.raises(ValueError, match="R:"):
        wrong()
