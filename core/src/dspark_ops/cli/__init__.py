"""The command line. Each verb is one module of this package, named like the verb, with a function of that name.

A verb that is a package, such as ``bench``, holds verbs of its own in the same way.

A verb's module is imported when the verb is called, so a package that one verb needs and that is not installed breaks
no other. Modules whose names begin with an underscore are shared parts. Exit codes: 0 fine, 1 a finding, 2 misuse.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from dspark_ops.errors import BindingError, DsparkOpsError, EvidenceError, LockError, PluginError, SelectionError

__all__ = ["main"]

FINDING = 1
MISUSE = 2
#: What speaks of the state of an installation; other errors speak of the words that were given.
_FINDINGS = (SelectionError, PluginError, BindingError, EvidenceError, LockError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: the words after the program's name; by default those of the process.
    """
    from dspark_ops.cli._app import command

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = _show_warning
        try:
            command()(args=None if arguments is None else list(arguments), prog_name="dspark-ops")
        except SystemExit as done:
            return done.code if isinstance(done.code, int) else MISUSE if done.code else 0
        except DsparkOpsError as error:
            sys.stderr.write(f"dspark-ops: {str(error).rstrip()}\n")
            return FINDING if isinstance(error, _FINDINGS) else MISUSE
    return 0


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    sys.stderr.write(f"dspark-ops: warning: {message}\n")
