"""What the decode verb measures for its schedules: step rates of this device, and temperatures of the confidences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_ops import __version__
from dspark_ops.cli._decode_run import right_numbers
from dspark_ops.cli._show import console, print_json, table

if TYPE_CHECKING:
    from dspark_ops.decode import DecodeOptions, Model, Request


def profile_sps(model: Model, options: DecodeOptions, path: Path, as_json: bool) -> None:
    """Measure step rates, write them and show them.

    Raises:
        ModelError: an option cannot be served.
        ConfigError: the file cannot be written.
    """
    from dspark_ops.decode.sps_profile import measure_rates, write_rates

    origin = _origin(model, options, "whole cycles at the host's clock; median of three rounds, warm-up left out")
    with right_numbers(model.plan(options.gamma).device.features):
        if as_json:
            rates = measure_rates(model, options)
        else:
            out = console()
            with out.status("measuring step rates") as status:
                rates = measure_rates(
                    model, options, on_point=lambda tokens, rate: status.update(f"{tokens} tokens: {rate:.1f} steps/s")
                )
    write_rates(path, rates, origin)
    pairs = list(zip(rates.tokens, rates.steps_per_second, strict=True))
    if as_json:
        print_json({"file": str(path), "origin": origin, "rates": pairs})
        return
    rows = [(str(tokens), f"{rate:.2f}", f"{1e6 / rate:.0f}") for tokens, rate in pairs]
    title = f"steps per second on {origin['device']}, {origin['execution']}"
    out.print(table(title, ("#tokens in a step", "#steps/s", "#us per step"), rows))
    out.print(f"written to {path}; use it with  --step-rates {path}", markup=False)


def fit_sts(
    model: Model, requests: list[Request], options: DecodeOptions, path: Path, dataset: str, as_json: bool
) -> None:
    """Decode the prompts, fit temperatures to what became of their drafts, write them and show them.

    Raises:
        ModelError: an option cannot be served, or nothing was verified.
        ConfigError: the file cannot be written.
    """
    from dspark_ops.decode.calibration import write_calibration
    from dspark_ops.decode.sts_collect import fit_from_run

    with right_numbers(model.plan(options.gamma).device.features):
        fitted, generation = fit_from_run(model, requests, options, dataset)
    write_calibration(path, fitted)
    columns = (fitted.temperatures, fitted.ece_before, fitted.ece_after)
    if as_json:
        names = ("temperatures", "ece_before", "ece_after")
        found = {name: list(column) for name, column in zip(names, columns, strict=True)}
        print_json({"file": str(path), "blocks": fitted.samples, "emitted": generation.metrics.emitted, **found})
        return
    rows = [
        (str(draft), f"{temperature:.3f}", f"{before:.4f}", f"{after:.4f}")
        for draft, (temperature, before, after) in enumerate(zip(*columns, strict=True), 1)
    ]
    out = console()
    title = f"temperatures of the confidences, fitted to {fitted.samples} blocks of {len(requests)} prompts"
    out.print(table(title, ("#draft", "#temperature", "#error before", "#error after"), rows))
    out.print(f"written to {path}; use it with  --calibration {path}", markup=False)


def _origin(model: Model, options: DecodeOptions, method: str) -> dict[str, Any]:
    import torch

    device = model.plan(options.gamma).device
    return {
        "device": torch.cuda.get_device_name() if model.torch_device.startswith("cuda") else device.name,
        "arch": device.arch.name,
        "dspark-ops": __version__,
        "torch": torch.__version__,
        "execution": options.execution.value,
        "gamma": model.config.gamma if options.gamma is None else options.gamma,
        "plan": model.plan(options.gamma).digest,
        "method": method,
    }
