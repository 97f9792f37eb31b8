"""The catalogue: devices that can be simulated, so that every decision can be made and explained on a laptop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dspark_ops.api.arch import Arch
from dspark_ops.errors import DeviceError
from dspark_ops.selection.device import Device
from dspark_ops.suggest import did_you_mean

__all__ = ["Product", "catalogue", "features_of", "product_of", "simulated_device"]


@dataclass(frozen=True, slots=True)
class Product:
    """What data sheets say of one product.

    Attributes:
        name: product name, such as ``H200``.
        arch: name of its architecture.
        full_name: name that the driver reports.
        units: streaming multiprocessors (NVIDIA) or compute units (AMD); 0 where that means nothing.
        memory: bytes. Data sheets write GB where drivers count GiB; a real part reports up to a few percent less.
        source: where the figures come from.
    """

    name: str
    arch: str
    full_name: str
    units: int
    memory: int
    source: str


# The first product of an architecture stands for it when only the architecture is named.
_PRODUCTS: Final = (
    Product("H200", "sm_90", "NVIDIA H200", 132, 141 * 2**30, "NVIDIA H200 data sheet; SM count: Hopper white paper"),
    Product("H100", "sm_90", "NVIDIA H100 80GB HBM3", 132, 80 * 2**30, "NVIDIA Hopper white paper, H100 SXM5"),
    Product("B200", "sm_100", "NVIDIA B200", 148, 180 * 2**30, "HGX B200 data sheet; SM count: as devices report it"),
    Product(
        "B300",
        "sm_103",
        "NVIDIA B300 SXM6 AC",
        148,
        288 * 2**30,
        "Blackwell Ultra data sheet; SM count assumed equal to B200's, not verified",
    ),
    Product(
        "GB300",
        "sm_103",
        "NVIDIA GB300",
        152,
        288 * 2**30,
        "Blackwell Ultra data sheet; SM count: contract notes, section 0.2 (NVIDIA)",
    ),
    Product("MI300X", "gfx942", "AMD Instinct MI300X", 304, 192 * 2**30, "ROCm GPU specifications"),
    Product("MI355X", "gfx950", "AMD Instinct MI355X", 256, 288 * 2**30, "ROCm GPU specifications"),
    Product("MI350X", "gfx950", "AMD Instinct MI350X", 256, 288 * 2**30, "ROCm GPU specifications"),
    Product("cpu", "cpu", "cpu", 0, 0, "no accelerator"),
)

# pdl: programmatic dependent launch, compute capability 9.0 and later (CUDA C++ Programming Guide);
#      listed per part, since a number that is not listed here is a part that nobody has checked.
# mx_mma: matrix instructions that take OCP MX block scales: tcgen05.mma .block_scale of PTX on sm_100 and sm_103, and
#      V_MFMA_SCALE of the CDNA4 ISA on gfx950.
_FEATURES: Final = {
    "sm_90": frozenset({"pdl"}),
    "sm_100": frozenset({"pdl", "mx_mma"}),
    "sm_103": frozenset({"pdl", "mx_mma"}),
    "gfx950": frozenset({"mx_mma"}),
}
_FP8_FEATURES: Final = {"float8_e4m3fn": "fp8_e4m3fn", "float8_e4m3fnuz": "fp8_e4m3fnuz"}


def catalogue() -> tuple[Product, ...]:
    """Return every product that can be simulated; the first one of an architecture is the one its bare name gives."""
    return _PRODUCTS


def features_of(arch: Arch) -> frozenset[str]:
    """Return the named abilities of an architecture, such as ``pdl``; an unknown architecture has none."""
    fp8 = _FP8_FEATURES.get(arch.fp8_dtype or "")
    return _FEATURES.get(arch.name, frozenset()) | (frozenset({fp8}) if fp8 else frozenset())


def product_of(driver_name: str) -> Product | None:
    """Return the product that a driver's device name means, such as ``NVIDIA H100 80GB HBM3``, or None."""
    words = driver_name.replace("-", " ").split()
    return next((product for product in _PRODUCTS if product.name in words), None)


def simulated_device(name: str) -> Device:
    """Return the device of a product (``H200``, ``gb300``) or architecture name (``sm_103a``, ``gfx950:xnack-``).

    The result depends on `name` alone: driver, toolkit and torch are empty, so a plan for it is the same everywhere.

    Raises:
        DeviceError: the catalogue has no such device. An architecture that is not listed is not replaced by a near one.
    """
    spelled = name.strip().lower()
    for product in _PRODUCTS:
        if spelled in (product.name.lower(), product.full_name.lower()):
            return _device(product, Arch.parse(product.arch))
    products = [product.name for product in _PRODUCTS]
    known = f"the catalogue has {', '.join(products)}, and the architectures {', '.join(_architectures())}"
    try:
        arch = Arch.parse(name)
    except ValueError:
        hint = did_you_mean(spelled, [*(known_name.lower() for known_name in products), *_architectures()])
        raise DeviceError(f"no device named {name!r}: {known}{hint}") from None
    for product in _PRODUCTS:
        if product.arch == arch.name:
            return _device(product, arch)
    raise DeviceError(f"no device with architecture {arch.name} to simulate: {known}")


def _architectures() -> tuple[str, ...]:
    return tuple(dict.fromkeys(product.arch for product in _PRODUCTS))


def _device(product: Product, arch: Arch) -> Device:
    fields = ("arch", "name", "features", "units", "memory", "driver", "toolkit", "torch", "simulated")
    return Device(
        arch=arch,
        name=product.full_name,
        features=features_of(arch),
        units=product.units,
        memory=product.memory,
        simulated=True,
        origins=dict.fromkeys(fields, "catalogue"),
    )
