"""Nothing else in the process breaks a capture: what can be seen of that without a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from dspark_ops.binding.capture import captured_in


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What torch is asked to capture with; nothing is captured."""
    found: list[dict[str, Any]] = []

    @contextmanager
    def graph(graph: Any, **options: Any) -> Iterator[None]:
        found.append(options)
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    return found


def test_the_collector_rests_while_a_graph_is_captured(asked: list[dict[str, Any]]) -> None:
    with captured_in("graph", pool="pool"):
        assert not gc.isenabled()
    assert gc.isenabled()
    assert asked == [{"pool": "pool", "stream": None, "capture_error_mode": "thread_local"}]


def test_the_collector_goes_on_after_a_capture_that_failed(asked: list[dict[str, Any]]) -> None:
    with pytest.raises(RuntimeError, match="no"), captured_in("graph"):
        raise RuntimeError("no")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(asked: list[dict[str, Any]]) -> None:
    gc.disable()
    try:
        with captured_in("graph"):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
