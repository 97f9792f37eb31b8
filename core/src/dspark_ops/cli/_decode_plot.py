"""The picture of the decode verb: accepted lengths and speed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dspark_ops.errors import ConfigError

if TYPE_CHECKING:
    from dspark_ops.cli._decode_run import DecodeRun


def save_plot(run: DecodeRun, path: Path) -> None:
    """Write a histogram of accepted lengths beside a bar chart of tokens per second.

    Raises:
        ConfigError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), width_ratios=(2, 1))
    if run.speculative:
        metrics = run.speculative.metrics
        lengths = list(range(1, max(metrics.histogram, default=1) + 1))
        left.bar(lengths, [metrics.histogram[length] for length in lengths], color="#3b6ea5")
        left.set_xticks(lengths)
        left.set_title(f"{metrics.verify_steps} verify steps, {metrics.mean_accept_len:.2f} tokens each")
    left.set_xlabel("tokens accepted in a step")
    left.set_ylabel("steps")
    runs = [(name, part) for name, part in (("DSpark", run.speculative), ("plain", run.plain)) if part]
    right.bar([name for name, _ in runs], [part.metrics.tokens_per_second for _, part in runs], color="#a5733b")
    right.set_ylabel("tokens per second")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {path}: the picture cannot be written: {error.strerror}") from error
    finally:
        pyplot.close(figure)
