"""Something around every bound function, for a bench: the operators that users hold stay as they are."""

from __future__ import annotations

from typing import Any

from dspark_ops.bench.calls import CallCounter
from dspark_ops.binding.observed import Place, observed
from dspark_ops.selection.device import Device


def bound(fakes: Any, *kernels: Any, **options: Any) -> Any:
    return fakes.bind(fakes.plan(*kernels, device=Device.simulate("cpu"), rows=range(1, 5), **options))


def test_every_function_is_reached_once_with_its_place(fakes: Any) -> None:
    fakes.function("one", lambda x, top=1: ("one", top))
    ops = bound(fakes, fakes.kernel(), operators=("pick", "tidy"))
    places: list[Place] = []

    def around(place: Place, function: Any) -> Any:
        places.append(place)
        return lambda *arguments, **named: ("around", function(*arguments, **named))

    seen = observed(ops, around)
    assert seen.pick(fakes.tensor(2, 8), 3) == ("around", ("one", 3))
    assert ops.pick(fakes.tensor(2, 8), 3) == ("one", 3)
    assert [(place.operator, place.kernel, place.composed) for place in places] == [
        ("pick", "plug/pick/one", False),
        ("tidy", "core/tidy/reference", False),
    ]


def test_parts_of_a_composed_operator_are_reached_and_the_whole_is_marked(fakes: Any) -> None:
    ops = bound(fakes, operators=("pick_and_tidy",))
    counter = CallCounter(timed=True)
    seen = observed(ops, counter.around)
    (picked, _, top), (tidied, _) = seen.pick_and_tidy(fakes.tensor(1, 4))
    assert (picked, top, tidied) == ("core pick", 3, "core tidy")
    assert [(place.operator, calls, composed) for place, calls, _, composed in counter.rows()] == [
        ("pick", 1, False),
        ("pick_and_tidy", 1, True),
        ("tidy", 1, False),
    ]
    assert all(seconds is not None and seconds >= 0 for _, _, seconds, _ in counter.rows())


def test_the_row_dispatch_still_chooses_and_one_function_stays_one(fakes: Any) -> None:
    from dspark_ops.api import axis

    fakes.function("one", lambda x, top=1: "one")
    few = fakes.kernel(region=[axis("R").at_most(2)])
    ops = bound(fakes, few)
    counter = CallCounter(timed=False)
    seen = observed(ops, counter.around)
    pick = seen.at(site="verify").pick
    assert [pick(fakes.tensor(rows, 4096)) for rows in (1, 2)] == ["one", "one"]
    pick(fakes.tensor(3, 4096))
    counts = {place.kernel: (calls, seconds) for place, calls, seconds, _ in counter.rows()}
    assert counts == {"plug/pick/one": (2, None), "core/pick/reference": (1, None)}


def test_what_leaves_every_function_alone_gives_the_same_functions(fakes: Any) -> None:
    ops = bound(fakes, operators=("pick", "tidy", "pick_and_tidy"))
    seen = observed(ops, lambda place, function: function)
    assert seen.tidy is ops.tidy
    assert seen.pick_and_tidy is ops.pick_and_tidy
    assert seen.plan is ops.plan
