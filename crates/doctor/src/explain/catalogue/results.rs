//! Hangs without a message, and results that are wrong.

use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "lost-interrupt",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"Fence fallback timer expired on ring",
            r"rocr::core::\w*Signal::Wait\w*",
            r"\bhsa_signal_wait_\w+",
            r"\bhsaKmtWaitOn\w*Events?\b",
            r"(?i)hip(?:Event|Stream|Device)Synchronize.*(?:hang|hung|stuck|never returns|block(?:s|ed))",
        ],
        cause: "The process waits for an interrupt of the GPU that got lost: a hang without a message, with the GPU idle or at 100 % (seen on gfx1151).",
        fix: &[
            "HSA_ENABLE_INTERRUPT=0 (costs one busy core)",
            "Linux: sudo dmesg | grep -iE 'amdgpu|kfd' tells a hang of the GPU from a lost interrupt",
        ],
        source: "https://github.com/ROCm/ROCm/issues/6530",
        ..BASE
    },
    Entry {
        id: "hang-suspected",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)(?:watchdog|collective|barrier).*timed? ?out",
            r"(?i)task (?:python|pt_main_thread)\S* blocked for more than \d+ seconds",
            r"(?i)\b(?:hangs|hung|stuck|freezes|no progress)\b.{0,60}\b(?:forward|step|gpu|iteration|epoch)\b",
        ],
        also: &[r"(?i)\b(?:hip|rocm|amdgpu|rccl|gfx\d+\w*)\b"],
        cause: "Something waits for the GPU and nothing comes: a lost interrupt (gfx1151), a GPU that hangs, or a collective that one process has left.",
        fix: &[
            "Linux: sudo dmesg | grep -iE 'amdgpu|kfd'; a reset or a page fault there is the cause",
            "HSA_ENABLE_INTERRUPT=0 when the kernel log is silent (costs one busy core)",
            "`surefoot probe` shows whether the GPU itself answers",
        ],
        source: "https://github.com/ROCm/ROCm/issues/6530",
        ..BASE
    },
    Entry {
        id: "nan-from-copy",
        confidence: Medium,
        patterns: &[
            r#"(?i)(?:\.to\(['"]?(?:cuda|gpu|device)|\.cuda\(\)|\b(?:copy|copies|copied|transfer\w*|host.to.device|h2d)\b).{0,80}\bnans?\b"#,
            r#"(?i)\bnans?\b.{0,80}(?:\.to\(['"]?(?:cuda|gpu|device)|\.cuda\(\)|\b(?:copying|copy|copied|transfer\w*|host.to.device|h2d)\b)"#,
        ],
        cause: "NaN appears in the copy to the GPU itself, before anything was computed: seen on gfx1030 with kernel 5.15 and ROCm 6.4.2.",
        fix: &[
            "Linux: a newer kernel",
            "`surefoot probe --only copy` repeats the copies bit by bit; HSA_ENABLE_SDMA=0 sends them another way",
            "`surefoot train` verifies its transfers and falls back by itself",
        ],
        source: "https://github.com/ROCm/ROCm/issues/6123",
        ..BASE
    },
    Entry {
        id: "zeros-after-memset",
        confidence: Medium,
        patterns: &[
            r"(?i)(?:hipMemsetAsync|\bzero_\(\)|(?:cuda|hip) ?graphs?\b|graph (?:capture|replay)).{0,120}(?:all zeros?|zeros|stale|garbage|not (?:cleared|zeroed|set)|uninitiali[sz]ed|wrong values)",
            r"(?i)(?:all zeros?|zeros|stale|garbage|wrong values).{0,120}(?:hipMemsetAsync|\bzero_\(\)|(?:cuda|hip) ?graphs?\b|graph (?:capture|replay))",
        ],
        cause: "hipMemsetAsync of ROCm 7.0 loses a fill in graphs and after zero_(): memory is not what it was set to.",
        fix: &[
            "ROCm 7.1 or newer",
            "switch graphs off (no `mode=\"reduce-overhead\"`) until then",
        ],
        source: "https://github.com/pytorch/pytorch/pull/197017",
        ..BASE
    },
    Entry {
        id: "zeros-from-gpu",
        confidence: Low,
        patterns: &[
            r"(?i)\b(?:tensors?|output|results?|values?|elements?|copy|copies|gpu|cuda|device)\b.{0,60}\b(?:all|only|returns?|returned|became|becomes|silently|come back as)\b.{0,20}\bzeros?\b",
            r"(?i)\ball zeros\b.{0,60}\b(?:gpu|cuda|device|hip)\b",
        ],
        also: &[r"(?i)\b(?:hip|rocm|cuda|gpu|gfx\d+\w*)\b"],
        cause: "Operations or copies give zeros instead of results, without an error: reported on Windows with gfx1201 (torch 2.12 for ROCm 7.14, driver 26.6.4), open there.",
        fix: &[
            "`surefoot probe` tells copies from computing, in plain operations without a framework",
            "another wheel and driver, updated together; only one GPU visible",
            "do not go on training: nothing will say that the results are wrong",
        ],
        source: "https://github.com/ROCm/TheRock/issues/8379",
        ..BASE
    },
    Entry {
        id: "nan-expandable-segments",
        confidence: Medium,
        patterns: &[
            r"(?i)\bloss\b\W{0,12}nan\b",
            r"(?i)\bgrad_?norm\b\W{0,6}nan\b",
        ],
        also: &[r"(?i)expandable_segments\W{1,3}true"],
        covers: &["nan-loss"],
        cause: "expandable_segments corrupts bf16 training on gfx1201 without a message.",
        fix: &["remove expandable_segments from PYTORCH_ALLOC_CONF and its older names"],
        source: "https://github.com/pytorch/pytorch/issues/195202",
        ..BASE
    },
    Entry {
        id: "nan-long-context",
        confidence: Medium,
        patterns: &[
            r"(?i)\b(?:loss|logits|attention|output)\b\W{0,12}(?:is |are |contains? )?nan\b",
        ],
        also: &[
            r"(?i)gfx1100|RX ?7900",
            r"(?i)(?:seq(?:uence)?_?len(?:gth)?|context(?:_length)?|block_size|max_length|n_ctx)\D{0,12}(?:1[4-9]\d{3}|[2-9]\d{4}|\d{6})\b",
        ],
        covers: &["nan-loss"],
        cause: "Attention kernels give NaN on gfx1100 beyond 14,300 tokens of context.",
        fix: &[
            "the math kernel: torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
            "a newer torch and ROCm, or a shorter context",
        ],
        source: "https://github.com/ROCm/ROCm/issues/6416",
        ..BASE
    },
    Entry {
        id: "slow-mmap-loading",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)loading (?:checkpoint shards|weights|safetensors|model).{0,80}(?:\d+:\d\d:\d\d|\b\d{2,}\.\d+ ?s/it)",
        ],
        also: &[r"(?i)\b7\.0\.0-\w+|linux(?: version)? 7\.0\.0\b"],
        cause: "Kernel 7.0.0 reads mapped files some 300 times slower than the kernels before it.",
        fix: &[
            "another kernel",
            "load without mmap (--disable-mmap), or read the checkpoint once before: cat FILE > /dev/null",
        ],
        source: "https://github.com/ROCm/ROCm/issues/6530",
        ..BASE
    },
    Entry {
        id: "loss-scale-minimum",
        confidence: Medium,
        patterns: &[r"(?i)Current loss scale already at minimum"],
        covers: &["launcher-reports", "nan-loss"],
        cause: "Training in fp16 gave gradients that are no numbers (infinite or NaN) in every step, until the loss scale could not be lowered any more: the values leave the range of fp16, or a kernel computes wrongly.",
        fix: &[
            "bf16 instead of fp16, on GPUs that have it (RX 7000 and newer, Instinct from MI200 on)",
            "a lower learning rate, gradient clipping, weights in fp32",
            "`surefoot probe` tells whether the GPU computes wrongly",
        ],
        source: "https://www.deepspeed.ai/docs/config-json/#fp16-training-options",
        ..BASE
    },
    Entry {
        id: "nan-loss",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)\bloss\b\W{0,12}nan\b",
            r"(?i)\bgrad_?norm\b\W{0,6}nan\b",
            r"(?i)found (?:nan|inf) in (?:gradients|loss)",
            r"(?i)\bloss\b\W{0,4}inf\b|\bgrad(?:ient)?[ _]norm is (?:nan|inf)",
            r"(?i)\w_loss\W{0,4}nan\b|\bloss (?:is|became|was) nan\b",
            r"(?i)Function '\w+Backward\w*' returned nan values",
            r"(?i)Minimum loss scale reached|NaN or Inf found in input tensor",
        ],
        cause: "NaN from the first steps on points at the stack rather than at the model: attention kernels in bf16 (ROCm 6.4 on gfx1151, AOTriton 0.11b on gfx1100), expandable_segments on gfx1201, or copies that arrive broken (gfx1030 with kernel 5.15).",
        fix: &[
            "`surefoot probe` tells which of them it is",
            "remove expandable_segments; use SDPA with the math kernels once to compare",
            "a newer torch and ROCm",
        ],
        source: "https://github.com/unslothai/unsloth/issues/3385",
        ..BASE
    },
    Entry {
        id: "negative-loss-gfx1033",
        confidence: Medium,
        patterns: &[r"(?i)\b(?:mse|loss)\b\W{0,12}-\d"],
        also: &[r"(?i)gfx1033|van gogh|steam deck"],
        cause: "Gradients are computed wrongly on gfx1033 (Steam Deck), with every wheel tried.",
        fix: &["do not train on this GPU; inference is right"],
        source: "https://github.com/unslothai/unsloth/pull/8412",
        ..BASE
    },
    Entry {
        id: "sampling-nan",
        confidence: Medium,
        patterns: &[r"(?i)probability tensor contains either"],
        covers: &["device-assert"],
        cause: "The model's output contained NaN or infinity when a token was to be drawn: numbers left the range of fp16, the weights are damaged, were trained or quantised badly, or a kernel (attention, 4 bits) or a copy between GPUs gave wrong numbers.",
        fix: &[
            "bf16 (or fp32) in place of fp16",
            "another attention to compare: attn_implementation=\"eager\"; 16 bits in place of 4 or 8",
            "several GPUs: one of them first (HIP_VISIBLE_DEVICES=0); Linux: iommu=pt where copies between them are wrong",
            "`surefoot probe` tells whether the GPU computes and copies rightly",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.version.hip)'",
            "Linux: cat /proc/cmdline",
        ],
        source: "https://github.com/mila-iqia/milabench/issues/304",
        ..BASE
    },
    Entry {
        id: "factorization-failed",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)algorithm failed to converge because the input|SVD did not converge|svd_\w+: .*(?:converge|superdiagonals)",
            r"(?i)linalg\.\w+: .*(?:matrix is singular|non-finite values|is zero, the inversion)",
        ],
        cause: "A factorization of a matrix (SVD, eigenvalues, an inverse) failed: the matrix contains NaN or infinity (a training that diverged, fp16), is singular, or is too ill-conditioned for the method that the GPU's library uses.",
        fix: &[
            "the same step on the CPU: x.cpu().double(), then back (programs that extract or merge LoRA have a setting for the device and precision)",
            "torch.isfinite(x).all() tells whether the numbers were wrong before; then look for NaN in the training",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html#extremal-values-in-linalg",
        ..BASE
    },
    Entry {
        id: "solver-library-failed",
        confidence: Medium,
        patterns: &[
            r"(?i)cusolver error: ?(?:CU|HIP)SOLVER_STATUS",
            r"(?i)(?:hip|roc)solver error: ?\w",
        ],
        covers: &["rocm-math-error-other"],
        cause: "hipSOLVER (rocSOLVER; under CUDA and ZLUDA cuSOLVER), ROCm's library for linear algebra, failed: no memory left on the GPU for its workspace, NaN in the matrix, a context that an earlier error broke, or a library that does not fit this build.",
        fix: &[
            "the first error of the log is the cause, where there is one before this",
            "that step on the CPU: x.cpu(), then back",
            "free memory on the GPU; torch and its ROCm libraries of one version",
        ],
        source: "https://rocm.docs.amd.com/projects/hipSOLVER/en/latest/",
        ..BASE
    },
];
