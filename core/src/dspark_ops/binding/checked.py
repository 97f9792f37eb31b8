"""Checked operators: what ``plan.bind(check=True)`` gives. For tests and debugging: it may wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.binding.arguments import Refused, check_kinds, check_sizes, check_values
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from dspark_ops.contracts.contract import Contract
    from dspark_ops.selection.device import Device

Function = Callable[..., Any]

#: Gets a kernel's id and a call's arguments; raises `Refused` where the call is outside the kernel's region.
Held = Callable[[str, Mapping[str, Any]], None]


def device_type(device: Device) -> str:
    """Return the torch device type of a planned device."""
    return "cuda" if device.is_accelerator else "cpu"


def checked(
    contract: Contract,
    by_rows: Mapping[int, Function],
    kernels: Mapping[int, str],
    *,
    planned: str,
    device_type: str | None = None,
    region: Held | None = None,
) -> Function:
    """Return a function with the contract's signature that checks its arguments, then calls ``by_rows[count]``.

    Checked are, in this order: number and names of the arguments; per argument its kind, dtype, rank, stride form and
    device, per option its type and choices; sizes against each other; the row count; everything else that the
    reference refuses for sizes and options alone, by calling it on tensors without storage, and the region of the
    kernel, once for equal sizes and options; and the values that a contract bounds, which are read from the device.

    Args:
        contract: the operator.
        by_rows: what to call for each planned row count.
        kernels: id of the kernel behind each.
        planned: the planned row counts as a text, for the error.
        device_type: torch device type that the kernels run on, such as ``cuda``; None admits any that has storage.
        region: holds a call against the region of the kernel that would serve it; None where that is not known.

    The function raises `ContractError` for the first thing that is outside the contract. It names the operator, the
    kernel and the argument, and nothing was launched or written then.
    """
    return _wrapped(
        contract, by_rows.get, " or ".join(dict.fromkeys(kernels.values())), kernels, planned, device_type, region
    )


def checked_part(
    contract: Contract,
    function: Function,
    kernel: str,
    whole: str,
    device_type: str | None,
    region: Held | None = None,
) -> Function:
    """Return the checked form of one part of a fused operator, at any row count: the fused operator's own is planned.

    Args:
        contract: the part.
        function: what to call.
        kernel: id of the kernel behind it.
        whole: name of the fused operator, for the error.
        device_type: as for `checked`, like the next.
        region: see there.
    """
    held = region and (lambda served, arguments: region(kernel, arguments))
    return _wrapped(contract, lambda count: function, f"{kernel}, part of {whole}", {}, "", device_type, held)


def _wrapped(
    contract: Contract,
    find: Callable[[int], Function | None],
    kernel: str,
    kernels: Mapping[int, str],
    planned: str,
    device_type: str | None,
    region: Held | None,
) -> Function:
    signature = contract.signature()
    index, dimension = contract.rows_from
    rows_name = contract.parameters[index].name
    accepted: set[tuple[Any, ...]] = set()

    def call(*positional: Any, **named: Any) -> Any:
        served = kernel
        try:
            try:
                bound = signature.bind(*positional, **named)
            except TypeError as error:
                raise Refused(f"arguments: wanted {contract.name}{signature}, got a call with {error}") from None
            bound.apply_defaults()
            arguments = bound.arguments
            check_kinds(contract, arguments, device_type)
            count = int(arguments[rows_name].shape[dimension])
            served = kernels.get(count, kernel)
            sizes = check_sizes(contract, arguments)
            function = find(count)
            if function is None:
                raise Refused(
                    f"argument {rows_name}: wanted a planned number of rows ({planned}), got {count}: plan again with "
                    f"rows that include {count}"
                )
            facts = tuple(_fact(value) for value in arguments.values())
            if facts not in accepted:
                _ask_reference(contract, arguments)
                if region is not None:
                    region(served, arguments)
                accepted.add(facts)
            check_values(contract, arguments, sizes)
        except Refused as refusal:
            raise ContractError(f"{contract.name} (kernel {served}): {refusal}") from refusal.__cause__
        return function(*arguments.values())

    call.__name__ = call.__qualname__ = contract.name
    call.__doc__ = contract.summary
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _ask_reference(contract: Contract, arguments: Mapping[str, Any]) -> None:
    """Let the reference refuse sizes and options, on tensors without storage: nothing is computed and nothing written.

    A reference validates before it computes. What it raises else is that its arithmetic has no form without storage
    (it looks at values), which says nothing about the arguments.
    """
    empty = {name: _without_storage(value) for name, value in arguments.items()}
    try:
        contract.reference(**empty)
    except ContractError as refusal:
        raise Refused(str(refusal).removeprefix(f"{contract.name}: ")) from refusal
    except Exception:  # see above: only a ContractError is a verdict
        return


def _fact(value: Any) -> Any:
    """Return what the reference is told of an argument."""
    return (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else (type(value), value)


def _without_storage(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
