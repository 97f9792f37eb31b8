"""The kernels: functions with exactly the signatures of their contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def argmax_rows(x):
    """Return the index of each row's first NaN, else of its maximum, the lowest of equal ones."""
    return x.argmax(-1)


def accept_finalize(correct_len, bonus, cap_trim, drafts, prefix_lens):
    """Return what a verify step commits and emits, given the accepted lengths."""
    columns = torch.arange(drafts.shape[1] + 1, device=drafts.device)
    return _finalize(columns, correct_len, bonus, drafts, prefix_lens)


def prepare_accept_finalize(device: Any, problem: Any, rows: tuple[int, ...]) -> Callable[..., Any]:
    """Return `accept_finalize` for one number of drafts, with the column numbers made ahead of the first call."""
    columns = torch.arange(problem.axes["G"] + 1, device="cuda" if device.is_accelerator else "cpu")

    def prepared(correct_len, bonus, cap_trim, drafts, prefix_lens):
        return _finalize(columns, correct_len, bonus, drafts, prefix_lens)

    return prepared


def _finalize(columns, correct_len, bonus, drafts, prefix_lens):
    commit = correct_len + 1
    tokens = torch.empty(len(drafts), len(columns), dtype=torch.int64, device=drafts.device)
    tokens[:, :-1] = drafts
    tokens[:, -1] = 0
    tokens = torch.where(columns == correct_len[:, None], bonus[:, None], tokens)
    tokens[commit <= 0] = 0
    return commit, prefix_lens + commit.to(prefix_lens.dtype), tokens
