"""The doctor's trial of Triton builds a kernel for architectures that are not here, and tells those it cannot do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dspark_ops.api.arch import Arch
from dspark_ops.doctor.gather_tools import triton_compiles


@pytest.mark.parametrize("arch", ["sm_90", "gfx950"])
def test_triton_compiles_for_what_it_can_target(arch: str) -> None:
    trial = triton_compiles(Arch.parse(arch), os.environ, 120)
    assert (trial.code, trial.output) == (0, "")


def test_an_assembler_that_does_not_know_the_gpu_is_told_in_its_words(tmp_path: Path) -> None:
    ptxas = tmp_path / "ptxas"
    version = "Cuda compilation tools, release 12.4, V12.4.131"
    ptxas.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; else echo "no such gpu" >&2; exit 1; fi\n'
    )
    ptxas.chmod(0o755)
    named = {"TRITON_PTXAS_PATH": str(ptxas), "TRITON_PTXAS_BLACKWELL_PATH": str(ptxas)}
    trial = triton_compiles(Arch.parse("sm_90"), {**os.environ, **named}, 120)
    assert trial.code == 1 and "no such gpu" in trial.output
