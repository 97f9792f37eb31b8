"""Facts: everything that the doctor looks at, as plain values, so that every fault can be planted in a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dspark_ops.selection.device import Device
from dspark_ops.selection.packages import PackageState
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.registry import Registry


@dataclass(frozen=True, slots=True)
class Adapter:
    """One GPU on the bus, whether or not a driver serves it: PCI address, vendor (``nvidia``, ``amd``), device id."""

    address: str
    vendor: str
    device: str


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """What is known of torch.

    Attributes:
        version: installed version, empty if there is none.
        built_for: ``cuda 13.0``, ``hip 7.0`` or empty for a CPU build.
        started: its device runtime runs in this process.
        started_by_plugins: it does since plugins were imported for this report, and did not before.
        in_forked_child: this process was forked from one in which the runtime ran.
    """

    version: str = ""
    built_for: str = ""
    started: bool = False
    started_by_plugins: bool = False
    in_forked_child: bool = False


@dataclass(frozen=True, slots=True)
class PackageFact:
    """A package that kernels for this device need: who needs it, and whether it will do."""

    module: str
    kernels: tuple[str, ...]
    state: PackageState


@dataclass(frozen=True, slots=True)
class NamedModule:
    """A module whose name several distributions ship.

    Attributes:
        module: the module's name.
        wanted: what it should be, in words.
        install: how to get that.
        vendor: vendor of the devices that it matters on.
        found: it can be imported.
        marks: submodules that prove it is the right one, and `present`, those that are there.
        providers: ``distribution version`` of every installed distribution that bears the name.
    """

    module: str
    wanted: str
    install: str
    vendor: str
    found: bool
    marks: tuple[str, ...]
    present: tuple[str, ...]
    providers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """Architectures that a distribution's binaries hold code for: ``sm_90a``, ``compute_90``, ``gfx950``."""

    distribution: str
    architectures: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Shadow:
    """A plugin's module that an import finds elsewhere than in the distribution that names it."""

    plugin: str
    distribution: str
    module: str
    wanted: str
    found: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A compiler tool: ``nvcc``, ``ptxas``, ``hipcc``; where it was found, how, and what version it prints."""

    name: str
    path: str
    origin: str
    version: str
    output: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A command that was tried: its words, exit code (None: it ran out of time) and the end of its output."""

    command: str
    code: int | None
    output: str


@dataclass(frozen=True, slots=True)
class CudaLibrary:
    """How programs find the CUDA driver's library.

    Attributes:
        link: the trial to link with ``-lcuda``; None where there is no compiler.
        stubs: folders with a stub ``libcuda.so``, as the toolkit ships it.
        loaded_first: what a program that asks for ``libcuda.so.1`` gets, if ``LD_LIBRARY_PATH`` decides it.
    """

    link: Trial | None = None
    stubs: tuple[str, ...] = ()
    loaded_first: str = ""


@dataclass(frozen=True, slots=True)
class TritonFacts:
    """Triton's version, the vendors that it has a backend for, and the trial to compile for the device."""

    version: str = ""
    backends: tuple[str, ...] = ()
    compiled: Trial | None = None


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """A folder that compiled kernels are kept in.

    Attributes:
        owner: whose cache it is, such as ``Triton``.
        path: the folder, whether or not it exists.
        origin: the variable that names it, or ``default``.
        variable: the variable that would move it.
        problem: why it cannot be written, or empty.
        filesystem: type of the file system that it is on, such as ``ext4`` or ``nfs4``.
        mount: where that is mounted.
    """

    owner: str
    path: str
    origin: str
    variable: str
    problem: str = ""
    filesystem: str = ""
    mount: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was gathered.

    Attributes:
        device: what is planned for; None where it cannot be found out, and `device_problem` says why.
        adapters: GPUs on the bus.
        torch, triton, cuda_library: see there.
        start_method: how this process starts others, if that is settled: ``fork``, ``spawn`` or ``forkserver``.
        open_devices: device files of GPUs that this process holds open.
        environment: the variables that were looked at.
        configuration_problem: the text of the error that the configuration raised, or empty.
        removed_variables: variables of earlier versions, and what stands in their place.
        registry: plugins, kernels, failures.
        shadows, packages, named_modules, device_code, tools, caches: see there.
        output_dtypes: dtype names of the outputs, by operator.
        plan: the plan, made without regard to ``policy.fallback``; None where nothing could be planned.
        plan_problem: the text of the error that planning raised.
        start_problem: the text of the error that the policy in force raises at start.
    """

    device: Device | None = None
    device_problem: str = ""
    adapters: tuple[Adapter, ...] = ()
    torch: TorchFacts = TorchFacts()
    triton: TritonFacts = TritonFacts()
    cuda_library: CudaLibrary = CudaLibrary()
    start_method: str = ""
    open_devices: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    configuration_problem: str = ""
    removed_variables: Mapping[str, str] = field(default_factory=dict)
    registry: Registry = field(default_factory=lambda: Registry({}))
    shadows: tuple[Shadow, ...] = ()
    packages: tuple[PackageFact, ...] = ()
    named_modules: tuple[NamedModule, ...] = ()
    device_code: tuple[DeviceCode, ...] = ()
    tools: tuple[Tool, ...] = ()
    caches: tuple[CacheFolder, ...] = ()
    output_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    plan: Plan | None = None
    plan_problem: str = ""
    start_problem: str = ""

    @property
    def vendor(self) -> str:
        """Vendor of the device: ``nvidia``, ``amd`` or ``cpu``; empty where there is none."""
        return self.device.arch.vendor if self.device else ""
