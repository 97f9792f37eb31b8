"""``dspark-ops plan --streams``: which lane a layer of low compress ratio issues what on, as table and picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dspark_ops.cli._plot import check_plot
from dspark_ops.cli._show import console, print_json, table
from dspark_ops.contracts.prepare_plan import MAIN, PreparePlan, Record, Run, low_ratio_prepare
from dspark_ops.errors import ConfigError

#: Kinds of layers, by what they own.
_LAYERS: Final = {
    "a window only": low_ratio_prepare(kv_source=False, index_source=False),
    "a compressor": low_ratio_prepare(kv_source=True, index_source=False),
    "an indexer": low_ratio_prepare(kv_source=False, index_source=True),
    "a compressor and an indexer": low_ratio_prepare(kv_source=True, index_source=True),
}


def show_streams(plot: Path | None, as_json: bool) -> None:
    """Print the prepare plan of every kind of layer, and draw them if `plot` names a file.

    Raises:
        ConfigError, MissingDependencyError: the picture cannot be written.
    """
    if plot is not None:
        check_plot(plot)
        _draw(plot)
    if as_json:
        print_json({layer: [_step_json(step) for step in plan.steps] for layer, plan in _LAYERS.items()})
        return
    for layer, plan in _LAYERS.items():
        title = f"layer with {layer}"
        out = table(title, ("#", "lane", "step"), _rows(plan), ("lane",))
        console().print(out)
        console().print(f"serial order: {', '.join(plan.serial)}\n", markup=False)
    if plot is not None:
        console().print(f"drawn in {plot}", markup=False)


def _step_json(step: Any) -> dict[str, Any]:
    if isinstance(step, Run):
        return {"lane": step.lane, "run": step.item.name, "reads": list(step.item.reads), "writes": [*step.item.writes]}
    return {"lane": step.lane, "record" if isinstance(step, Record) else "wait": step.event}


def _rows(plan: PreparePlan) -> Iterator[tuple[str, ...]]:
    for number, step in enumerate(plan.steps, 1):
        if isinstance(step, Run):
            text = f"{step.item.name}: {', '.join(step.item.reads)} -> {', '.join(step.item.writes)}"
        else:
            text = f"{'record' if isinstance(step, Record) else 'wait for'} {step.event!r}"
        yield str(number), step.lane, text


def _draw(path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(_LAYERS), 1, figsize=(9, 1.8 * len(_LAYERS)))
    for axis, (layer, plan) in zip(axes, _LAYERS.items(), strict=True):
        _draw_plan(axis, plan)
        axis.set_title(f"layer with {layer}", loc="left", fontsize=10)
    figure.supxlabel("order of issue; boxes are work, arrows are events", fontsize=9)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {path}: the picture cannot be written: {error.strerror}") from error
    finally:
        pyplot.close(figure)


def _draw_plan(axis: Any, plan: PreparePlan) -> None:
    lanes = list(dict.fromkeys(step.lane for step in plan.steps))
    height = {lane: -number for number, lane in enumerate(lanes)}
    recorded: dict[str, tuple[float, str]] = {}
    column = 0.0
    for step in plan.steps:
        if isinstance(step, Run):
            color = "#3b6ea5" if step.lane == MAIN else "#a5733b"
            axis.barh(height[step.lane], 0.94, left=column, height=0.6, color=color)
            axis.text(column + 0.47, height[step.lane], step.item.name, ha="center", va="center", color="w", fontsize=8)
            column += 1.0
        elif isinstance(step, Record):
            recorded[step.event] = (column - 0.03, step.lane)
        else:
            start, lane = recorded[step.event]
            ends = {"xy": (max(column, start), height[step.lane]), "xytext": (start, height[lane])}
            axis.annotate("", **ends, arrowprops={"arrowstyle": "->", "color": "#555555", "linestyle": "--"})
    axis.set_yticks([height[lane] for lane in lanes], lanes)
    axis.set_xticks([])
    axis.set_xlim(-0.3, column + 0.5)
    axis.set_ylim(min(height.values()) - 0.6, 0.6)
