"""Prepare plans on streams: what is issued where, and what is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dspark_ops.contracts.prepare_plan import low_ratio_prepare, run_items
from dspark_ops.decode import lanes as module
from dspark_ops.decode.lanes import SerialLanes, StreamLanes, lanes_for


class FakeCuda:
    """Streams and events that write down what is done to them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = "main"
        fake = self

        class Stream:
            def __init__(self, name: str) -> None:
                self.name = name

            def wait_event(self, event: Any) -> None:
                fake.log.append(f"{self.name} waits {event.place}")

        class Event:
            place = ""

            def record(self, stream: Stream) -> None:
                self.place = f"for {stream.name} at {len(fake.log)}"
                fake.log.append(f"{stream.name} records")

        self.main, self.side = Stream("main"), [Stream("kv"), Stream("sources")]

        @contextmanager
        def stream(chosen: Stream) -> Iterator[None]:
            before, fake.current = fake.current, chosen.name
            yield
            fake.current = before

        self.cuda = SimpleNamespace(
            current_stream=lambda device: self.main, Stream=lambda device: self.side.pop(), Event=Event, stream=stream
        )


def test_side_work_is_issued_behind_the_main_work_and_right_before_its_join(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    monkeypatch.setattr(module, "torch", SimpleNamespace(cuda=fake.cuda, Tensor=torch.Tensor))

    def item(name: str) -> Any:
        def run(*values: int) -> int:
            fake.log.append(f"{fake.current} runs {name}")
            return sum(values) + 1

        return run

    plan = low_ratio_prepare(kv_source=True, index_source=True, fused_qkv=False)
    program = {name: item(name) for name in plan.items}
    found = StreamLanes("cuda").run(plan, program, {"x": 1})
    assert fake.log == [
        "main records",
        "main runs q_lora",
        "main records",
        "main runs q_store",
        "sources waits for main at 0",
        "sources runs compress",
        "sources waits for main at 2",
        "sources runs index",
        "sources records",
        "main waits for sources at 8",
        "kv waits for main at 0",
        "kv runs kv_store",
        "kv records",
        "main waits for kv at 12",
    ]
    assert found == run_items(plan, program, {"x": 1})


def test_streams_are_used_where_they_exist_and_are_wanted() -> None:
    assert isinstance(lanes_for("cpu", side_streams=True), SerialLanes)
    assert isinstance(lanes_for("cuda", side_streams=False), SerialLanes)
    assert isinstance(lanes_for("cuda:0", side_streams=True), StreamLanes)


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
def test_streams_give_the_serial_values_with_changed_inputs(captured: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    plan = low_ratio_prepare(kv_source=True, index_source=True, fused_qkv=True)
    program = {
        "qkv_a": lambda x: x + 0.5,
        "q_lora": lambda qkv: qkv * 2,
        "q_store": lambda q_lora: (q_lora + 1) * 3,
        "kv_store": lambda qkv: qkv + 5,
        "compress": lambda x: x * 2,
        "index": lambda q_lora, entries: entries + q_lora,
    }
    x = torch.zeros(1 << 20, device="cuda")
    lanes = StreamLanes("cuda")

    def joined(values: dict[str, Any]) -> torch.Tensor:
        total: torch.Tensor = values["q"] + values["selection"] + values["window"]
        return total

    def once() -> torch.Tensor:
        return joined(lanes.run(plan, program, {"x": x}))

    graph = torch.cuda.CUDAGraph()
    if captured:
        once()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = once()
    for value in range(20):
        x.copy_(torch.arange(1 << 20, device="cuda") * value)
        if captured:
            graph.replay()
        else:
            out = once()
        assert torch.equal(out, joined(SerialLanes().run(plan, program, {"x": x})))
