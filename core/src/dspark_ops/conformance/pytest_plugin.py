"""The pytest side of the check: ``pytest --pyargs dspark_ops.conformance --dspark-plugin NAME``.

It does nothing unless that option is given, and imports nothing but pytest until then.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dspark_ops.conformance.report import KernelRecord, Report

_LEVELS = ("claims", "numbers", "traits")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("dspark-ops", "conformance of dspark-ops kernels")
    group.addoption("--dspark-plugin", metavar="NAME", help="the plugin whose kernels are checked")
    group.addoption("--dspark-op", metavar="NAME", action="append", default=[], help="only this operator; repeatable")
    group.addoption("--dspark-level", action="append", default=[], choices=_LEVELS, help="only this level; repeatable")
    group.addoption("--dspark-device", metavar="NAME", help="cpu, cuda, cuda:N or a simulated device (claims only)")
    group.addoption("--dspark-scale", default="small", choices=("small", "model"), help="sizes of the cases")
    group.addoption("--dspark-seed", type=int, default=0, metavar="N", help="seed of the cases")
    group.addoption("--dspark-xfails", metavar="FILE", help="TOML list of expected failures, with reasons")


class Checks:
    """The checks of one session: each kernel is checked once, when the first of its tests needs it."""

    def __init__(self, config: pytest.Config) -> None:
        from dspark_ops.config import load_settings
        from dspark_ops.conformance.check import Request, chosen_kernels
        from dspark_ops.conformance.xfails import read_xfails
        from dspark_ops.selection.discovery import survey

        xfails = config.getoption("--dspark-xfails")
        self.request = Request(
            plugin=config.getoption("--dspark-plugin"),
            ops=tuple(config.getoption("--dspark-op")),
            device=config.getoption("--dspark-device"),
            levels=tuple(config.getoption("--dspark-level")) or _LEVELS,
            scale=config.getoption("--dspark-scale"),
            seed=config.getoption("--dspark-seed"),
            xfails=read_xfails(Path(xfails)) if xfails else (),
            xfails_file=str(Path(xfails).resolve()) if xfails else "",
        )
        self.registry = survey(load_settings(None))
        self.kernels = [kernel.id for kernel in chosen_kernels(self.request, self.registry)]
        self._reports: dict[str, Report] = {}

    def record(self, kernel: str) -> tuple[KernelRecord, list[str]]:
        """Return the record of a kernel, and the findings of the report that it is in."""
        from dataclasses import replace

        from dspark_ops.conformance.check import run_check

        op = kernel.split("/")[1]
        if op not in self._reports:
            self._reports[op] = run_check(replace(self.request, ops=(op,)), self.registry)
        report = self._reports[op]
        return next(record for record in report.kernels if record.kernel == kernel), report.findings


def pytest_generate_tests(metafunc: Any) -> None:
    """Make one test per kernel and level."""
    if "dspark_kernel" not in metafunc.fixturenames:
        return
    checks = _checks(metafunc.config)
    pairs = [(kernel, level) for kernel in checks.kernels for level in checks.request.levels]
    metafunc.parametrize(("dspark_kernel", "dspark_level"), pairs, ids=[f"{kernel}-{level}" for kernel, level in pairs])


@pytest.fixture
def dspark_checks(request: pytest.FixtureRequest) -> Checks:
    """The checks of this session."""
    return _checks(request.config)


_KEY: pytest.StashKey[Checks] = pytest.StashKey()


def _checks(config: pytest.Config) -> Checks:
    if not config.getoption("--dspark-plugin"):
        raise pytest.Collector.CollectError("dspark_ops.conformance checks one plugin: give --dspark-plugin NAME")
    if _KEY not in config.stash:
        from dspark_ops.errors import DsparkOpsError

        try:
            config.stash[_KEY] = Checks(config)
        except DsparkOpsError as error:
            raise pytest.Collector.CollectError(str(error)) from error
    return config.stash[_KEY]
