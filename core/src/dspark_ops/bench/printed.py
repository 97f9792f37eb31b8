"""Reading what a foreign command printed: its metrics as JSON, as Prometheus text, or as lines of name and value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark_ops.bench.measurement import Dispatch, Measurement
from dspark_ops.errors import EvidenceError

__all__ = ["read_printed"]

_LINE: Final = re.compile(r"^\s*([A-Za-z_][A-Za-z0-9_.:]*)\s*[:=]\s*(\S+)\s*$")
_SAMPLE: Final = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*(?<!:))(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?\s*$")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_NAMESPACE: Final = re.compile(r"^(?:dspark_ops|dspark)[_:]")

#: Other spellings of the figures: names that the field uses for the same thing.
_ALIASES: Final[Mapping[str, str]] = {
    "al": "accept_len",
    "accept_length": "accept_len",
    "acceptance_length": "accept_len",
    "mean_accept_len": "accept_len",
    "output_tokens_per_second": "output_tps",
    "spec_verify_ct": "verify_steps",
    "elapsed_s": "elapsed",
    "ttft_s": "ttft",
}


class _Served(BaseModel):
    model_config = ConfigDict(extra="ignore")

    operator: str
    kernel: str
    calls: int = Field(ge=0)
    rank: str = ""
    why: str = ""
    seconds: float | None = None
    bitwise: bool | None = None


class _Figures(BaseModel):
    """What a command may print; at least one way to know the cycle time is needed."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    cycle_us: list[float] = []
    output_tps: list[float] = []
    ttft_ms: list[float] = []
    elapsed: list[float] = []
    ttft: list[float] = []
    verify_steps: list[float] = []
    accept_len: list[float] = []
    histogram: dict[int, int] = {}
    requests_per_step: float = Field(1.0, gt=0)
    trimmed: float = 0.0
    warmups: int | None = None
    tokens_digest: str = ""
    cached_tokens: int | None = None
    simulated: bool = False
    selection: bool = False
    conformance: str = ""
    gate: str = ""
    folded_share: float | None = None
    eager_fallbacks: int | None = None
    first_fallback: str = ""
    host_syncs: int | None = None
    dispatch: list[_Served] | None = None


_LISTS: Final = ("cycle_us", "output_tps", "ttft_ms", "elapsed", "ttft", "verify_steps", "accept_len")


def read_printed(text: str) -> Measurement:
    """Return the measurement that a command's output holds.

    Read is, in this order: the whole output as one JSON object; its last line that is one; else Prometheus samples
    (``name{labels} value``) and lines ``name = value`` or ``name: value``. A name that occurs several times is one
    figure per timed run. Wanted are ``cycle_us``, or ``elapsed``, ``ttft`` (both in seconds) and ``verify_steps``, or
    ``output_tps`` and ``accept_len`` at batch 1. Names may carry the prefix ``dspark_ops_``. Dispatch evidence is the
    list ``dispatch``, or samples ``dispatch_calls_total{operator="...",kernel="..."}``.

    Raises:
        EvidenceError: there is no cycle time in it, or a figure is no number.
    """
    found = _json(text)
    if found is None:
        found = _lines(text)
    names = {_name(key): value for key, value in found.items()}
    for name in _LISTS:
        if name in names and not isinstance(names[name], list):
            names[name] = [names[name]]
    try:
        figures = _Figures.model_validate(names)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise EvidenceError(f"metrics: {place}: {first['msg']}, got {first['input']!r}") from None
    return _measurement(figures)


def _measurement(figures: _Figures) -> Measurement:
    accept_len = sum(figures.accept_len) / len(figures.accept_len) if figures.accept_len else None
    if accept_len is None and figures.histogram:
        accept_len = sum(k * v for k, v in figures.histogram.items()) / sum(figures.histogram.values())
    cycles = _cycles(figures, accept_len)
    if not cycles or min(cycles) <= 0:
        raise EvidenceError(
            "metrics: wanted cycle_us, or elapsed, ttft and verify_steps, or output_tps and accept_len, all positive; "
            f"got {', '.join(sorted(figures.model_fields_set)) or 'no figure'}"
        )
    served = figures.dispatch
    return Measurement(
        cycle_us=tuple(cycles),
        output_tps=tuple(figures.output_tps),
        ttft_ms=tuple(figures.ttft_ms or [1e3 * value for value in figures.ttft]),
        accept_len=accept_len,
        histogram=figures.histogram,
        verify_steps=round(sum(figures.verify_steps) / len(figures.verify_steps)) if figures.verify_steps else 0,
        dispatch=None if served is None else tuple(Dispatch(**item.model_dump()) for item in served),
        ignored=tuple(sorted(figures.model_extra or {})),
        **{
            name: getattr(figures, name)
            for name in (
                "requests_per_step", "trimmed", "warmups", "tokens_digest", "cached_tokens", "simulated", "selection",
                "folded_share", "eager_fallbacks", "first_fallback", "host_syncs", "conformance", "gate",
            )
        },
    )  # fmt: skip


def _cycles(figures: _Figures, accept_len: float | None) -> list[float]:
    if figures.cycle_us:
        return figures.cycle_us
    counts = len(figures.elapsed), len(figures.ttft), len(figures.verify_steps)
    if any(counts):
        if len(set(counts)) > 1:
            raise EvidenceError(
                f"metrics: wanted elapsed, ttft and verify_steps of each timed run, got {counts[0]}, {counts[1]} and "
                f"{counts[2]} figures"
            )
        if min(figures.verify_steps) <= 0:
            raise EvidenceError("metrics: wanted at least one verify step in every timed run")
        runs = zip(figures.elapsed, figures.ttft, figures.verify_steps, strict=True)
        return [1e6 * (elapsed - ttft) / steps for elapsed, ttft, steps in runs]
    if figures.output_tps and accept_len and min(figures.output_tps) > 0:
        return [1e6 * accept_len * figures.requests_per_step / tps for tps in figures.output_tps]
    return []


def _json(text: str) -> dict[str, Any] | None:
    for candidate in (text, *reversed(text.splitlines())):
        if candidate.lstrip().startswith("{"):
            try:
                value = json.loads(candidate)
            except ValueError:
                continue
            if isinstance(value, dict):
                return value
    return None


def _lines(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    served: list[dict[str, Any]] = []
    for line in text.splitlines():
        sample = None if line.startswith("#") else _SAMPLE.match(line)
        plain = _LINE.match(line)
        if sample and _number(sample[3]) is not None:
            name, labels, value = _name(sample[1]), dict(_LABEL.findall(sample[2] or "")), _number(sample[3])
            if name == "dispatch_calls_total":
                served.append({**labels, "calls": value})
            else:
                found.setdefault(name, []).append(value)
        elif plain and not line.startswith("#"):
            value = _number(plain[2])
            found.setdefault(_name(plain[1]), []).append(plain[2] if value is None else value)
    result = {key: values if key in _LISTS else values[-1] for key, values in found.items()}
    return result | ({"dispatch": served} if served else {})


def _name(key: str) -> str:
    name = _NAMESPACE.sub("", key.strip().lower())
    return _ALIASES.get(name, name)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
