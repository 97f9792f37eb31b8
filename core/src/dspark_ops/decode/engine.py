"""The cycle of a DSpark run: draft, verify, accept, commit, over whatever requests run at the moment (C10)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.accepting import accept_step
from dspark_ops.decode.admission import prefill
from dspark_ops.decode.batch import Batch
from dspark_ops.decode.drafting import Drafter, DraftRequests, Proposal
from dspark_ops.decode.draws import draft_draws
from dspark_ops.decode.folding import FoldFacts, fold_eligible
from dspark_ops.decode.invariants import Ledger
from dspark_ops.decode.metrics import DecodeMetrics
from dspark_ops.decode.model import Model
from dspark_ops.decode.model_drafter import ModelDrafter
from dspark_ops.decode.options import DecodeOptions, Execution, VerifyMode
from dspark_ops.decode.ranges import ranges_for
from dspark_ops.decode.running import Running
from dspark_ops.decode.runtimes.folded import FoldedSteps
from dspark_ops.decode.runtimes.runtime_set import RuntimeSet
from dspark_ops.decode.runtimes.runtime_steps import RuntimeSteps
from dspark_ops.decode.stepping import PackedSteps, Steps
from dspark_ops.decode.v41.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Engine"]


class Engine:
    """The caches of a run and the way its steps are run; requests come from its batch and leave with it.

    Args:
        model: target and drafter.
        batch: the requests; more may be submitted between cycles.
        options: how to decode.
        drafter: proposes in place of the model's own drafter.
        greedy: whether no request will ever be sampled, so that less needs to be prepared.

    Attributes:
        batch: as given.
        total: what no single request owns: times and forwards.

    Raises:
        ModelError: an option cannot be served.
        ConfigError: no block can emit as many tokens as are to be simulated.
    """

    def __init__(
        self, model: Model, batch: Batch, options: DecodeOptions, drafter: Drafter | None, *, greedy: bool
    ) -> None:
        self.batch = batch
        self.total = DecodeMetrics()
        self._model = model
        self._range = ranges_for(options.nvtx)
        self._capped = options.verify_mode is VerifyMode.CAP_ACCEPT
        gamma = model.config.gamma if options.gamma is None else options.gamma
        self._forced = None if options.forced is None else options.forced.start(gamma)
        ops = model.ops(gamma, check=options.check_invariants, simulated=options.forced is not None)
        self._ops = ops.at(site="verify")
        self._state = model.state(batch.slots, options.cache_pages)
        self._ledger = Ledger() if options.check_invariants else None
        own = ModelDrafter(model, self._state, gamma, options.calibration)
        self._folded: FoldedSteps | None = None
        if options.execution is Execution.PACKED:
            self._steps: Steps = PackedSteps(model, ops, self._state, drafter or own, options.policy, gamma)
            return
        runtimes = RuntimeSet(model, self._state, options, batch.slots, batch.stop_ids)
        self._steps = RuntimeSteps(runtimes, drafter or own, drafter)
        folds = options.execution is Execution.FOLDED
        self._facts = FoldFacts(
            own_drafter=drafter is None,
            on_device=runtimes.scheduler(runtimes.primary).on_device,
            checked=options.check_invariants,
            capped=options.verify_mode is VerifyMode.CAP_ACCEPT,
        )
        foldable = folds and not fold_eligible(self._facts, ())
        runtimes.prepare(sampled=not greedy, unfolded=not (foldable and greedy), folded=foldable)
        if folds:
            self._folded = FoldedSteps(runtimes, batch, late=runtimes.captured, forced=self._forced)

    def advance(self) -> None:
        """Let waiting requests enter, and run one cycle over those that run."""
        with torch.inference_mode():
            began = time.perf_counter()
            self._fill_slots()
            ready = time.perf_counter()
            if self.batch.running:
                self._cycle()
            self.total.prefill_seconds += ready - began
            self.total.seconds += time.perf_counter() - ready

    def cancel(self, index: int) -> bool:
        """End a request with what it has emitted so far, free its place, and return whether there was one."""
        found = self.batch.cancel(index)
        self._retire()
        return found

    def simulated(self) -> dict[str, Any] | None:
        """Return what the results of a run with drawn accept lengths must carry, or None for a real run (C3.5)."""
        if self._forced is None:
            return None
        return {**self._forced.report(), "folded": self.total.folded, "forwards": self.total.forwards}

    def _fill_slots(self) -> None:
        while admitted := self.batch.admit():
            if self._ledger:
                self._ledger.admit([item.slot for item in admitted])
            with self._range("prefill"):
                rows, features, first = prefill(self._model, self._ops, self._state, admitted)
                self._commit(rows, features)
            self.batch.emit_one(admitted, first)
            self._retire()

    def _cycle(self) -> None:
        if self._folded is None:
            self._unfolded_cycle()
            return
        reason = fold_eligible(self._facts, self.batch.running)
        if not reason:
            with self._range("folded cycle"):
                self._folded.step(self.batch.running)
            self.total.forwards += 1
            self.total.folded += 1
            self._retire()
            return
        self._folded.drain()
        self._folded.leave()
        self._retire()
        if self.batch.running:
            self.total.unfolded[reason] += 1
            self._unfolded_cycle()

    def _unfolded_cycle(self) -> None:
        running = self.batch.running
        gamma, _ = self._steps.begin(len(running))
        asked = self._draft_requests(running, gamma)
        with self._range("draft"):
            proposal = self._steps.propose(asked)
        lens, most = self._verify_lens(running, proposal)
        run = most if self._capped else lens
        with self._range("verify"):
            step = self._steps.verify(asked, proposal, run)
        if self._ledger:
            self._ledger.feed(step.rows)
        self.total.forwards += 1
        with self._range("accept"):
            drawn, forced = self._drawn(running)
            accepted = accept_step(self._ops, running, step.candidates, step.logits, proposal, lens, forced)
        with self._range("commit"):
            self._commit(*step.committed(accepted.commit_lens))
        emitted = self.batch.emit(running, accepted.tokens, accepted.commit_lens)
        correct_lens = accepted.correct_len.tolist()
        allowed = lens.tolist()
        if self._forced is not None:
            self._forced.note(drawn, [correct + 1 for correct in correct_lens])
        self._steps.observe([correct + 1 for correct in correct_lens], allowed)
        # Rows that were not run have no logits, and what the operator says behind the cut means nothing then.
        capped_lens = accepted.capped.tolist() if self._capped else [0] * len(running)
        counts = zip(running, run.tolist(), allowed, correct_lens, emitted, capped_lens, strict=True)
        for item, rows, most_rows, correct, kept, capped in counts:
            item.metrics.step(gamma, rows, correct, len(kept), allowed=most_rows, capped=capped)
        if self._ledger:
            self._ledger.after_cycle(running, emitted, gamma)
        self._retire()

    def _drawn(self, running: Sequence[Running]) -> tuple[list[int], Tensor | None]:
        if self._forced is None:
            return [], None
        drawn = self._forced.draw([item.index for item in running])
        return drawn, torch.tensor(drawn, dtype=torch.int32, device=self._model.torch_device)

    def _draft_requests(self, running: Sequence[Running], gamma: int) -> DraftRequests:
        device = self._model.torch_device
        facts = torch.tensor([[item.slot, item.tokens[-1], item.start] for item in running], device=device)
        slot, anchor, start = facts.T.contiguous().unbind(0)
        temperature = uniforms = None
        if not all(item.greedy for item in running):
            values = [0.0 if item.greedy else item.request.sampling.temperature for item in running]
            temperature = torch.tensor(values, device=device)
            uniforms = draft_draws(running, gamma, device)
        index = tuple(item.index for item in running)
        return DraftRequests(index, slot, anchor, start, gamma, temperature, uniforms)

    def _verify_lens(self, running: Sequence[Running], proposal: Proposal) -> tuple[Tensor, Tensor]:
        """Return the rows each request verifies, and the most it could: the drafts there are, within the context."""
        lens = self._steps.verify_lens(proposal, [item.index for item in running])
        offered = (proposal.drafts >= 0).int().cumprod(-1).sum(-1, dtype=torch.int32)
        room = torch.tensor([item.room for item in running], dtype=torch.int32, device=offered.device)
        most = torch.minimum(offered, room) + 1
        return torch.minimum(lens, most), most

    def _commit(self, rows: Rows, features: Tensor) -> None:
        if self._ledger:
            self._ledger.commit(rows)
        self._steps.commit(rows, features)

    def _retire(self) -> None:
        for item in self.batch.retire():
            self._steps.forget(item.index)
            if self._forced is not None:
                self._forced.forget(item.index)
