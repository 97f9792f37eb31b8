"""``dspark-ops bench ab``: two ways to serve the same work, launch by launch, with the noise measured beside them."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dspark_ops.bench.comparison import Verdict, compare_arms
from dspark_ops.bench.design import schedule
from dspark_ops.bench.launching import ArmSpec, Checks
from dspark_ops.bench.session import Session
from dspark_ops.cli._bench_report import print_comparison, report_of
from dspark_ops.cli._bench_session import Output, check_packages, measured_launches
from dspark_ops.cli._decode_options import forced_of
from dspark_ops.cli._decode_prompts import prompts_of
from dspark_ops.cli._options import JsonOption, configured
from dspark_ops.cli._show import console, print_json
from dspark_ops.errors import ConfigError
from dspark_ops.suggest import did_you_mean

Texts = list[str] | None


def ab(
    model: Annotated[Path | None, typer.Option("--model", metavar="DIR", help="Model directory.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="Text to continue.")] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", metavar="FILE", help="Prompts, as for decode.")] = None,
    a: Annotated[Path | None, typer.Option("--a", metavar="FILE", help="Configuration of arm A.")] = None,
    b: Annotated[Path | None, typer.Option("--b", metavar="FILE", help="Configuration of arm B.")] = None,
    a_env: Annotated[Texts, typer.Option("--a-env", metavar="NAME=VALUE", help="A variable of arm A.")] = None,
    b_env: Annotated[Texts, typer.Option("--b-env", metavar="NAME=VALUE", help="A variable of arm B.")] = None,
    a_cmd: Annotated[str, typer.Option("--a-cmd", metavar="WORDS", help="Command that prints A's metrics.")] = "",
    b_cmd: Annotated[str, typer.Option("--b-cmd", metavar="WORDS", help="Command that prints B's metrics.")] = "",
    expect_a: Annotated[Texts, typer.Option("--expect-a", metavar="GLOB", help="Kernel that A must call.")] = None,
    expect_b: Annotated[Texts, typer.Option("--expect-b", metavar="GLOB", help="Kernel that B must call.")] = None,
    knock_out: Annotated[
        str, typer.Option("--knock-out", metavar="OPERATOR", help="B is A without this operator.")
    ] = "",
    execution: Annotated[
        str, typer.Option("--execution", metavar="NAME", help="How steps are run, as for decode.")
    ] = "packed",
    b_execution: Annotated[
        str, typer.Option("--b-execution", metavar="NAME", help="The same for arm B alone.", show_default="as A")
    ] = "",
    treatment: Annotated[
        Texts, typer.Option("--treatment", metavar="FIELD", help="Field of the fingerprint that may differ, too.")
    ] = None,
    pairs: Annotated[int, typer.Option("--pairs", help="Pairs of A and B, two launches each.")] = 4,
    control: Annotated[
        int, typer.Option("--control", help="Pairs of A and A, for the noise; 0 for none.", show_default="as --pairs")
    ] = -1,
    order: Annotated[str, typer.Option("--order", metavar="NAME", help="abba or random.")] = "abba",
    order_seed: Annotated[int, typer.Option("--order-seed", help="Of the random order.")] = 0,
    runs: Annotated[int, typer.Option("--runs", help="Timed runs per launch; their median counts.")] = 5,
    warmups: Annotated[int, typer.Option("--warmups", help="Runs per launch before the timed ones.")] = 1,
    gamma: Annotated[int | None, typer.Option("--gamma", help="Drafts per block; default: the model's.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens per prompt.")] = 64,
    batch: Annotated[int, typer.Option("--batch", help="Prompts at once.")] = 1,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws; prompt number n has seed + n.")] = 0,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    confidence: Annotated[float, typer.Option("--confidence", help="Level of the intervals.")] = 0.95,
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds for one launch.")] = 3600.0,
    gate: Annotated[
        bool, typer.Option("--gate/--no-gate", help="Compare tokens, or their law, with plain decoding, once per arm.")
    ] = True,
    conformance: Annotated[
        bool, typer.Option("--conformance/--no-conformance", help="Hold kernels against contracts, once per arm.")
    ] = True,
    simulate: Annotated[
        str | None,
        typer.Option("--simulate-accept", metavar="LAW", help="Draw accept lengths, equally in both; as for decode."),
    ] = None,
    selection: Annotated[
        bool, typer.Option("--selection", help="This run chooses a configuration: it is no evidence for it.")
    ] = False,
    allow_concurrent: Annotated[
        bool, typer.Option("--allow-concurrent", help="Run although another bench runs here.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write A.json, B.json, report.json and report.html.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two arms in fresh processes, with A against A beside them.

    Arms differ by configuration, by environment variables, or are commands that print their metrics. Exit code 1 means
    that no statement can be made; the faults are listed.
    """
    spec = None
    if a_cmd or b_cmd:
        others = {"model": model, "a": a, "b": b, "prompt": prompt, "prompts": prompts, "knock_out": knock_out,
                  "simulate_accept": simulate}  # fmt: skip
        _refuse_beside_commands(a_cmd, b_cmd, others)
    else:
        spec = _spec(
            model, [item.text for item in prompts_of(prompt, prompts)],
            device=device, gamma=gamma, max_tokens=max_tokens, batch=batch,
            temperature=temperature, seed=seed, warmups=warmups, runs=runs, execution=execution,
            simulated=_drawn(simulate, seed),
        )  # fmt: skip
    if knock_out and b is not None:
        raise ConfigError(f"--knock-out {knock_out}: arm B is arm A without it, so that --b {b} has no place")
    first = _arm(spec, a, a_env, a_cmd, expect_a, "a")
    second = _arm(spec, a if knock_out else b, b_env, b_cmd, expect_b, "b")
    if knock_out and second.spec is not None:
        second = replace(second, spec=replace(second.spec, knock_out=knock_out))
    if b_execution and second.spec is not None:
        second = replace(second, spec=replace(second.spec, execution=b_execution))
    _check_executions(first, second)
    workload: dict[str, Any] = {} if spec is None else spec.workload()
    session = Session(
        first=first,
        second=second,
        slots=schedule(pairs, pairs if control < 0 else control, order, order_seed),
        workload=workload | ({"concurrent": True} if allow_concurrent else {}),
        order=order if order == "abba" else f"{order}, seed {order_seed}",
        declared=tuple(treatment or ()),
        time_limit=time_limit,
        selection=selection,
        checks=Checks(conformance=conformance, gate=gate),
    )
    check_packages(page=out is not None)
    output = Output.prepared(out)
    launches = measured_launches(session, output, quiet=as_json, allow_concurrent=allow_concurrent)
    records = session.records(launches)
    comparison = compare_arms(*records, confidence)
    report = report_of(*records, comparison)
    output.report(report, records, comparison)
    if as_json:
        print_json(report)
    else:
        print_comparison(console(), comparison, records)
        output.say()
    if comparison.verdict is Verdict.VOID:
        raise typer.Exit(1)


def _spec(model: Path | None, texts: list[str], **options: Any) -> Any:
    from dspark_ops.bench.workload import LaunchSpec

    if model is None:
        raise ConfigError("wanted --model DIR, or --a-cmd and --b-cmd for commands of your own")
    if not (model / "config.json").is_file():
        raise ConfigError(f"--model {model}: wanted a directory with a config.json")
    for name in ("runs", "max_tokens", "batch", "warmups"):
        least = 0 if name == "warmups" else 1
        if options[name] < least:
            raise ConfigError(f"--{name.replace('_', '-')}: wanted {least} or more, got {options[name]}")
    return LaunchSpec(str(model.resolve()), tuple(texts), **options)


def _drawn(text: str | None, seed: int) -> dict[str, Any] | None:
    """Return the fields of drawn acceptance, or None for a real run."""
    forced = forced_of(text, seed)
    return None if forced is None else asdict(forced)


def _arm(spec: Any, config: Path | None, variables: Texts, command: str, expected: Texts, name: str) -> ArmSpec:
    text = ""
    if config is not None:
        configured(config)  # a fault in the file is said now, not by a child minutes later
        text = config.read_text(encoding="utf-8")
        spec = replace(spec, config=str(config.resolve()))
    return ArmSpec(
        spec=spec,
        command=tuple(shlex.split(command)),
        environment=dict(_variable(item, name) for item in variables or ()),
        config_text=text,
        expected=tuple(expected or ()),
    )


def _check_executions(*arms: ArmSpec) -> None:
    from dspark_ops.decode.options import Execution

    known = [way.value for way in Execution]
    for name in {arm.spec.execution for arm in arms if arm.spec is not None}.difference(known):
        raise ConfigError(f"--execution {name}: wanted one of {', '.join(known)}{did_you_mean(name, known)}")


def _variable(text: str, name: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--{name}-env {text}: wanted NAME=VALUE")
    return key, value


def _refuse_beside_commands(first: str, second: str, others: dict[str, Any]) -> None:
    if not (first and second):
        raise ConfigError("wanted both --a-cmd and --b-cmd, or neither")
    given = [f"--{name.replace('_', '-')}" for name, value in others.items() if value]
    if given:
        raise ConfigError(f"--a-cmd and --b-cmd run commands of your own: {', '.join(given)} would have no effect")
