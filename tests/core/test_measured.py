"""Measured times: the table by fingerprint, and what they decide where a lock is written and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dspark_ops
from dspark_ops.api import RankClass, axis
from dspark_ops.cli import main
from dspark_ops.errors import ConfigError
from dspark_ops.selection.device import Device
from dspark_ops.selection.evidence import digest_of
from dspark_ops.selection.fingerprint import fingerprint
from dspark_ops.selection.knowledge import Knowledge
from dspark_ops.selection.lock import read_lock
from dspark_ops.selection.measured import MeasuredTime, Table, add_times, read_tables, usable_times
from dspark_ops.selection.settings import OperatorSettings

PLACE = ("pick", ("verify", (("V", 4096),)))


def timed(kernel: str, rows: int, us: float, **fields: Any) -> MeasuredTime:
    operator = kernel.split("/")[1]
    values = {
        "site": "verify",
        "axes": {"V": 4096},
        "low": us,
        "high": us,
        "calls": 25,
        "sources": "sha256:1",
        **fields,
    }
    return MeasuredTime(kernel=kernel, operator=operator, rows=rows, us=us, **values)


def known(times: dict[int, dict[str, float]], **fields: Any) -> Knowledge:
    full = {rows: {f"plug/pick/{name}": us for name, us in entry.items()} for rows, entry in times.items()}
    return Knowledge(times={PLACE: full}, times_origin="measured.json of 2026-07-01", **fields)


def first(plan: Any) -> list[tuple[str, str]]:
    return [(choice.rows, choice.kernel.id.rpartition("/")[2]) for choice in plan.of("pick")[0].choices]


def test_the_faster_kernel_is_chosen_before_a_better_class_by_row_count(fakes: Any) -> None:
    kernels = [fakes.kernel(variant="fused", rank=RankClass.FUSED), fakes.kernel(variant="portable")]
    table = known({1: {"fused": 5.0, "portable": 4.0}, 8: {"fused": 6.0, "portable": 9.0}})
    plan = fakes.plan(*kernels, knowledge=table, rows=range(1, 17))
    # Two rows are timed by the next larger row count, sixteen by the largest.
    assert first(plan) == [("1", "portable"), ("2-16", "fused")]
    assert plan.of("pick")[0].choices[0].origin == "measured 4.00 us, measured.json of 2026-07-01"
    assert "rows 1: plug/pick/portable  (by measured 4.00 us, measured.json of 2026-07-01)" in plan.explain("pick")


def test_times_do_not_count_while_a_kernel_that_may_serve_has_none(fakes: Any) -> None:
    kernels = [
        fakes.kernel(variant="fused", rank=RankClass.FUSED),
        fakes.kernel(variant="a"),
        fakes.kernel(variant="b"),
    ]
    assert first(fakes.plan(*kernels, knowledge=known({1: {"fused": 5.0, "a": 4.0}}), rows=[1])) == [("1", "fused")]


def test_a_kernel_that_may_not_serve_need_not_be_timed(fakes: Any) -> None:
    many = fakes.kernel(variant="many", rank=RankClass.FUSED, region=[axis("R").at_least(8)])
    kernels = [many, fakes.kernel(variant="a", rank=RankClass.FUSED), fakes.kernel(variant="b")]
    plan = fakes.plan(*kernels, knowledge=known({1: {"a": 5.0, "b": 4.0}}), rows=[1])
    assert first(plan) == [("1", "b")]


def test_pin_lock_and_order_come_before_a_time(fakes: Any) -> None:
    kernels = [fakes.kernel(variant=name, rank=RankClass.FUSED) for name in ("a", "b", "c")]
    times = {1: {"a": 1.0, "b": 2.0, "c": 3.0}}
    locked = known(times, locked={PLACE: {1: "plug/pick/b"}}, lock_origin="a.lock")
    pinned = fakes.settings(pick=OperatorSettings(pin="plug/pick/c"))
    ordered = fakes.settings(pick=OperatorSettings(order=("*/c", "*")))
    assert first(fakes.plan(*kernels, knowledge=known(times), rows=[1])) == [("1", "a")]
    assert first(fakes.plan(*kernels, knowledge=locked, rows=[1])) == [("1", "b")]
    assert first(fakes.plan(*kernels, knowledge=locked, rows=[1], settings=pinned)) == [("1", "c")]
    assert first(fakes.plan(*kernels, knowledge=known(times), rows=[1], settings=ordered)) == [("1", "c")]


def test_tables_are_kept_by_fingerprint_and_newer_times_replace_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    add_times(path, "one", Table("2026-07-01", "how", (timed("p/pick/a", 1, 5.0), timed("p/pick/a", 6, 7.0))))
    add_times(path, "two", Table("2026-07-02", "how", (timed("p/pick/a", 1, 1.0),)))
    add_times(path, "one", Table("2026-07-03", "how", (timed("p/pick/a", 1, 4.0),)))
    tables = read_tables(path)
    assert tables["one"].date == "2026-07-03"
    assert [(time.rows, time.us) for time in tables["one"].times] == [(1, 4.0), (6, 7.0)]
    assert [time.us for time in tables["two"].times] == [1.0]
    assert sum(line.startswith('{"axes"') for line in path.read_text().splitlines()) == 3, "one time per line"


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": "dspark-ops measured 1"}'])
def test_a_file_that_is_no_table_is_an_error_that_says_what_to_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(
        ConfigError, match=r"files\.measured: .*a\.json holds no measured times: .*; run  dspark-ops tune"
    ):
        read_tables(tmp_path / "a.json")


def test_times_of_other_sources_do_not_count() -> None:
    times = [
        timed("p/pick/a", 1, 5.0),
        timed("p/pick/b", 1, 4.0, sources="sha256:2"),
        timed("p/pick/c", 1, 3.0, sources=""),
    ]
    found = usable_times(times, lambda kernel: "sha256:1" if kernel != "p/pick/c" else "")
    assert found == {("pick", ("verify", (("V", 4096),))): {1: {"p/pick/a": 5.0}}}


def test_a_start_reads_no_table_and_writing_a_lock_does(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dspark_ops.selection.discovery import discover
    from dspark_ops.selection.settings import Settings

    site.module("p7_kernels", "def argmax(x): ...\n")
    both = ", ".join(
        f"Kernel('argmax_rows', {name!r}, 'p7_kernels:argmax', rank=RankClass.{rank})"
        for name, rank in (("fast", "FUSED"), ("any", "PORTABLE"))
    )
    site.plugin("p7", f"name='p7', api='>=1,<2', kernels=({both})")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dspark-ops.toml").write_text('[plugins]\nallow = ["p7"]\n[files]\nmeasured = "measured.json"\n')
    device = Device.simulate("sm_103")
    sources = {item.id: digest_of(item) for item in discover(Settings(allow=("p7",))).of("argmax_rows")}
    times = tuple(
        timed(f"p7/argmax_rows/{name}", 6, us, axes={"V": 129280}, sources=sources[f"p7/argmax_rows/{name}"])
        for name, us in (("fast", 5.0), ("any", 4.0))
    )
    add_times("measured.json", fingerprint(device), Table("2026-07-01T10:00:00", "made up", times))
    words = ["plan", "--device", "sm_103", "--rows", "6"]

    def chosen() -> str:
        plan = dspark_ops.plan(device=device, model="deepseek-v4.1-flash/tp4", rows=[6], operators=["argmax_rows"])
        return plan.of("argmax_rows")[0].choices[0].kernel.id

    assert chosen() == "p7/argmax_rows/fast"
    assert main([*words, "--write"]) == 0
    locked = {line.operator: line.kernel for line in read_lock("dspark-ops.lock").selections}
    assert locked["argmax_rows"] == "p7/argmax_rows/any"
    monkeypatch.setenv("DSPARK_OPS_LOCK", "dspark-ops.lock")
    assert chosen() == "p7/argmax_rows/any"
    capsys.readouterr()
    assert main(["plan", "--device", "H200", "--rows", "6", "--write", "other.lock"]) == 0
    assert (
        "measured.json has no times of this device (NVIDIA H200 (sm_90), 132 units, driver unknown"
        in capsys.readouterr().err
    )
