"""The manifest of the kernels for NVIDIA SM90. Importing this needs neither torch, Triton nor FlashMLA."""

from __future__ import annotations

from dspark_ops.api import (
    Constraint,
    Kernel,
    Manifest,
    Package,
    RankClass,
    Traits,
    axis,
    contiguous,
    dtype,
    exact,
    hookimpl,
    layout,
    option,
    unit_last_stride,
    with_recorded_evidence,
)

TRITON = Package("triton", "triton", ">=3.6", install="pip install 'dspark-ops-nvidia-sm90[triton]'")
#: Another distribution, flash-mla, has a module of this name, without the kernels for Hopper in its later versions.
FLASH_MLA = Package(
    "flash_mla",
    "sgl-flash-mla",
    ">=1.0,<2",
    attributes=("flash_mla_with_kvcache", "has_legacy"),
    install="pip install 'dspark-ops-nvidia-sm90[flashmla]'",
)

#: What ran on hardware is in conformant.json.
KERNELS = with_recorded_evidence(
    "dspark_ops_nvidia_sm90",
    (
        Kernel(
            "sparse_mla_decode",
            variant="flashmla",
            target="dspark_ops_nvidia_sm90.flashmla:sparse_mla_decode",
            prepare="dspark_ops_nvidia_sm90.flashmla:prepare_sparse_mla_decode",
            arch=exact("sm_90"),
            region=[
                dtype("q", "bfloat16"),
                contiguous("q", "cache", "extra_cache", "lengths", "extra_lengths", "sink"),
                unit_last_stride("indices", "extra_indices"),
                layout("cache", "kv_v4"),
                layout("extra_cache", "kv_v4"),
                option("layout").is_("kv_v4"),
                axis("A").between(1, 64),
                axis("D").one_of(512),
                axis("W").between(1, 8192),
                axis("T").between(16, 4096),
                # The portable kernel, which pads no heads, is the faster one below. On an H200, over 128 + 512 entries,
                # us here and there: 22 and 17 for 16 rows of 16 heads, 48 and 44 for 64 and 52 and 89 for 128 of them;
                # 24 and 25 for 16 rows of 32 heads, 49 and 82 for 64; 23 and 41 for 16 rows of 64 heads.
                Constraint("elements", "A*A*T", "between", (20480, None), "A*A*T >= 20480, where it is faster"),
            ],
            rank=RankClass.FUSED,
            # Rows are cut where the work of all of them is cut.
            traits=Traits(graph_safe=True, batch_invariant=False, pdl=True),
            packages=(TRITON, FLASH_MLA),
            note="3 launches: inputs with the schedule unless that is handed over, FlashMLA's two; heads are padded to "
            "64, results views of such rows",
        ),
    ),
)


@hookimpl
def dspark_ops_manifest() -> Manifest:
    """Return the kernels for NVIDIA SM90."""
    return Manifest("nvidia_sm90", api=">=1,<2", kernels=KERNELS)
