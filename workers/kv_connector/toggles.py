"""Settings from an engine's environment that choose kernels or arithmetic, and so are part of its identity."""

from collections.abc import Mapping

import torch
from vllm import envs

from service.domain.canonical import Scalar
from workers.kv_connector.flat import flatten

ALWAYS = (
    "VLLM_BATCH_INVARIANT",
    "VLLM_BLOCKSCALE_",
    "VLLM_CPU_ATTN_SPLIT_KV",
    "VLLM_CPU_INT4_W4A8",
    "VLLM_DISABLED_KERNELS",
    "VLLM_ENABLE_FLA",
    "VLLM_ENABLE_HPC_OPS",
    "VLLM_ENABLE_INDUCTOR",
    "VLLM_FLASHINFER_MOE_A2A",
    "VLLM_FLOAT32_MATMUL_PRECISION",
    "VLLM_GDN_",
    "VLLM_HUMMING_",
    "VLLM_MARLIN_",
    "VLLM_MLA_",
    "VLLM_MOE_",
    "VLLM_MXFP",
    "VLLM_ROCM_",
    "VLLM_TRITON_FORCE_FIRST_CONFIG",
    "VLLM_TRITON_USE_TD",
    "VLLM_TUNED_CONFIG_FOLDER",
    "VLLM_USE_DEEP_GEMM",
    "VLLM_USE_FLASHINFER_MOE",
    "VLLM_USE_FUSED_MOE",
    "VLLM_USE_HW_AGNOSTIC",
    "VLLM_USE_OINK_OPS",
    "VLLM_USE_STANDALONE_COMPILE",
    "VLLM_USE_TRITON_AWQ",
    "VLLM_XPU_",
    "VLLM_ZENTORCH_",
)
"""Beginnings of names of vLLM's settings, which are recorded as vLLM resolves them."""

WHERE_SET = (
    "VLLM_ALLREDUCE_",
    "VLLM_B12X_",
    "VLLM_DCP_",
    "VLLM_DEEPEP",
    "VLLM_DISABLE_DSV4_",
    "VLLM_ENABLE_GEMM_RS",
    "VLLM_ENABLE_PREGRAD_PASSES",
    "VLLM_FLASHINFER_ALLREDUCE_BACKEND",
    "VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS",
    "VLLM_KIMI_",
    "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE",
    "VLLM_SPARSE_INDEXER_",
    "VLLM_USE_AOT_COMPILE",
    "VLLM_USE_DIRECT_DCP_",
    "VLLM_USE_FASTOKENS",
    "VLLM_USE_MEGA_AOT_ARTIFACT",
    "VLLM_USE_NCCL_SYMM_MEM",
    # Of the libraries under vLLM, which no setting of vLLM shows.
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_EMULAT",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_CPU_ISA_HINTS",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_EMULATE_",
    "TORCHINDUCTOR_FREEZING",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_",
    "TORCH_COMPILE_DISABLE",
)
"""Beginnings of names that are recorded, as they are written, only where somebody set them."""


def toggles(environ: Mapping[str, str]) -> dict[str, Scalar]:
    """By name. `environ`: the engine's own."""
    resolved = {
        name: getattr(envs, name)
        for name in sorted(envs.environment_variables)
        if name.startswith(ALWAYS) and _concerns_platform(name)
    }
    given = {name: value for name, value in sorted(environ.items()) if name.startswith(WHERE_SET)}
    return flatten(resolved) | given | _of_torch()


def _of_torch() -> dict[str, Scalar]:
    return {
        "torch.float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch.mkldnn": torch.backends.mkldnn.enabled,
        "torch.cuda_tf32": torch.backends.cuda.matmul.allow_tf32,
    }


def _concerns_platform(name: str) -> bool:
    return not (name.startswith("VLLM_ROCM_") and torch.version.hip is None) and not (
        name.startswith("VLLM_XPU_") and not torch.xpu.is_available()
    )
