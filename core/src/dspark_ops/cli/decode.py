"""``dspark-ops decode``: a model continues text with DSpark, and what served each operator is said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark_ops.cli._decode_measure import fit_sts, profile_sps
from dspark_ops.cli._decode_metrics import check_metrics, save_metrics
from dspark_ops.cli._decode_options import SCHEDULES, chosen, execution_of, forced_of, policy_of, request_of, widths_of
from dspark_ops.cli._decode_prompts import prompts_of, unescaped
from dspark_ops.cli._decode_ranks import decode_on_ranks, ranks_of
from dspark_ops.cli._decode_report import print_report, report_json
from dspark_ops.cli._decode_run import Arguments, run_decode
from dspark_ops.cli._options import ConfigOption, JsonOption, configured
from dspark_ops.cli._plot import check_plot
from dspark_ops.cli._show import print_json
from dspark_ops.errors import ConfigError


def decode(
    ctx: typer.Context,
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="Model directory: config.json, weights ...")],
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help=r"Text to continue; \n, \t and \\ are escapes.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help='Prompts: one per line, or JSONL with "prompt"; a line may also set temperature, top_k, top_p, seed, '
            "max_tokens and stop.",
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help=r"Text that ends a prompt's output; \n, \t, \\. Repeatable."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Decode with the target alone.")] = False,
    gamma: Annotated[
        int | None, typer.Option("--gamma", help="Drafts per block, 1 to 8; default: the model's.")
    ] = None,
    schedule: Annotated[
        str, typer.Option("--schedule", "--policy", metavar="NAME", help=f"Drafts to verify: {', '.join(SCHEDULES)}.")
    ] = "static",
    verify_rows: Annotated[
        int, typer.Option("--verify-rows", help="Rows per prompt, the anchor included, for --schedule static; 0: all.")
    ] = 0,
    verify_widths: Annotated[
        str, typer.Option("--verify-widths", metavar="LIST", help="Widths below the full one, for --schedule uniform.")
    ] = "2,3",
    verify_mode: Annotated[
        str,
        typer.Option(
            "--verify-mode", metavar="NAME", help="Drafts left out: not run (compact), or run in vain (cap-accept)."
        ),
    ] = "compact",
    threshold: Annotated[float, typer.Option("--threshold", help="Least confidence, for --schedule threshold.")] = 0.5,
    step_rates: Annotated[
        Path | None, typer.Option("--step-rates", metavar="FILE", help="Measured step rates, for prefix and uniform.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile-sps", metavar="FILE", help="Measure step rates here, write them, and do nothing else."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", metavar="FILE", help="Temperatures of the drafter's confidences.")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option("--fit-sts", metavar="FILE", help="Decode, and write temperatures fitted to the confidences."),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Keep this many tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", help="Keep tokens up to this probability.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws; prompt number n has seed + n.")] = 0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Most tokens per prompt.")] = 96,
    max_batch: Annotated[int, typer.Option("--max-batch", help="Most prompts at once.")] = 4,
    cache_pages: Annotated[
        int,
        typer.Option(
            "--cache-pages", help="Pages of 128 positions that all prompts share; prompts wait for them. 0: no limit."
        ),
    ] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end-of-text token.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Also decode plainly, for the figures beside it.")
    ] = True,
    check: Annotated[bool, typer.Option("--check", help="Check the loop's own rules after every cycle.")] = False,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    execution: Annotated[
        str,
        typer.Option(
            "--execution", metavar="NAME", help="packed, or at fixed sizes: static, graph (captured), folded (C2.9)."
        ),
    ] = "packed",
    solo_gamma: Annotated[
        int, typer.Option("--solo-gamma", help="Drafts per block while one request runs alone; not when packed.")
    ] = 0,
    tp: Annotated[
        int,
        typer.Option("--tp", min=1, max=8, help="Tensor-parallel ranks, each a process; on cuda each with a GPU."),
    ] = 1,
    config: ConfigOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write the figures as a picture.")] = None,
    metrics: Annotated[
        Path | None,
        typer.Option("--metrics", metavar="FILE", help="Write counters and figures: .json, or .prom for Prometheus."),
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(
            "--simulate-accept",
            metavar="LAW",
            help="Draw how many tokens steps emit: [LAW:]MEAN[:SCOPE], laws two-point, per-position, normal-clamped; "
            "scopes per-request, per-step. The text means nothing then.",
        ),
    ] = None,
    nvtx: Annotated[bool, typer.Option("--nvtx", help="Mark the parts of each cycle for a profiler.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Continue text, then show what served each operator, accepted lengths and speed.

    Exit code 1 means that greedy tokens differ from plain decoding.
    """
    given = {name: value for name, value in locals().items() if name not in ("ctx", "tp")}
    if tp > 1 and (profile is not None or fit is not None):
        raise ConfigError(f"--profile-sps and --fit-sts run on one rank, got --tp {tp}")
    if tp > 1:
        return decode_on_ranks(tp, device, given)
    ranks = ranks_of(ctx)
    from dspark_ops.decode import DecodeOptions, load_model
    from dspark_ops.decode.calibration import read_calibration
    from dspark_ops.decode.options import VerifyMode

    settings = configured(config).settings
    widths = widths_of(verify_widths)
    way, runtimes = execution_of(execution, solo_gamma, widths)
    mode = chosen("--verify-mode", verify_mode, VerifyMode)
    asked = [] if profile is not None else prompts_of(prompt, prompts)
    stops = tuple(unescaped(text) for text in stop or ())
    if plot is not None:
        check_plot(plot)
    if metrics is not None:
        check_metrics(metrics)
    policy = policy_of(schedule, threshold, step_rates, verify_rows, widths)
    loaded = load_model(model, device=device, config=settings, ranks=ranks, graphs=way.captures(device))
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    requests = [
        request_of(loaded, item, {**sampling, "seed": seed + number, "max_tokens": max_tokens}, stops)
        for number, item in enumerate(asked)
    ]
    length = loaded.config.gamma if gamma is None else gamma
    table = None if calibration is None else read_calibration(calibration, length)
    options = DecodeOptions(
        gamma=gamma,
        policy=policy,
        verify_mode=mode,
        calibration=table,
        max_batch=max_batch,
        cache_pages=cache_pages,
        ignore_eos=ignore_eos,
        check_invariants=check,
        execution=way,
        runtimes=runtimes,
        forced=forced_of(simulate, seed),
        nvtx=nvtx,
    )
    if options.forced is not None and (plain or profile is not None or fit is not None):
        raise ConfigError("--simulate-accept: wanted a run with DSpark, got --plain, --profile-sps or --fit-sts")
    if profile is not None:
        return profile_sps(loaded, options, profile, as_json)
    if fit is not None:
        return fit_sts(loaded, requests, options, fit, str(prompts or "--prompt"), as_json)
    texts = [item.text for item in asked]
    compared = compare and options.forced is None
    arguments = Arguments(loaded, texts, requests, options, speculative=not plain, plain=plain or compared)
    run = run_decode(arguments, quiet=as_json or ranks.rank > 0)
    if ranks.rank > 0:  # the first rank reports
        return
    if plot is not None:
        from dspark_ops.cli._decode_plot import save_plot

        save_plot(run, plot)
    if metrics is not None:
        save_metrics(run, metrics)
    if as_json:
        print_json(report_json(run))
    else:
        print_report(run)
    if run.identical is False:
        raise typer.Exit(1)
