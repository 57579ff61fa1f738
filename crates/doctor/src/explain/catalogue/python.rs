//! torch, bitsandbytes and what else is imported.

use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "torch-cuda-build",
        patterns: &[
            r"Found no NVIDIA driver on your system",
            r"(?i)The NVIDIA driver on your system is too old",
            r"(?i)CUDA driver initialization failed, you might not have a CUDA gpu",
            r"(?i)CUDA initialization: (?:The NVIDIA driver|CUDA driver|CUDA unknown|Unexpected error from cudaGetDeviceCount)",
        ],
        covers: &["torch-cpu-only"],
        cause: "The installed torch is the CUDA build, for NVIDIA's cards; on an AMD card it finds nothing. Another package often replaces the ROCm build when it is installed.",
        fix: &[
            "pip uninstall torch torchvision torchaudio, then install the ROCm build in the same environment:",
            "{install}",
            "no driver of NVIDIA: it is not missing",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.version.hip, torch.version.cuda)'",
            "pip list | grep -iE 'torch|nvidia|rocm'",
        ],
        source: "https://github.com/comfyanonymous/ComfyUI/issues/5122",
        ..BASE
    },
    Entry {
        id: "torch-cpu-only",
        confidence: Medium,
        patterns: &[
            r"(?i)No accelerator \(CUDA, \S.*is available",
            r"(?i)Torch is not able to use GPU",
            r"(?i)Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False",
            r"(?i)(?:No CUDA GPUs are available|CUDA unavailable, invalid device|CUDA is not available|no CUDA-capable device is detected)",
            r"(?i)Unsloth cannot find any torch accelerator",
            r"\bnot implemented for 'Half'",
            r"Torch not compiled with CUDA enabled",
            r"(?i)No GPU (?:or (?:Intel )?XPU )?found\. A GPU (?:or (?:Intel )?XPU )?is needed for",
            r"(?i)There are currently no available devices found|No available GPU device found|No CUDA/mps/npu device found",
            r"(?i)not initialized on GPU and with no GPU available",
            r"(?i)(?:quantization|training) (?:requires|is only supported on) (?:a )?(?:GPU|CUDA GPU)\b",
            r"(?i)GPU is required to run \w+ quantized model",
            r"Invalid CUDA '(?:--)?device",
            r"^\W*assert torch\.cuda\.is_available\(\)|AssertionError: CUDA is required",
            r"available_devices = \{'cpu'\}",
            r"torch\.cuda\.is_available\(\)(?: should be True but)?(?: is)?\W{1,8}False",
            r"(?i)ProcessGroupNCCL is only supported with GPUs, no GPUs found",
            r"(?i)GPU is required to quantize or run quantize model",
            r"(?i)8-bit optimizer is not available on your device, only available on CUDA",
            r"(?i)^\W*(?:Using torch )?(?:CUDA|GPU|HIP \(ROCm\)|ROCm) available\W{1,6}False\W*$",
            r"if 'HIP Runtime' in s\]\[0\]",
            r"module 'torch\._C' has no attribute '_(?:Cuda|cuda_)\w+'",
        ],
        cause: "This torch cannot see an AMD GPU: it is the build for the CPU (often after `pip install -r requirements.txt`), or for CUDA, not a ROCm build; or the GPU itself is hidden or not permitted.",
        fix: &[
            "python -c \"import torch; print(torch.__version__, torch.version.hip)\": None means the wrong wheel; install torch from the index of the ROCm build, in this environment:",
            "{install}",
            "with the right wheel: `surefoot doctor` tells what hides the GPU",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.version.hip)'",
            "pip list | grep -i torch",
        ],
        source: "https://github.com/ROCm/ROCm/issues/2354",
        ..BASE
    },
    Entry {
        id: "bitsandbytes-fallback",
        patterns: &[r"(?i)ROCm [\d.]+ binary not found; falling back to"],
        also: &[r"(?i)segmentation fault|core dumped|HIP error|SIGSEGV|undefined symbol"],
        covers: &[
            "segmentation-fault",
            "bitsandbytes-rocm-version",
            "nightly-crash",
        ],
        cause: "bitsandbytes has no library for the ROCm version of this torch, took one that was built for another ROCm, and crashed in it.",
        fix: &[
            "a torch of a ROCm version that bitsandbytes has a library for (the number in libbitsandbytes_rocm<version>), such as 6.4 or newer",
            "or a newer bitsandbytes, or a build of your own for the ROCm of this torch",
        ],
        ask: &[
            "pip list | grep -iE 'torch|bitsandbytes'",
            "ls $(python -c 'import bitsandbytes,os; print(os.path.dirname(bitsandbytes.__file__))')",
        ],
        source: "https://github.com/unslothai/unsloth/issues/10273",
        ..BASE
    },
    Entry {
        id: "bitsandbytes-cuda",
        severity: Warning,
        patterns: &[
            r"(?i)'NoneType' object has no attribute 'c(?:get|quantize|dequantize|gemm|adam)\w*'",
            r"name 'str2optimizer\w+' is not defined",
            r"(?i)undefined symbol: c(?:get_col_row|quantize|dequantize|gemm)\w*",
            r"CUDA SETUP: (?:Required|Something|CUDA runtime|Problem|Failed|Solution|CUDA detection failed|The CUDA version|Setup Failed|Detected CUDA)",
            r"(?i)bitsandbytes.*(?:compiled without GPU support|CUDA Setup failed)",
            r"(?i)CUDA Setup failed despite (?:CUDA|GPU) being available",
            r"libbitsandbytes_(?:cuda\w*|cpu)\.(?:so|dll)\S*:? (?:cannot open|not found)",
            r"(?i)Could not find the bitsandbytes (?:CUDA|ROCm|HIP) binary",
            r"(?i)bitsandbytes native library: 'NoneType' object has no attribute 'split'",
            r"(?i)libbitsandbytes_hip\w*\.so",
            r"(?i)Forgot to compile the bitsandbytes library",
            r"(?i)requires the latest version of bitsandbytes|module 'bitsandbytes' has no attribute",
            r"(?i)operator 'bitsandbytes::\w+' is not currently implemented|No kernel registered for 'bitsandbytes::|bitsandbytes::\w+.{0,40}(?:is not implemented|not available) for",
            r"CUDA[ _]SETUP: (?:WARNING|Loading binary \S*libbitsandbytes_cpu)",
            r"WARNING: No libcudart\.so found! Install CUDA",
            r"undefined symbol: cudaRuntimeGetVersion",
        ],

        covers: &["cuda-library-missing", "undefined-symbol"],
        unless: &[r"libbitsandbytes_rocm\d+"],
        cause: "bitsandbytes has no library for this torch: it is the build for CUDA or for the CPU, or its library was never built; it looks for the CPU's when torch is not a ROCm build (any more).",
        fix: &[
            "pip install -U bitsandbytes (0.49 and newer bring ROCm builds)",
            "python -c 'import torch; print(torch.version.hip)': None means that torch is not the ROCm build; reinstall torch from its ROCm index first",
            "BNB_ROCM_VERSION=<72 for ROCm 7.2>",
            "without it: AdamW instead of AdamW8bit, 16 bits instead of 4",
        ],
        ask: &[
            "python -m bitsandbytes",
            "python -c 'import torch; print(torch.__version__, torch.version.hip)'",
        ],
        source: "https://huggingface.co/docs/bitsandbytes/main/en/installation",
        ..BASE
    },
    Entry {
        id: "bitsandbytes-block-size",
        confidence: Medium,
        patterns: &[
            r"torch\._check\(blocksize in",
            r"Expected cond to be True, but got False",
        ],
        also: &[r"(?i)bitsandbytes|unsloth|4bit"],
        cause: "This bitsandbytes has no 4-bit blocks of 64 values for {gpu}: GPUs with waves of 64 (Instinct, Vega) need blocks of 128 or more, and models quantised in blocks of 64 cannot be loaded.",
        fix: &[
            "a newer bitsandbytes, which supports blocks of 64 on them",
            "the model in 16 bits, quantised on loading with a block size of 128, or training in bf16 (load_in_4bit=False)",
        ],
        source: "https://github.com/unslothai/unsloth/pull/3279",
        ..BASE
    },
    Entry {
        id: "bitsandbytes-int8",
        confidence: Medium,
        patterns: &[
            r"(?i)cublasLt ran into an error",
            r"(?i)Error (?:named symbol not found|invalid device function) at line \d+ in file .*csrc/ops\.(?:hip|cu)",
        ],
        cause: "The product of 8-bit numbers in bitsandbytes failed: it goes through hipBLASLt, which has no such kernels for many Radeon GPUs, or the library was built for other architectures.",
        fix: &[
            "4 bits (load_in_4bit) or 16 bits instead of load_in_8bit",
            "a newer bitsandbytes (0.49 and newer bring ROCm builds), or one built for <gfx>",
        ],
        ask: &["python -m bitsandbytes"],
        source: "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1428",
        ..BASE
    },
    Entry {
        id: "bitsandbytes-rocm-version",
        severity: Warning,
        patterns: &[
            r"libbitsandbytes_rocm\w*\.(?:so|dll)\S*:? cannot open",
            r"(?i)Could not find the bitsandbytes ROCm binary",
            r"Configured ROCm binary not found",
            r"(?i)ROCm Setup failed despite ROCm being available",
            r"(?i)ROCm [\d.]+ binary not found; falling back to",
        ],
        covers: &["bitsandbytes-cuda"],
        cause: "bitsandbytes has no library for the ROCm version of this torch: it looks for one by version. Programs in 16 bits go on without it; 4- and 8-bit layers and 8-bit optimizers fail.",
        fix: &[
            "ls the folder of bitsandbytes: libbitsandbytes_rocm<version>.so are those it brings",
            "BNB_ROCM_VERSION=<the nearest of them>, such as 72 for ROCm 7.2",
            "pip install -U bitsandbytes: a newer version has more of them, and computes the name right; or build it for this ROCm",
        ],
        ask: &["python -m bitsandbytes"],
        source: "https://huggingface.co/docs/bitsandbytes/main/en/installation",
        ..BASE
    },
    Entry {
        id: "xformers-missing",
        patterns: &[
            r"(?i)No operator found for `?memory_efficient_attention",
            r"No module named '?xformers'?",
            r"(?i)facebookresearch/xformers for more information on how to install",
            r"(?i)xFormers wasn't buil[dt] with CUDA support",
            r"(?i)xformers.*(?:can't load C\+\+/CUDA extensions|was built for)",
        ],
        cause: "The program asks for xformers, whose attention has no code for this device: on AMD its kernels are for Instinct cards, and none are for DirectML.",
        fix: &[
            "without xformers: remove --xformers, and use PyTorch's own attention (kohya: --sdpa, WebUI: --opt-sdp-attention, with DirectML --opt-sub-quad-attention)",
        ],
        source: "https://github.com/bmaltais/kohya_ss/issues/2667",
        ..BASE
    },
    Entry {
        id: "bad-alloc-on-import",
        confidence: Medium,
        patterns: &[r"std::bad_alloc"],
        also: &[r"(?i)torchaudio|torchvision|import"],
        cause: "torch and torchaudio or torchvision are of different builds.",
        fix: &["install all three from one index, of one date"],
        source: "https://github.com/ostris/ai-toolkit/pull/563",
        ..BASE
    },
    Entry {
        id: "host-allocation-failed",
        confidence: Low,
        patterns: &[r"what\(\):\s+std::bad_alloc"],
        cause: "A library could not get memory of the host: no RAM or page file left, or libraries of different builds that misread each other's sizes.",
        fix: &[
            "free -h while it runs; on an APU, memory of the GPU is RAM and counts",
            "`surefoot run -- …` notes the memory at the moment of death",
        ],
        source: "https://github.com/ostris/ai-toolkit/pull/563",
        ..BASE
    },
    Entry {
        id: "tensors-on-two-devices",
        confidence: Medium,
        patterns: &[
            r"Expected all tensors to be on the same device",
            r"(?i)Tensor for argument #\d .{0,20}is on \w+, but expected (?:it|them) to be on",
            r"Input type \(torch\.cuda\.\w+\) and (?:weight|bias) type \(torch\.[A-Z]\w+\)|Input type \(torch\.[A-Z]\w+\) and (?:weight|bias) type \(torch\.cuda",
            r"can't convert (?:cuda|hip):\d device type tensor to numpy|cannot pin 'torch\.cuda\.",
            r"indices should be either on (?:cpu|CPU) or on the same device as the indexed tensor",
        ],
        covers: &["types-differ"],
        cause: "A part of the model or of the batch is still on the CPU. Switching device placement off (`device_placement=False`) to get round a failing copy ends here: nothing moves them later.",
        fix: &[
            "move model and batch to one device, and fix the copy that failed first",
            "`surefoot probe --only copy` tells whether copies arrive",
        ],
        source: "https://github.com/huggingface/accelerate/blob/main/src/accelerate/accelerator.py",
        ..BASE
    },
    Entry {
        id: "visibility-contradicts",
        patterns: &[r"contains more devices than ROCR_VISIBLE_DEVICES"],
        cause: "HIP_VISIBLE_DEVICES counts what ROCR_VISIBLE_DEVICES has left, and names more than that.",
        fix: &["unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES"],
        source: "https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html",
        ..BASE
    },
    Entry {
        id: "compile-time-switch",
        severity: Info,
        patterns: &[r"(?:set|export|\$env:)\s*TORCH_USE_HIP_DSA"],
        cause: "TORCH_USE_HIP_DSA is a switch of the compiler: setting it at run time does nothing.",
        fix: &["remove it"],
        source: "PyTorch, c10/cuda/CUDADeviceAssertionHost.cpp",
        ..BASE
    },
    Entry {
        id: "triton-missing",
        severity: Info,
        confidence: Medium,
        patterns: &[
            r"(?i)No module named '?triton'?",
            r"(?i)cannot find a working triton installation",
        ],
        unless: &[r"(?i)matching Triton is not available"],
        covers: &["python-package-missing"],
        cause: "Triton is not installed: torch.compile and some kernels need the one that belongs to this torch. Most programs only warn and go on without it.",
        fix: &[
            "reinstall torch from its ROCm index, which brings its triton (Windows: pip install triton-windows)",
            "or run without torch.compile",
        ],
        source: "https://github.com/ROCm/TheRock/blob/main/RELEASES.md",
        ..BASE
    },
    Entry {
        id: "import-error-torch",
        confidence: Medium,
        patterns: &[r"No module named '?torch'?\s*$"],
        cause: "There is no torch in the Python that ran.",
        fix: &["activate the right environment; `surefoot doctor` names the one it found"],
        source: "https://pytorch.org/get-started/locally/",
        ..BASE
    },
    Entry {
        id: "nan-in-half-precision",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)A tensor with (?:all )?NaNs was produced in (?:Unet|VAE)",
            r"(?i)invalid value encountered in cast",
            r"(?i)NaN detected in latents",
        ],
        also: &[r"(?i)NaNs was produced|images?|VAE|decode|comfy|webui|latents"],
        cause: "The model computed NaN in 16 bits: black images. Some GPUs and models (SDXL's VAE above all) need more range than fp16 has.",
        fix: &[
            "ComfyUI: --fp32-vae or --bf16-vae; web UI: --no-half-vae, then --upcast-sampling or --no-half; kohya: --no_half_vae",
            "another attention: --use-pytorch-cross-attention",
        ],
        source: "https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/Install-and-Run-on-AMD-GPUs",
        ..BASE
    },
];
