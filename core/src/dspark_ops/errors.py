"""Every error that dspark-ops raises on purpose: each says what was wanted, what was got, from where, what to do."""

from __future__ import annotations

__all__ = [
    "BindingError",
    "CaptureError",
    "ConfigError",
    "ContractError",
    "DeviceError",
    "DsparkOpsError",
    "EvidenceError",
    "InvariantError",
    "LockError",
    "LockWarning",
    "MissingDependencyError",
    "ModelError",
    "PluginError",
    "RankError",
    "SelectionError",
    "SelectionWarning",
    "UnknownOperatorError",
    "UnplannedRowsError",
]


class DsparkOpsError(Exception):
    """Base of all errors of this library."""


class MissingDependencyError(DsparkOpsError, ImportError):
    """An optional package is needed for what was asked."""


class ConfigError(DsparkOpsError, ValueError):
    """The configuration is wrong; the text lists every fault with its origin."""


class DeviceError(DsparkOpsError, ValueError):
    """A device cannot be probed, or a simulated one is not in the catalogue."""


class PluginError(DsparkOpsError):
    """A plugin could not be loaded and ``policy.plugin_error = "fail"``."""


class UnknownOperatorError(DsparkOpsError, KeyError):
    """No contract has this name; the text names the nearest ones."""

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0]) if self.args else ""


class SelectionError(DsparkOpsError):
    """No kernel may serve an operator under the policy; the text carries every candidate's reasons."""


class BindingError(DsparkOpsError):
    """A chosen kernel could not be imported or prepared, or its signature is not the contract's."""


class UnplannedRowsError(DsparkOpsError, LookupError):
    """An operator was called with a row count that the plan does not cover."""


class ContractError(DsparkOpsError, ValueError):
    """A value is outside an operator's contract; raised before anything is written."""


class ModelError(DsparkOpsError, ValueError):
    """A model directory, its configuration or its weights cannot be used as they are."""


class EvidenceError(DsparkOpsError):
    """Evidence that a kernel would claim cannot be produced here, so it is refused."""


class LockError(DsparkOpsError):
    """A lock file is damaged, belongs to another environment, or does not describe what would run here."""


class LockWarning(UserWarning):
    """A lock file does not describe this environment in every point, and ``policy.lock = "prefer"`` lets it pass."""


class SelectionWarning(UserWarning):
    """An operator is served by a weaker class than required, and ``policy.fallback = "warn"`` lets it pass."""


class InvariantError(DsparkOpsError):
    """A self-check of the decode loop failed: a fault of this library or of a drafter, never of the input."""


class RankError(DsparkOpsError, RuntimeError):
    """Ranks do not agree on what they are to run, or one of them has ended or does not answer; all others raise it."""


class CaptureError(DsparkOpsError, RuntimeError):
    """A step cannot be captured in a graph, or one that was not prepared is asked for; the text names the operator."""
