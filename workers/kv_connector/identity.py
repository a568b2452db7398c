"""Measures this engine's revision from what vLLM resolved and really allocated, never from a label."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import vllm

from service.domain import canonical
from service.domain.adapter import NO_ADAPTER
from service.domain.artifact import SERIALIZER_ABI, Tensor
from service.domain.canonical import Scalar
from service.domain.errors import InvalidInput
from service.domain.revision import Descriptor, KvIdentity
from workers.kv_connector.flat import flatten
from workers.kv_connector.model_config import architecture_of, depends_on_length, position_of
from workers.kv_connector.text_identity import chat_template_of, measure_text
from workers.kv_connector.toggles import toggles
from workers.kv_connector.versions import require_tested
from workers.kv_connector.weights import weights_digest

LOADED_FROM_SHARDS = frozenset({"auto", "hf", "safetensors"})

WITHOUT_WEIGHTS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Ways of drafting that look into the text alone; every other has a model."""


def measure(
    vllm_config: Any,
    kv_cache_config: Any,
    kv_caches: dict[str, torch.Tensor],
    hash_cache: Path,
    *,
    environ: Mapping[str, str],
    paranoid: bool = False,
) -> tuple[Descriptor, tuple[int, ...]]:
    """This engine's descriptor, and the token ids that end a turn.

    Args:
        vllm_config: as vLLM resolved it.
        kv_cache_config: likewise.
        kv_caches: what it allocated, by layer.
        hash_cache: a folder that keeps known hashes of weights.
        environ: the engine's own.
        paranoid: reads every byte of weights again.

    Raises:
        InvalidInput: naming what cannot be measured; the engine then has no revision, and refuses all KV.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    require_tested(vllm.__version__)
    _refuse_unmeasurable(vllm_config, kv_cache_config)
    text, stops = measure_text(model, chat_template_of(vllm_config))
    kv = KvIdentity(
        weights=weights_digest(Path(model.model), hash_cache, paranoid=paranoid),
        quantization=_quantization(model),
        architecture=_architecture(model),
        position=_position(model),
        adapter=NO_ADAPTER,
        compute_dtype=_name(model.dtype),
        kv_dtype=_kv_dtype(cache, kv_caches),
        kv_scales="checkpoint" if _quantized(cache) else "none",
        attention_backend=_attention_backend(vllm_config, kv_caches),
        attention_isa=_attention_isa(next(iter(kv_caches.values())).device),
        engine="vllm",
        engine_version=f"{vllm.__version__} torch {torch.__version__}",
        model_runner=f"{vllm_config.parallel_config.worker_cls} {'v2' if vllm_config.use_v2_model_runner else 'v1'}",
        block_size=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
        kv_layout=_kv_layout(kv_cache_config, kv_caches),
        shards=_shards(vllm_config.parallel_config),
        draft_model=_draft_model(vllm_config.speculative_config, hash_cache, paranoid=paranoid),
        environment=_environment(vllm_config, environ),
        compile_mode=_compile_mode(vllm_config),
        serializer_abi=SERIALIZER_ABI,
    )
    return Descriptor.from_json(Descriptor(kv=kv, text=text).to_json()), stops


def block_tensors(kv_caches: dict[str, torch.Tensor]) -> tuple[Tensor, ...]:
    """What one block of this engine consists of, layer by layer."""
    return tuple(
        Tensor(name=name, dtype=_name(cache.dtype), shape=tuple(cache.shape[1:]))
        for name, cache in kv_caches.items()
    )


def _refuse_unmeasurable(vllm_config: Any, kv_cache_config: Any) -> None:
    load_format = str(vllm_config.load_config.load_format)
    if load_format not in LOADED_FROM_SHARDS:
        raise InvalidInput(
            f"--load-format {load_format} loads other bytes than the shards measured; use safetensors.",
            "weights",
        )
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise InvalidInput(
            "KV scales computed at run time identify nothing; take the checkpoint's.", "kv_scales"
        )
    if not kv_cache_config.kv_cache_groups:
        raise InvalidInput("This model has no KV cache.", "kv_layout")


def _quantization(model: Any) -> str:
    config = getattr(model.hf_config, "quantization_config", None)
    if config is None and model.quantization is None:
        return "none"
    plain = config if isinstance(config, dict | None) else config.to_dict()
    return f"{model.quantization} {canonical.digest(flatten(plain or {}))}"


def _architecture(model: Any) -> dict[str, Scalar]:
    return architecture_of(model.hf_text_config.to_dict()) | {
        "implementation": f"{model.architecture} {model.model_impl}".replace(" auto", " vllm")
    }


def _position(model: Any) -> dict[str, Scalar]:
    position = position_of(model.hf_text_config.to_dict())
    if depends_on_length(position):
        position["max_model_len"] = model.max_model_len
    return position | {"window_disabled": bool(model.disable_sliding_window)}


def _kv_dtype(cache: Any, kv_caches: dict[str, torch.Tensor]) -> str:
    if _quantized(cache):
        return str(cache.cache_dtype)
    return "+".join(sorted({_name(tensor.dtype) for tensor in kv_caches.values()}))


def _quantized(cache: Any) -> bool:
    return str(cache.cache_dtype) not in {"auto", "float16", "bfloat16", "float32", "half", "float"}


def _attention_backend(vllm_config: Any, kv_caches: dict[str, torch.Tensor]) -> str:
    layers = vllm_config.compilation_config.static_forward_context
    backends = {layers[name].get_attn_backend() for name in kv_caches}
    return "+".join(sorted(f"{backend.__module__}.{backend.__qualname__}" for backend in backends))


def _attention_isa(device: torch.device) -> str:
    if device.type == "cpu":
        amx = " amx" if torch.cpu._is_amx_tile_supported() else ""  # noqa: SLF001 what vLLM's own choice asks
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}{amx}"
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        runtime = torch.version.cuda or torch.version.hip
        return f"{torch.cuda.get_device_name(device)} {major}.{minor} runtime {runtime}"
    return f"{device.type} {torch.__version__}"


def _kv_layout(kv_cache_config: Any, kv_caches: dict[str, torch.Tensor]) -> dict[str, Scalar]:
    layout: dict[str, Scalar] = {"order": str(kv_cache_config.kv_cache_layout), "layers": len(kv_caches)}
    for name, cache in kv_caches.items():
        # The order of the strides, not the strides: how many blocks fit in memory is not identity.
        order = sorted(range(cache.dim()), key=cache.stride, reverse=True)
        kind = f"{_name(cache.dtype)} {tuple(cache.shape[1:])} order {tuple(order)}"
        layout.setdefault(f"kind.{kind}", name)
    specs = {str(type(group.kv_cache_spec).__name__) for group in kv_cache_config.kv_cache_groups}
    return layout | {"spec": "+".join(sorted(specs)), "groups": len(kv_cache_config.kv_cache_groups)}


def _shards(parallel: Any) -> dict[str, Scalar]:
    return {
        "tensor": parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "decode_context": parallel.decode_context_parallel_size,
        "prefill_context": parallel.prefill_context_parallel_size,
    }


def _draft_model(speculative: Any, hash_cache: Path, *, paranoid: bool) -> str:
    """Raises: InvalidInput where its weights are not at hand."""
    if speculative is None:
        return "none"
    weights = "weightless"
    if speculative.method not in WITHOUT_WEIGHTS:
        weights = weights_digest(Path(str(speculative.model)), hash_cache, paranoid=paranoid)
    return f"{speculative.method} {speculative.num_speculative_tokens} {weights}"


def _environment(vllm_config: Any, environ: Mapping[str, str]) -> dict[str, Scalar]:
    return toggles(environ) | {
        "adapters": _adapter_kernels(vllm_config.lora_config),
        "attention_config": canonical.digest(_plain(vllm_config.attention_config)),
        "disable_cascade_attn": bool(vllm_config.model_config.disable_cascade_attn),
    }


def _adapter_kernels(lora: Any) -> str:
    """Of an engine that takes adapters: also its plain requests run through other kernels."""
    if lora is None:
        return "off"
    return f"rank {lora.max_lora_rank} {lora.lora_dtype} {canonical.digest(_plain(lora))[:16]}"


def _plain(config: Any) -> dict[str, str]:
    # The backend is measured from the layers; here it only says what was asked.
    return {
        key: str(value) for key, value in vars(config).items() if key not in {"backend", "backend_per_kind"}
    }


def _compile_mode(vllm_config: Any) -> str:
    compilation = vllm_config.compilation_config
    eager = "eager" if vllm_config.model_config.enforce_eager else "compiled"
    passes = canonical.digest({key: str(value) for key, value in vars(compilation.pass_config).items()})
    ops = ",".join(sorted(compilation.custom_ops)) or "none"
    return (
        f"{eager} {compilation.mode.name} {compilation.backend or 'none'} "
        f"{compilation.cudagraph_mode.name} ops {ops} passes {passes[:16]}"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
