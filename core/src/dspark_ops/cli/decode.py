"""``dspark-ops decode``: a model continues text with DSpark, and what served each operator is said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dspark_ops.cli._decode_prompts import Prompt, prompts_of, unescaped
from dspark_ops.cli._decode_ranks import decode_on_ranks, ranks_of
from dspark_ops.cli._decode_report import print_report, report_json
from dspark_ops.cli._decode_run import Arguments, run_decode
from dspark_ops.cli._options import ConfigOption, JsonOption, configured
from dspark_ops.cli._plot import check_plot
from dspark_ops.cli._show import print_json
from dspark_ops.errors import ConfigError

_SCHEDULES = ("static", "threshold", "prefix", "prefix-global")


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
        str, typer.Option("--schedule", metavar="NAME", help=f"Drafts to verify: {', '.join(_SCHEDULES)}.")
    ] = "static",
    threshold: Annotated[float, typer.Option("--threshold", help="Least confidence, for --schedule threshold.")] = 0.5,
    step_rates: Annotated[
        Path | None, typer.Option("--step-rates", metavar="FILE", help="Measured step rates, for the prefix schedules.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", metavar="FILE", help="Temperatures of the drafter's confidences.")
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
    as_json: JsonOption = False,
) -> None:
    """Continue text, then show what served each operator, accepted lengths and speed.

    Exit code 1 means that greedy tokens differ from plain decoding.
    """
    given = {name: value for name, value in locals().items() if name not in ("ctx", "tp")}
    if tp > 1:
        return decode_on_ranks(tp, device, given)
    ranks = ranks_of(ctx)
    from dspark_ops.decode import DecodeOptions, load_model
    from dspark_ops.decode.calibration import read_calibration

    settings = configured(config).settings
    asked = prompts_of(prompt, prompts)
    stops = tuple(unescaped(text) for text in stop or ())
    if plot is not None:
        check_plot(plot)
    policy = _policy(schedule, threshold, step_rates)
    loaded = load_model(model, device=device, config=settings, ranks=ranks)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    requests = [
        _request(loaded, item, {**sampling, "seed": seed + number, "max_tokens": max_tokens}, stops)
        for number, item in enumerate(asked)
    ]
    length = loaded.config.gamma if gamma is None else gamma
    table = None if calibration is None else read_calibration(calibration, length)
    way, runtimes = _execution(execution, solo_gamma)
    options = DecodeOptions(
        gamma=gamma,
        policy=policy,
        calibration=table,
        max_batch=max_batch,
        cache_pages=cache_pages,
        ignore_eos=ignore_eos,
        check_invariants=check,
        execution=way,
        runtimes=runtimes,
    )
    texts = [item.text for item in asked]
    arguments = Arguments(loaded, texts, requests, options, speculative=not plain, plain=plain or compare)
    run = run_decode(arguments, quiet=as_json or ranks.rank > 0)
    if ranks.rank > 0:  # the first rank reports
        return
    if plot is not None:
        from dspark_ops.cli._decode_plot import save_plot

        save_plot(run, plot)
    if as_json:
        print_json(report_json(run))
    else:
        print_report(run)
    if run.identical is False:
        raise typer.Exit(1)


def _request(model: Any, prompt: Prompt, defaults: dict[str, Any], stops: tuple[str, ...]) -> Any:
    """Return the request of a prompt: what it sets by itself, else what the command line says."""
    from dspark_ops.decode import Request, SamplingParams

    values = {**defaults, **prompt.own}
    most = values.pop("max_tokens")
    return Request(model.tokenizer.encode(prompt.text), most, SamplingParams(**values), prompt.stop or stops)


def _policy(schedule: str, threshold: float, step_rates: Path | None) -> Any:
    """Return the policy that ``--schedule`` names.

    Raises:
        ConfigError: there is no such schedule, or its option is wrong or given to another one.
    """
    from dspark_ops.decode import PrefixPolicy, StaticPolicy, ThresholdPolicy
    from dspark_ops.decode.sps import default_rates, read_rates
    from dspark_ops.suggest import did_you_mean

    if schedule not in _SCHEDULES:
        raise ConfigError(
            f"--schedule {schedule}: wanted one of {', '.join(_SCHEDULES)}{did_you_mean(schedule, _SCHEDULES)}"
        )
    if step_rates is not None and not schedule.startswith("prefix"):
        raise ConfigError(f"--step-rates {step_rates}: only --schedule prefix and prefix-global use it, got {schedule}")
    if schedule == "static":
        return StaticPolicy()
    if schedule == "threshold":
        return ThresholdPolicy(threshold)
    rates = default_rates() if step_rates is None else read_rates(step_rates)
    return PrefixPolicy(rates, "global" if schedule == "prefix-global" else "early_stop")


def _execution(name: str, solo_gamma: int) -> tuple[Any, Any]:
    """Return how the steps are run, and the runtimes for it.

    Raises:
        ConfigError: there is no such execution, or an option is given that it does not use.
    """
    from dspark_ops.decode.options import Execution, RuntimeOptions
    from dspark_ops.suggest import did_you_mean

    names = [way.value for way in Execution]
    if name not in names:
        raise ConfigError(f"--execution {name}: wanted one of {', '.join(names)}{did_you_mean(name, names)}")
    way = Execution(name)
    if solo_gamma and way is Execution.PACKED:
        raise ConfigError(f"--solo-gamma {solo_gamma}: wanted with --execution static, graph or folded, got packed")
    return way, RuntimeOptions(solo_gamma=solo_gamma)
