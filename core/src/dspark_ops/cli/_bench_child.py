"""The process of one launch: ``python -m dspark_ops.cli._bench_child SPEC RESULT``, started by ``dspark-ops bench ab``.

It reads what to run from one JSON file and writes what it measured to another one.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from dspark_ops.api.version import ENTRY_POINT_GROUP
from dspark_ops.bench.fingerprint import code_fingerprint, conditions, machine_fingerprint
from dspark_ops.bench.workload import LaunchSpec, run_launch
from dspark_ops.cli._decode_run import right_numbers
from dspark_ops.cli._options import configured
from dspark_ops.errors import DsparkOpsError


def main(spec_file: Path, result_file: Path) -> int:
    """Run one launch and return 0, or 1 with the error on stderr."""
    data = json.loads(spec_file.read_text(encoding="utf-8"))
    spec = LaunchSpec(**(data | {"prompts": tuple(data["prompts"])}))
    before = conditions()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            result = _launch(spec)
        except DsparkOpsError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    result["conditions"] = before | result["conditions"]
    result["notes"] = [str(item.message) for item in caught if issubclass(item.category, UserWarning)]
    result_file.write_text(json.dumps(result), encoding="utf-8")
    return 0


def _launch(spec: LaunchSpec) -> dict[str, Any]:
    from dspark_ops.decode import load_model
    from dspark_ops.decode.options import Execution

    model = load_model(
        spec.model,
        device=spec.device,
        config=configured(Path(spec.config) if spec.config else None).settings,
        graphs=Execution(spec.execution).captures(spec.device),
    )
    plan = model.plan(spec.gamma)
    with right_numbers(plan.device.features):
        measurement = run_launch(spec, model)
    # Of every installed plugin, whether this arm lets it load or not: the configuration is no difference of the code.
    packages = {"dspark_ops", *(item.module.partition(".")[0] for item in entry_points(group=ENTRY_POINT_GROUP))}
    digests, commits = code_fingerprint(packages)
    fingerprint = machine_fingerprint() | {
        "device": plan.device.to_json(),
        "code": digests,
        "plan": {"digest": plan.digest, "dispatch": measurement.dispatch_hash},
    }
    return {
        "measurement": measurement.to_json(),
        "fingerprint": fingerprint,
        "conditions": {"commits": commits},
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
