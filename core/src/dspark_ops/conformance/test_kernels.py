"""What ``pytest --pyargs dspark_ops.conformance --dspark-plugin NAME`` collects: each kernel at each level."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.pytest_plugin import Checks


def test_kernel(dspark_checks: Checks, dspark_kernel: str, dspark_level: str) -> None:
    """A kernel passes one level of the check."""
    record, findings = dspark_checks.record(dspark_kernel)
    done = record.levels[dspark_level]
    texts = [str(failure) for failure in record.failures if failure.level == dspark_level]
    # What is wrong beside kernels, such as an expected failure that passes, has no test of its own.
    texts += [finding for finding in findings if dspark_level == next(iter(record.levels))]
    if texts:
        pytest.fail("\n".join(texts), pytrace=False)
    if done.status == "not run":
        pytest.skip(done.reason)
    if done.status == "expected":
        pytest.xfail("; ".join(sorted({reason for _, reason in record.expected})))
