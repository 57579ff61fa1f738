//! vLLM, SGLang and TGI: settings of the engine, attention backends, several GPUs, and workers that end.

use super::Scope::NotWindows;
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "engine-attention-backend",
        confidence: Medium,
        patterns: &[
            r"(?i)FlashAttention (?:forward|backward) only supports head dimension",
            r"(?i)Cannot use FP8 KV cache|does not support head size \d",
            r"(?i)Selected backend \S+ is not valid for this configuration|No valid attention backend found",
            r"(?i)Head size \d+ is not supported by|Unsupported head size:? \d|head_size not supported",
            r"(?i)The selected backend, \w+, does not support|attention backend .*(?:not supported|unsupported|is not available)",
            r"(?i)FLASH_ATTN is not supported|flash attention .*not supported .*rocm",
        ],
        covers: &["vllm-engine-failed", "server-shard-failed"],
        cause: "The attention backend that was chosen cannot do this: it has no kernels for {gpu}, for the size of the model's heads, for the block size or for the type of the cache. Backends of FlashAttention, FlashInfer and AITER are made for other GPUs.",
        fix: &[
            "leave the choice to the program (unset VLLM_ATTENTION_BACKEND, no --attention-backend), or TRITON_ATTN (ROCM_ATTN), which runs on all AMD GPUs; SGLang: --attention-backend triton",
            "kv-cache-dtype auto; a newer version, where more head sizes are supported",
            "VLLM_ROCM_USE_AITER=0 on cards other than Instinct",
        ],
        ask: &["the line of the log that begins with `Using … backend`"],
        source: "https://github.com/vllm-project/vllm/pull/36292",
        ..BASE
    },
    Entry {
        id: "engine-max-length",
        severity: Warning,
        patterns: &[
            r"(?i)User-specified max_model_len \(\d+\) is greater than the derived max_model_len",
        ],
        covers: &["vllm-engine-failed"],
        cause: "The context that was asked for (--max-model-len) is longer than the one that the model was made for. It has nothing to do with the GPU.",
        fix: &[
            "--max-model-len at most what the line names; a longer one needs rope scaling (--hf-overrides) that the model supports",
        ],
        source: "https://docs.vllm.ai/en/latest/configuration/engine_args.html",
        ..BASE
    },
    Entry {
        id: "engine-memory-static",
        patterns: &[
            r"(?i)Please try to increase --mem-fraction-static|Loading the model .*Not enough memory",
            r"(?i)Not enough memory to handle \d+ prefill tokens",
            r"(?i)Error in memory profiling\. Initial free memory",
        ],
        covers: &[
            "vllm-engine-failed",
            "server-shard-failed",
            "out-of-memory-without-numbers",
        ],
        cause: "The server divides the memory of the GPU once at its start, and what is left beside the weights does not suffice for its cache (SGLang: --mem-fraction-static, TGI: --max-batch-prefill-tokens), or another program changed how much is free while it measured (vLLM).",
        fix: &[
            "end what else is on the GPU, also an earlier server that did not end, and start again",
            "a smaller context and batch (--context-length, --max-total-tokens, --max-batch-prefill-tokens); SGLang: another --mem-fraction-static",
            "a smaller model or quantisation; more GPUs",
        ],
        ask: &["Linux: rocm-smi --showmeminfo vram --showpids"],
        source: "https://docs.sglang.ai/advanced_features/hyperparameter_tuning.html",
        ..BASE
    },
    Entry {
        id: "engine-tensor-parallel",
        severity: Warning,
        patterns: &[
            r"(?i)must be divisible by (?:the )?tensor[ _-]parallel[ _-]size|not divisible by .*(?:tensor[ _]parallel|tp_size|min_thread_\w|weight quantization block|world_size)",
            r"(?i)is not divisible by weight quantization block|is not aligned with the quantized weight shape",
        ],
        covers: &["vllm-engine-failed", "server-shard-failed"],
        cause: "The model cannot be divided over this number of GPUs: the number of heads, or a dimension of its quantised weights, is not a multiple of it.",
        fix: &[
            "another --tensor-parallel-size (1, 2, 4 or 8), or --pipeline-parallel-size in its place, which divides by layers",
            "a quantisation with smaller groups, or weights that are not quantised",
        ],
        source: "https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html",
        ..BASE
    },
    Entry {
        id: "engine-too-few-gpus",
        confidence: Medium,
        patterns: &[
            r"(?i)Ray does not allocate any GPUs on the driver node",
            r"(?i)number of required GPUs exceeds the total number of available GPUs",
            r"(?i)Current node has no GPU available|World size \(?\d+\)? is larger than the number of (?:available )?GPUs",
            r"(?i)Tensor parallel size \(\d+\) cannot be larger than the number of available GPUs",
        ],
        covers: &["vllm-engine-failed"],
        cause: "The server is to use more GPUs than it sees: variables hide some (HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES), the container got only a few of them, or Ray does not find AMD GPUs on its nodes.",
        fix: &[
            "python -c \"import torch; print(torch.cuda.device_count())\" in the same environment",
            "Linux: container: all of /dev/dri",
            "one machine: --distributed-executor-backend mp, without Ray",
            "Ray: HIP_VISIBLE_DEVICES and not ROCR_VISIBLE_DEVICES; ray status shows how many GPUs it counts",
        ],
        scope: NotWindows,
        source: "https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html",
        ..BASE
    },
    Entry {
        id: "visibility-differs",
        patterns: &[r"(?i)Inconsistent GPU visibility env vars"],
        covers: &["vllm-engine-failed"],
        cause: "HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES are both set and name different GPUs; on ROCm they mean the same.",
        fix: &["set one of them, or both to the same value"],
        source: "https://github.com/vllm-project/vllm/blob/main/vllm/platforms/rocm.py",
        ..BASE
    },
    Entry {
        id: "engine-worker-hangs",
        confidence: Low,
        severity: Warning,
        patterns: &[
            r"(?i)No available shared memory broadcast block found in \d+ (?:second|minute)",
            r"(?i)RPC call to \w+ timed out",
            r"(?i)Watchdog (?:timeout|caught collective).*(?:scheduler|forward|detokenizer)|Scheduler watchdog timeout",
        ],
        covers: &["vllm-engine-failed"],
        cause: "A worker of the server did not answer in time: it compiles kernels or captures graphs (the first request takes minutes on AMD GPUs), waits for another GPU that does not answer, or the GPU hangs.",
        fix: &[
            "the first start: wait; TRITON_CACHE_DIR and VLLM_CACHE_ROOT on a disk that stays keep what was compiled",
            "--enforce-eager (SGLang: --disable-cuda-graph) tells whether graphs are the reason",
            "several GPUs: NCCL_P2P_DISABLE=1, --disable-custom-all-reduce",
            "Linux: several GPUs: iommu=pt on the kernel command line",
            "Linux: the kernel log tells whether the GPU hung",
        ],
        ask: &["Linux: dmesg | grep -iE 'amdgpu|ring|fault' | tail -n 20"],
        scope: NotWindows,
        source: "https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
        ..BASE
    },
    Entry {
        id: "engine-worker-died",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)EngineDeadError|AsyncEngineDeadError|Background loop (?:has errored|is stopped)",
            r"(?i)\(raylet\) A worker died or was killed|(?:RayActorError|ActorDiedError)|The actor (?:died unexpectedly|is dead because)|WorkerProc (?:failed to start|initialization failed)",
            r"(?i)Worker proc \w+ died unexpectedly|text_generation_launcher: Shard \d+ (?:crashed|terminated)",
        ],
        cause: "A worker of the server ended. These lines only say so: the first error or traceback of that worker above them, or the kernel log, is the cause (memory, a GPU that hung, a kernel that does not compile).",
        fix: &[
            "look for the first `ERROR` or traceback of the worker (EngineCore, VllmWorker, Worker_TP0)",
            "--enforce-eager, a smaller --max-model-len and --max-num-seqs tell which part fails",
            "Linux: dmesg: a process killed for memory, or a hang of the GPU",
        ],
        ask: &["the log from the first `ERROR` on"],
        source: "https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
        ..BASE
    },
];
