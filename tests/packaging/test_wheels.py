"""The five distributions as a user gets them: built as wheels, installed alone and together, and taken away again."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {
    "core": ("dspark_ops", ROOT / "core"),
    "triton": ("dspark_ops_triton", ROOT / "plugins/triton"),
    "nvidia_sm10x": ("dspark_ops_nvidia_sm10x", ROOT / "plugins/nvidia_sm10x"),
    "nvidia_sm90": ("dspark_ops_nvidia_sm90", ROOT / "plugins/nvidia_sm90"),
    "amd_gfx950": ("dspark_ops_amd_gfx950", ROOT / "plugins/amd_gfx950"),
}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("wheels")
    built = {}
    for name, (package, source) in DISTRIBUTIONS.items():
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        (built[name],) = out.glob(f"{package}-*.whl")
    return built


class Environment:
    """A virtual environment without torch."""

    def __init__(self, path: Path) -> None:
        venv.create(path, with_pip=True)
        self.bin = path / "bin"

    def pip(self, *arguments: str) -> None:
        subprocess.run([self.bin / "python", "-m", "pip", "-q", *arguments], check=True, capture_output=True)

    def dspark(self, *arguments: str) -> tuple[int, dict]:
        result = subprocess.run([self.bin / "dspark-ops", *arguments, "--json"], capture_output=True, text=True)
        return result.returncode, json.loads(result.stdout)

    def doctor(self, device: str) -> tuple[int, list[str]]:
        """Return the doctor's exit code and what it found beside operators that no kernel is written for."""
        code, report = self.dspark("doctor", "--device", device)
        found = [finding for check in report["checks"] for finding in check["findings"]]
        return code, [item["finding"] for item in found if "is of the required class" not in item["finding"]]

    def argmax(self) -> dict:
        """Return the plan's choice for argmax_rows on sm_103."""
        _, report = self.dspark("plan", "--device", "sm_103")
        (entry,) = [item for item in report["plan"]["selections"] if item["problem"]["operator"] == "argmax_rows"]
        (choice,) = entry["choices"]
        return choice

    def pretend(self, name: str, version: str) -> None:
        """Make a distribution known by its metadata alone, which is all that planning looks at."""
        (site,) = (self.bin.parent / "lib").glob("python*/site-packages")
        (site / name).mkdir()
        (site / name / "__init__.py").touch()
        metadata = site / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "top_level.txt").write_text(f"{name}\n")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_holds_its_package_its_type_marker_and_its_licence_and_nothing_else(
    name: str, wheels: dict[str, Path]
) -> None:
    package, _ = DISTRIBUTIONS[name]
    with zipfile.ZipFile(wheels[name]) as wheel:
        files = wheel.namelist()
        metadata = wheel.read(next(file for file in files if file.endswith("METADATA"))).decode()
    assert f"{package}/py.typed" in files
    assert any(file.endswith("licenses/LICENSE") for file in files)
    assert {file.split("/")[0].split("-")[0] for file in files} == {package}
    base = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    heavy = ("torch", "triton", "flashinfer", "flash-mla", "aiter")
    assert not [line for line in base if line.split()[1].lower().startswith(heavy)], "a vendor package is a dependency"


def test_core_alone_then_with_plugins_then_without_one_again(wheels: dict[str, Path], tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", str(wheels["core"]))
    code, listed = environment.dspark("plugins")
    assert code == 0 and listed["plugins"] == [] and listed["failures"] == []
    assert environment.argmax()["kernel"]["id"] == "core/argmax_rows/reference"
    assert environment.doctor("cpu") == environment.doctor("sm_103") == (0, [])

    environment.pip("install", *(str(wheels[name]) for name in ("triton", "nvidia_sm10x", "amd_gfx950")))
    code, listed = environment.dspark("plugins")
    assert code == 0 and [plugin["name"] for plugin in listed["plugins"]] == ["amd_gfx950", "nvidia_sm10x", "triton"]
    without_triton = environment.argmax()
    assert without_triton["kernel"]["id"] == "core/argmax_rows/reference"
    (refused,) = [item for item in without_triton["refused"] if item["candidate"]["id"].startswith("nvidia_sm10x/")]
    assert refused["better"] and [reason["code"] for reason in refused["reasons"]] == ["PKG_MISSING"]
    assert "pip install" in refused["reasons"][0]["hint"]
    code, found = environment.doctor("sm_103")
    assert code == 0 and any(text.endswith("cannot serve: package triton is not installed") for text in found)
    assert any(text.startswith("a weaker class serves than this device could run, since triton: ") for text in found)

    environment.pretend("triton", "3.9.0")
    assert environment.argmax()["kernel"]["id"] == "nvidia_sm10x/argmax_rows/one_launch"
    # what was made up is an empty package, and the doctor looks further than at metadata
    none = "Triton 3.9.0 has no backend for nvidia: no Triton kernel can be built for sm_103"
    code, found = environment.doctor("sm_103")
    vendors = ("flash_mla", "flashinfer")  # packages that adapters of the plugin would use, and nobody installed
    assert (code, [text for text in found if not any(name in text for name in vendors)]) == (1, [none])
    environment.pip("uninstall", "-y", "dspark-ops-nvidia-sm10x")
    degraded = environment.argmax()
    assert (degraded["kernel"]["id"], degraded["kernel"]["rank"]) == ("triton/argmax_rows/one_launch", "portable")
    code, listed = environment.dspark("plugins")
    assert [plugin["name"] for plugin in listed["plugins"]] == ["amd_gfx950", "triton"]
