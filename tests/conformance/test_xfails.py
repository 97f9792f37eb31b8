"""Expected failures: kept apart from the others, never forgotten, and read strictly."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dspark_ops import contracts
from dspark_ops.conformance.xfails import ExpectedFailure, read_xfails
from dspark_ops.errors import ConfigError

ARGMAX = contracts.get("argmax_rows").reference
DAY = date(2026, 6, 1)


def honest(x):
    return ARGMAX(x)


def last_of_equals(x):
    return x.shape[1] - 1 - ARGMAX(x.flip(1))


def test_expected_failures_are_kept_apart_and_the_kernel_is_not_conformant(planted: Any) -> None:
    name = planted.kernel("argmax_rows", last_of_equals)
    known = (ExpectedFailure(name, "ties go to the last column", "*"),)
    report = planted.check("numbers", xfails=known)
    (record,) = report.kernels
    assert report.passed and record.failures == [] and len(record.expected) > 5
    assert (record.level, record.levels["numbers"].status) == ("declared", "expected")
    narrow = (ExpectedFailure(name, "ties", "all equal*"),)
    assert planted.check("numbers", xfails=narrow).kernels[0].failures


def test_an_expected_failure_that_passes_or_has_expired_is_a_finding(planted: Any) -> None:
    name = planted.kernel("argmax_rows", honest)
    entry = ExpectedFailure(name, "NaN", "NaN*", origin="list.toml, xfail 1")
    report = planted.check("numbers", xfails=(entry,))
    (finding,) = report.findings
    assert finding == f"list.toml, xfail 1: {name}, case 'NaN*' is expected to fail (NaN), but passes: remove the entry"
    assert planted.check("numbers", xfails=(entry,), case="random*").passed  # its cases did not run

    planted.kernel("argmax_rows", last_of_equals)
    old = ExpectedFailure("planted/*/last_of_equals", "ties", expires=date(2026, 5, 31), origin="list.toml, xfail 2")
    report = planted.check("numbers", xfails=(old,), today=DAY)
    assert "expired on 2026-05-31" in report.findings[0] and list(report.failures())
    assert planted.check("numbers", xfails=(old,), today=date(2026, 5, 31)).passed


def test_a_case_that_would_end_the_process_can_be_left_out_by_name(planted: Any) -> None:
    seen = []

    def notes(x):
        seen.append(tuple(x.shape))
        return ARGMAX(x)

    name = planted.kernel("argmax_rows", notes)
    entry = ExpectedFailure(name, "takes the device with it", "*6x4099*", run=False)
    assert planted.check("numbers", xfails=(entry,)).passed
    assert (3, 97) in seen and (6, 4099) not in seen


def test_the_list_of_expected_failures_is_read_strictly(tmp_path: Path) -> None:
    file = tmp_path / "xfails.toml"
    file.write_text(
        '[[xfail]]\nkernel = "p/argmax_rows/*"\ncase = "NaN*"\nreason = "ignores NaN"\nexpires = 2027-01-31\n'
        'level = "numbers"\n'
    )
    (entry,) = read_xfails(file)
    assert (entry.kernel, entry.expires, entry.run) == ("p/argmax_rows/*", date(2027, 1, 31), True)
    assert entry.names("p/argmax_rows/fast", "numbers", "NaN in a row") and not entry.names("p/q/r", "numbers", "NaN")
    file.write_text('[[xfail]]\nkernel = "p"\nresaon = "x"\nlevel = "number"\nexpires = "soon"\n[other]\n')
    with pytest.raises(ConfigError) as error:
        read_xfails(file)
    text = str(error.value)
    faults = ("unknown key 'other'", "unknown key 'resaon'", "reason is missing", "expires: wanted date, got 'soon'")
    for fault in (*faults, "level: wanted claims or numbers or traits, got 'number'"):
        assert fault in text, text
    with pytest.raises(ConfigError, match="cannot be read"):
        read_xfails(tmp_path / "none.toml")
