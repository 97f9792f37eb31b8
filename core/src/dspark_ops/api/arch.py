"""Architectures: which exact chip a kernel is for, compared by membership and never by order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

#: Families group exact architectures whose machine code is shared or whose tuning is the same. Exact membership only.
FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "sm_8x": ("sm_80", "sm_86", "sm_87", "sm_89"),
    "sm_9x": ("sm_90",),
    "sm_10x": ("sm_100", "sm_103"),
    "sm_11x": ("sm_110",),
    "sm_12x": ("sm_120", "sm_121"),
    "gfx90x": ("gfx908", "gfx90a"),
    "gfx94x": ("gfx942",),
    "gfx95x": ("gfx950",),
    "gfx11x": ("gfx1100", "gfx1101", "gfx1102", "gfx1151"),
    "cpu": ("cpu",),
}
_FAMILY_OF: Final = {name: family for family, names in FAMILIES.items() for name in names}

#: Which eight-bit float an AMD part computes with; NVIDIA parts from sm_89 on use ``float8_e4m3fn``.
_FP8_FNUZ: Final = ("gfx942",)
_FP8_FN: Final = ("sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121", "gfx950", "cpu")

# sm_103, sm_103a, sm_103f, sm103, 10.3: one device. The letter names an instruction-set variant, not another chip.
_NVIDIA: Final = re.compile(r"^(?:sm_?)?(?P<digits>\d{2,3})(?P<variant>[af]?)$|^(?P<major>\d{1,2})\.(?P<minor>\d)$")
# gfx950:sramecc+:xnack- , optionally behind a target triple such as amdgcn-amd-amdhsa--
_AMD: Final = re.compile(
    r"^(?:[a-z0-9]+-[a-z0-9]+-[a-z0-9]+-[a-z0-9]*-)?(?P<base>gfx[0-9a-f]{3,4})(?P<flags>(?::[a-z]+[+-])*)$"
)


@dataclass(frozen=True, slots=True)
class Arch:
    """One exact architecture: vendor, name, family, and the feature flags that its name carried.

    Two spellings of one chip (``sm_103``, ``sm_103a``, ``10.3``) parse to equal values. There is no order between
    architectures: sm_120 is not "at least" sm_100.
    """

    vendor: str
    name: str
    family: str
    flags: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Return the architecture that `text` names.

        Args:
            text: ``cpu``, an NVIDIA name (``sm_103``, ``sm_103a``, ``10.3``) or an AMD name
                (``gfx950:sramecc+:xnack-``).

        Raises:
            ValueError: `text` follows none of these forms. A well-formed name that is in no family is not an error: it
                parses with family ``unknown`` and no kernel that asks for a family accepts it.
        """
        spelled = text.strip().lower()
        if spelled == "cpu":
            return cls("cpu", "cpu", "cpu")
        if match := _AMD.match(spelled):
            flags = tuple(sorted((flag[:-1], flag[-1]) for flag in match["flags"].split(":") if flag))
            return cls("amd", match["base"], _FAMILY_OF.get(match["base"], "unknown"), flags)
        if match := _NVIDIA.match(spelled):
            digits = match["digits"] or match["major"] + match["minor"]
            name = f"sm_{digits}"
            return cls("nvidia", name, _FAMILY_OF.get(name, "unknown"))
        raise ValueError(
            f"cannot read an architecture from {text!r}: wanted 'cpu', an NVIDIA name such as 'sm_103' or '10.3', "
            f"or an AMD name such as 'gfx950:sramecc+:xnack-'"
        )

    @property
    def fp8_dtype(self) -> str | None:
        """Name of the torch dtype that this part's 8-bit float units use, or None if it has none."""
        if self.name in _FP8_FNUZ:
            return "float8_e4m3fnuz"
        return "float8_e4m3fn" if self.name in _FP8_FN else None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ArchSet:
    """The set of architectures that a kernel accepts, with the text that explains a refusal."""

    names: frozenset[str]
    text: str
    any_of_vendor: str | None = None

    def matches(self, arch: Arch) -> bool:
        """Whether `arch` is a member."""
        if self.any_of_vendor == "*":
            return arch.vendor != "cpu"
        if self.any_of_vendor is not None:
            return arch.vendor == self.any_of_vendor
        return arch.name in self.names

    def __or__(self, other: ArchSet) -> ArchSet:
        """Return the union of two sets that both list their members."""
        if self.any_of_vendor or other.any_of_vendor:
            raise ValueError(f"only listed sets can be joined, got {self.text!r} and {other.text!r}")
        return ArchSet(self.names | other.names, f"{self.text} or {other.text}")


def family(*names: str) -> ArchSet:
    """Accept every member of the named families, for example ``family("sm_10x")`` for sm_100 and sm_103.

    Raises:
        ValueError: a name is not a known family.
    """
    for name in names:
        if name not in FAMILIES:
            raise ValueError(f"unknown family {name!r}: wanted one of {', '.join(sorted(FAMILIES))}")
    return ArchSet(frozenset(member for name in names for member in FAMILIES[name]), " or ".join(names))


def exact(*names: str) -> ArchSet:
    """Accept exactly the named architectures.

    Raises:
        ValueError: a name is no architecture; a bare minimum such as ``>=10.0`` is refused here too, because an
            architecture with a higher number need not run the same code.
    """
    for name in names:
        if name.strip().startswith((">", "<", "=")):
            raise ValueError(f"{name!r} is an order, not a membership: list the architectures, or use family(...)")
    return ArchSet(frozenset(Arch.parse(name).name for name in names), " or ".join(names))


def any_of(vendor: str) -> ArchSet:
    """Accept every architecture of one vendor (``nvidia``, ``amd``, ``cpu``)."""
    if vendor not in ("nvidia", "amd", "cpu"):
        raise ValueError(f"unknown vendor {vendor!r}: wanted nvidia, amd or cpu")
    return ArchSet(frozenset(), f"any {vendor}", any_of_vendor=vendor)


def any_gpu() -> ArchSet:
    """Accept every architecture of every GPU vendor."""
    return ArchSet(frozenset(), "any GPU", any_of_vendor="*")
