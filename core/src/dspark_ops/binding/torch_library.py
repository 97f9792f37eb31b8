"""Bound operators as `torch.library` operators, so that torch.compile and torch.export see one opaque node for each.

The eager path does not come through here: ``ops.x`` stays the kernel's own function. What a compiled graph holds is the
operator's name; the kernel behind it is looked up when the graph runs, so a graph never keeps a kernel of an old plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn

from dspark_ops import contracts as _contracts
from dspark_ops._lazy import torch
from dspark_ops.binding.bind import bind
from dspark_ops.binding.bound import BoundOps, OpsView
from dspark_ops.binding.fake_outputs import returned_outputs, shapes_only
from dspark_ops.contracts.contract import REQUIRED, Argument, Contract, Option
from dspark_ops.errors import BindingError
from dspark_ops.selection.plan import Plan

__all__ = ["NAMESPACE", "TorchOps", "register_torch_ops", "torch_schema"]

Function = Callable[..., Any]

NAMESPACE: Final = "dspark_ops"

#: Operator without arguments that returns the digest of the plan behind a namespace.
DIGEST: Final = "plan_digest"

_TYPES: Final[Mapping[str, str]] = {"int": "SymInt", "float": "float", "bool": "bool", "str": "str"}


class TorchOps:
    """The operators of one plan under one namespace of ``torch.ops``; made by `register_torch_ops`.

    They stay registered until `unregister` is called, whether or not this value is kept. As a context manager it
    unregisters at the end.

    Attributes:
        namespace: ``torch.ops.<namespace>`` holds the operators.
        names: the operators, sorted.
        digest: digest of the plan that they follow.
    """

    __slots__ = ("_library", "digest", "names", "namespace")

    def __init__(self, namespace: str, names: tuple[str, ...], digest: str, library: Any) -> None:
        self.namespace = namespace
        self.names = names
        self.digest = digest
        self._library = library

    def unregister(self) -> None:
        """Take the operators out of torch again. What was compiled with them needs others under the same names."""
        # torch gives up a library's registrations when the library object goes. The operator `plan_digest` refers to
        # this value, and torch to that operator, so until then nothing collects it.
        self._library = None

    def __call__(self) -> str:
        """Return the digest; this is the operator ``torch.ops.<namespace>.plan_digest``."""
        return self.digest

    def __enter__(self) -> TorchOps:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the operators."""
        return iter(self.names)

    def __repr__(self) -> str:
        state = "" if self._library is not None else ", unregistered"
        return f"<TorchOps torch.ops.{self.namespace}: {len(self.names)} operators of plan {self.digest}{state}>"

    def __reduce__(self) -> NoReturn:
        raise BindingError("registered operators belong to their process and cannot be pickled: pickle the plan")


def register_torch_ops(plan: Plan, ops: BoundOps | None = None, *, namespace: str = NAMESPACE) -> TorchOps:
    """Return the registration of every operator of a plan as ``torch.ops.<namespace>.<operator>``.

    Each takes the contract's arguments, and ``site=`` by keyword where sites are served by different kernels. Arguments
    that the contract writes are declared as mutated. An output in the memory of an argument or of another output, or
    with gaps between its elements, is copied: a compiled graph counts on outputs of their own, row after row. They have
    no gradient.

    One namespace holds one plan: register a second plan under another one, or call `TorchOps.unregister` first.

    Args:
        plan: whose operators.
        ops: what binding the plan gave; by default it is bound here.
        namespace: a Python identifier.

    Raises:
        BindingError: the namespace is no identifier or holds a plan already, `ops` follow another plan, or the plan
            cannot be bound.
        MissingDependencyError: torch is not installed.
    """
    if not namespace.isidentifier():
        raise BindingError(f"torch namespace: wanted an identifier such as {NAMESPACE!r}, got {namespace!r}")
    present = getattr(getattr(torch.ops, namespace), DIGEST, None)
    if present is not None:
        raise BindingError(
            f"torch.ops.{namespace} holds the operators of plan {present()} already: call unregister() on what "
            f"register_torch_ops() returned then, or give another namespace="
        )
    bound = bind(plan) if ops is None else ops
    if bound.plan.digest != plan.digest:
        raise BindingError(f"the operators follow plan {bound.plan.digest}, wanted those of plan {plan.digest}")
    make_library: Any = torch.library.Library  # torch leaves it without types
    library = make_library(namespace, "FRAGMENT")
    registered = TorchOps(namespace, tuple(bound), plan.digest, library)
    sites = dict.fromkeys(site for name in registered for site in _sites(bound.plan, name))
    views = {site: bound.at(site=site) for site in sites}
    for name in registered:
        _register(library, namespace, _contracts.get(name), *_functions(bound, views, name))
    library.define(f"{DIGEST}() -> str")
    library.impl(DIGEST, registered.__call__, "CompositeExplicitAutograd")
    return registered


def torch_schema(contract: Contract) -> str:
    """Return the operator's schema in torch's notation: mutated arguments marked, options with their defaults."""
    parameters = [_parameter(parameter, index) for index, parameter in enumerate(contract.parameters)]
    returns = [
        "Tensor?" if output.none_without or output.none_with else "Tensor" for output in returned_outputs(contract)
    ]
    result = returns[0] if len(returns) == 1 else f"({', '.join(returns)})"
    return f"{contract.name}({', '.join(parameters)}, *, str site='') -> {result}"


def _parameter(parameter: Argument | Option, index: int) -> str:
    if isinstance(parameter, Argument):
        kind = f"Tensor(a{index}!)" if parameter.written else "Tensor"
    else:
        kind = _TYPES[parameter.type]
    if parameter.default is None or parameter.optional:
        kind += "?"
    default = "" if parameter.default is REQUIRED else f"={parameter.default!r}"
    return f"{kind} {parameter.name}{default}"


def _register(library: Any, namespace: str, contract: Contract, by_site: Mapping[str, Function], refusal: str) -> None:
    returned = len(returned_outputs(contract))

    def find(site: str) -> Function:
        if not site and refusal:
            raise BindingError(refusal)
        function = by_site.get(site)
        if function is None:
            sites = ", ".join(filter(None, by_site))
            raise BindingError(f"{contract.name} is not called at site {site!r}: its sites are {sites}")
        return function

    def run(*arguments: Any, site: str = "") -> Any:
        return _owned(find(site)(*arguments), arguments, returned)

    def fake(*arguments: Any, site: str = "") -> Any:
        find(site)  # a call without a kernel is refused while it is traced
        return shapes_only(contract, arguments)

    # A kernel's region is judged by strides, so the compiler must hand over those that the program had.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    library.define(torch_schema(contract), tags=tags)
    library.impl(contract.name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{namespace}::{contract.name}", fake, lib=library)


def _functions(ops: BoundOps, views: Mapping[str, OpsView], name: str) -> tuple[dict[str, Function], str]:
    """Return an operator's callable per site, under the empty name the one for every site; or why there is none."""
    by_site = {site: getattr(view, name) for site, view in views.items() if site in _sites(ops.plan, name)}
    try:
        return {"": getattr(ops, name), **by_site}, ""
    except BindingError as refusal:
        return by_site, str(refusal).replace(f"ops.at(site=...).{name}", "site=...")


def _sites(plan: Plan, name: str) -> tuple[str, ...]:
    return tuple(selection.site for selection in plan.of(name))


def _owned(result: Any, arguments: tuple[Any, ...], returned: int) -> Any:
    """Return a kernel's result as torch wants it: contiguous, and no output in the memory of another or an argument."""
    if not returned:
        return None
    outputs = result if isinstance(result, tuple) else (result,)
    taken = {_memory(value) for value in arguments if isinstance(value, torch.Tensor)}
    own = []
    for output in outputs:
        if output is not None and output.numel():
            shared = _memory(output) in taken
            output = output.clone(memory_format=torch.contiguous_format) if shared else output.contiguous()
            taken.add(_memory(output))
        own.append(output)
    return own[0] if returned == 1 else tuple(own)


def _memory(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address
