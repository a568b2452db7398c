"""Which settings of an engine's environment are part of its identity: those of its libraries too, and none unthought of."""

import pytest
from vllm import envs

from workers.kv_connector.toggles import ALWAYS, WHERE_SET, toggles

NOT_NUMERIC = (
    *(
        "CMAKE_BUILD_TYPE",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
        "FORCE_COLOR",
        "LD_LIBRARY_PATH",
        "LOCAL_RANK",
    ),
    *("MAX_JOBS", "MOONCAKE_", "NO_COLOR", "NVCC_THREADS", "S3_", "VERBOSE", "VLLM_DO_NOT_TRACK"),
    *("VLLM_ADAPTIVE_VERIFICATION_", "VLLM_ALLOW_", "VLLM_API_KEY", "VLLM_ASSETS_", "VLLM_AUDIO_"),
    *(
        "VLLM_BUILD_",
        "VLLM_CACHE_ROOT",
        "VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT",
        "VLLM_COMPILE_CACHE_SAVE_FORMAT",
    ),
    *("VLLM_COMPUTE_NANS_IN_LOGITS", "VLLM_CONFIG", "VLLM_CPU_CI_ENV", "VLLM_CPU_KVCACHE_SPACE"),
    *("VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CUDART_SO_PATH"),
    *("VLLM_CUDA_COMPATIBILITY_PATH", "VLLM_CUSTOM_SCOPES_", "VLLM_DBO_COMM_SMS", "VLLM_DEBUG_"),
    *("VLLM_DEEP_GEMM_WARMUP", "VLLM_DISABLE_COMPILE_CACHE", "VLLM_DISABLE_LOG_LOGO", "VLLM_DISABLE_PYNCCL"),
    *("VLLM_DISABLE_REQUEST_ID_", "VLLM_DISABLE_SHARED_EXPERTS_STREAM", "VLLM_DISTRIBUTED_USE_SPLIT_GROUP"),
    *("VLLM_DOCKER_", "VLLM_DP_", "VLLM_EC_", "VLLM_ELASTIC_", "VLLM_ENABLE_COHERE_API", "VLLM_ENABLE_CUDA"),
    *("VLLM_ENABLE_RESPONSES_API_STORE", "VLLM_ENABLE_STARTUP_PLAN", "VLLM_ENABLE_V1_MULTIPROCESSING"),
    *(
        "VLLM_ENFORCE_STRICT_TOOL_CALLING",
        "VLLM_ENGINE_READY_",
        "VLLM_EXECUTE_MODEL_",
        "VLLM_FASTSAFETENSORS_",
    ),
    *("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", "VLLM_FLASHINFER_WORKSPACE_", "VLLM_FORCE_AOT_LOAD"),
    *("VLLM_GC_DEBUG", "VLLM_GPT_OSS_", "VLLM_GPU_", "VLLM_HAS_FLASHINFER_CUBIN", "VLLM_HOST_IP"),
    *(
        "VLLM_HTTP_",
        "VLLM_IMAGE_",
        "VLLM_KEEP_ALIVE_",
        "VLLM_KV_CACHE_LAYOUT",
        "VLLM_KV_EVENTS_",
        "VLLM_KV_OFFLOAD_",
    ),
    *(
        "VLLM_LOG",
        "VLLM_LOOPBACK_IP",
        "VLLM_LORA_",
        "VLLM_MAIN_CUDA_VERSION",
        "VLLM_MAX_AUDIO_",
        "VLLM_MAX_BAD_",
    ),
    *("VLLM_MAX_COMPLETION_", "VLLM_MAX_EMBED_", "VLLM_MAX_IMAGE_", "VLLM_MAX_MEDIA_", "VLLM_MAX_NUM_BAD_"),
    *(
        "VLLM_MAX_N_SEQUENCES",
        "VLLM_MAX_STOP_STRINGS",
        "VLLM_MEDIA_",
        "VLLM_MEMORY_PROFILER_",
        "VLLM_MODEL_REDIRECT_",
    ),
    *(
        "VLLM_MOONCAKE_",
        "VLLM_MQ_",
        "VLLM_MSGPACK_",
        "VLLM_MULTI_STREAM_",
        "VLLM_NCCL_",
        "VLLM_NIC_",
        "VLLM_NIXL_",
    ),
    *("VLLM_NO_USAGE_STATS", "VLLM_NVTX_", "VLLM_OBJECT_STORAGE_", "VLLM_P2P_", "VLLM_PATTERN_MATCH_DEBUG"),
    *(
        "VLLM_PLUGINS",
        "VLLM_PORT",
        "VLLM_PP_LAYER_PARTITION",
        "VLLM_PROCESS_NAME_PREFIX",
        "VLLM_RAISE_ON_LOGIT_NANS",
    ),
    *(
        "VLLM_RANDOMIZE_DP_DUMMY_INPUTS",
        "VLLM_RAY_",
        "VLLM_REGEX_",
        "VLLM_REPLICATE_EMBED",
        "VLLM_RINGBUFFER_",
    ),
    *("VLLM_RPC_", "VLLM_RUST_", "VLLM_SERVER_DEV_MODE", "VLLM_SHARED_EXPERTS_STREAM_", "VLLM_SKIP_"),
    *(
        "VLLM_SSM_CONV_STATE_LAYOUT",
        "VLLM_SYSTEM_START_DATE",
        "VLLM_TARGET_DEVICE",
        "VLLM_TEST_FORCE_LOAD_FORMAT",
    ),
    *("VLLM_TOOL_", "VLLM_TPU_", "VLLM_TRACE_FUNCTION", "VLLM_TRITON_JIT_WARMUP_", "VLLM_USAGE_"),
    *("VLLM_USE_BREAKABLE_CUDAGRAPH", "VLLM_USE_BYTECODE_HOOK", "VLLM_USE_EXPERIMENTAL_PARSER_CONTEXT"),
    *("VLLM_USE_FLASHINFER_SAMPLER", "VLLM_USE_LAYERNAME", "VLLM_USE_MODELSCOPE", "VLLM_USE_PRECOMPILED"),
    *("VLLM_USE_RAY_", "VLLM_USE_RUST_", "VLLM_USE_SIMPLE_KV_OFFLOAD", "VLLM_USE_SPINLOOP_EXT"),
    *(
        "VLLM_USE_V2_MODEL_RUNNER",
        "VLLM_V1_",
        "VLLM_VIDEO_",
        "VLLM_WEIGHT_OFFLOADING_",
        "VLLM_WORKER_",
        "VLLM_WSL2_",
    ),
    *("VLLM_XGRAMMAR_", "VLLM_XLA_"),
)
"""Names, addresses, limits, logs and schedules; what other fields measure (layout, runner, shards); and what concerns sampling alone."""


def test_every_setting_of_vllm_was_thought_about() -> None:
    """One that a new version brings must be put into one of the lists."""
    known = (*ALWAYS, *WHERE_SET, *NOT_NUMERIC)
    assert [name for name in envs.environment_variables if not name.startswith(known)] == []


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_TF32_OVERRIDE",
        "ONEDNN_DEFAULT_FPMATH_MODE",
        "MKL_CBWR",
        "VLLM_B12X_MOE_FP4_FORCE_A16",
        "TORCHDYNAMO_DISABLE",
        "TORCH_COMPILE_DISABLE",
    ],
)
def test_what_somebody_set_is_recorded_and_what_nobody_set_is_not(name: str) -> None:
    assert toggles({name: "1"}) == toggles({}) | {name: "1"}
    assert name not in toggles({})
    assert toggles({name: ""})[name] == ""


def test_what_vllm_resolves_is_recorded_also_where_nobody_set_it() -> None:
    assert toggles({})["VLLM_CPU_ATTN_SPLIT_KV"] is envs.VLLM_CPU_ATTN_SPLIT_KV


@pytest.mark.parametrize(
    "name", ["HOME", "VLLM_LOGGING_LEVEL", "ONEDNN_VERBOSE", "VLLM_CPU_OMP_THREADS_BIND"]
)
def test_where_and_how_loudly_an_engine_runs_is_not_recorded(name: str) -> None:
    assert toggles({name: "1"}) == toggles({})
