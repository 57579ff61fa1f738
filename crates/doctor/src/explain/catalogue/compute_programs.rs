//! Other programs that compute on GPUs, and the schedulers of clusters: OpenCL, JAX, CuPy, numba, ONNX Runtime, Slurm, git.

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "opencl-no-device",
        last_resort: true,
        confidence: Medium,
        patterns: &[
            r"(?i)\[opencl_init\] (?:no devices found|could not get context)",
            r"(?i)hashcat.{0,12}No devices found/left|^No devices found/left",
            r"(?i)\bPLATFORM_NOT_FOUND_KHR\b|\bDEVICE_NOT_FOUND\b",
        ],
        cause: "OpenCL finds no device that the program takes: no OpenCL driver is installed (ROCm's, or Mesa's rusticl), it does not support {gpu}, the user may not open the device, or the program leaves out devices of drivers that it does not trust.",
        fix: &[
            "Linux: install one OpenCL driver (rocm-opencl, or mesa-opencl-icd with RUSTICL_ENABLE=radeonsi), and only one",
            "Linux: clinfo -l must list the GPU for your user; if only root sees it, join the groups that own /dev/kfd and /dev/dri",
            "Windows: the OpenCL driver is part of Adrenalin: a newer one",
        ],
        ask: &["clinfo -l"],
        source: "https://rocm.docs.amd.com/projects/clr/en/latest/",
        ..BASE
    },
    Entry {
        id: "opencl-build-failed",
        last_resort: true,
        confidence: Low,
        patterns: &[r"(?i)\bCL_BUILD_PROGRAM_FAILURE\b|clBuildProgram.{0,20}(?:failed|-11\b)"],
        cause: "The OpenCL driver could not compile the program's kernel for {gpu}: the kernel uses something that this driver does not know, or the driver's compiler has a bug. The build log below names the line.",
        fix: &[
            "another OpenCL driver (ROCm's instead of Mesa's, or the other way round) or another version of it",
            "a newer version of the program; empty its cache of kernels",
        ],
        ask: &[
            "the build log below the line",
            "clinfo | grep -iE 'driver version|device name'",
        ],
        source: "https://registry.khronos.org/OpenCL/sdk/3.0/docs/man/html/clBuildProgram.html",
        ..BASE
    },
    Entry {
        id: "jax-no-gpu",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)\bNo visible GPU devices\b|No GPU/TPU found, falling back to CPU",
            r"(?i)Could not find registered platform with name: \W?rocm",
        ],
        cause: "JAX sees no GPU: the plugin for ROCm (jax-rocm-plugin and jax-rocm-pjrt) is not installed or of another version than jaxlib, it has no code for {gpu}, or the user may not open the device.",
        fix: &[
            "jax, jaxlib, jax-rocm-plugin and jax-rocm-pjrt of one version and one ROCm",
            "Linux, WSL: rocminfo must list the GPU for your user",
        ],
        ask: &[
            "pip list | grep -i jax",
            "Linux, WSL: rocminfo | grep -E 'gfx|Marketing'",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/3rd-party/jax-install.html",
        ..BASE
    },
    Entry {
        id: "cuda-python-package",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"numba\.cuda\.\S*Error|\bCudaSupportError\b",
            r"(?i)No CUDA toolkit found|cupy\S*\.\S*(?:CompileException|CUDARuntimeError)",
            r"(?i)Could not load library libcudnn\w*|libcudnn\w*\.so\S*: cannot open",
            r"(?i)cuDNN version incompatibility",
        ],
        cause: "A package that is written for CUDA (numba.cuda, CuPy's usual wheels, extensions that look for CUDA's toolkit or cuDNN) runs on a machine with an AMD GPU, or its build for ROCm does not fit the installed ROCm.",
        fix: &[
            "the build of the package for ROCm, where there is one (CuPy: build with CUPY_INSTALL_USE_HIP=1; numba: numba-hip)",
            "without the package, or its part on the CPU; the ROCm build of torch, if CUDA's libraries came with a CUDA build",
        ],
        ask: &["pip list | grep -iE 'torch|cuda|nvidia|cupy|numba|rocm'"],
        source: "https://docs.cupy.dev/en/stable/install.html",
        ..BASE
    },
    Entry {
        id: "operators-without-gpu",
        last_resort: true,
        confidence: Medium,
        patterns: &[
            r"(?i)implementation for device (?:cuda|hip)\S* not found",
            r"(?i)\bNot compiled with GPU support|was not compiled with (?:GPU|CUDA|HIP|ROCm) support",
            r"(?i)Couldn't load torchvision C\+\+ ops",
        ],
        cause: "An extension with operators of its own (mmcv, detectron2, torchvision and similar) was built without its part for the GPU, or for another torch than the installed one.",
        fix: &[
            "rebuild it against this torch with a ROCm compiler: FORCE_CUDA=1 PYTORCH_ROCM_ARCH=<gfx> pip install --no-build-isolation --no-binary :all: <package>",
            "torchvision and torchaudio from the same index as torch, in one command",
        ],
        ask: &["pip list | grep -iE 'torch|mmcv|detectron'"],
        source: "https://docs.pytorch.org/docs/stable/cpp_extension.html",
        ..BASE
    },
    Entry {
        id: "gpu-refused",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"(?i)\b(?:this|your|the) (?:GPU|graphics card|device) is (?:not|un)\s?supported\b",
            r"(?i)\bunsupported (?:GPU|graphics card|device)\b",
        ],
        cause: "The program refuses the GPU. It has a list of its own: {gpu} is not on it, another GPU (integrated graphics) is looked at first, or the program is for CUDA only.",
        fix: &[
            "the program's page: which AMD GPUs, and which of its builds for ROCm, it supports; a newer version of it",
            "hide the other GPU: HIP_VISIBLE_DEVICES=<index>",
        ],
        ask: &[
            "Linux, WSL: rocminfo | grep -E 'gfx|Marketing'",
            "Windows: hipInfo",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html",
        ..BASE
    },
    Entry {
        id: "scheduler-refused",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        scope: NotWindows,
        patterns: &[
            r"(?i)Invalid generic resource \(gres\) specification|Requested node configuration is not available",
        ],
        cause: "Slurm has no node with the GPUs that were asked for: the name or the number in --gres (--gpus) is not what the cluster's configuration calls them, or the partition has none.",
        fix: &[
            "sinfo -o '%P %G %N' lists which GPUs each partition has, by their names; ask for one of these",
        ],
        ask: &["sinfo -o '%P %G %N'; scontrol show node | grep -i gres"],
        source: "https://slurm.schedmd.com/gres.html",
        ..BASE
    },
    Entry {
        id: "pip-permission",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)Could not install packages due to an (?:OSError|EnvironmentError): \[(?:Errno 13|WinError (?:5|32))\]",
        ],
        cause: "pip may not write into the environment: it is the system's Python or belongs to another user, or a running program holds a file (on Windows also the virus scanner).",
        fix: &[
            "an environment of your own (python -m venv venv, activate it); no sudo pip",
            "end every program that uses the environment, then again",
        ],
        source: "https://pip.pypa.io/en/stable/topics/local-project-installs/",
        ..BASE
    },
    Entry {
        id: "not-a-git-repository",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)fatal: not a git repository|fatal: detected dubious ownership in repository",
        ],
        cause: "git refuses the folder: it was unpacked from an archive instead of cloned, or belongs to another user than the one that runs the program. Programs that update themselves or ask for their version only report it.",
        fix: &[
            "clone the program with git instead of unpacking an archive, where it updates itself",
            "dubious ownership: git config --global --add safe.directory <folder>, or give the folder to the user",
        ],
        source: "https://git-scm.com/docs/git-config#Documentation/git-config.txt-safedirectory",
        ..BASE
    },
    Entry {
        id: "driver-fence-order",
        confidence: Medium,
        scope: BareMetal,
        patterns: &[
            r"(?i)\bfences? (?:signalled|signaled) out of order|TTM.{0,20}Buffer eviction failed",
        ],
        cause: "The kernel's driver lost track of its own work on the GPU (a bug of that kernel or firmware), mostly after a hang or under a lack of memory.",
        fix: &[
            "a newer kernel and linux-firmware; restart",
            "less memory in use by the GPU; another ROCm version",
        ],
        ask: &["dmesg | grep -iE 'amdgpu|ttm' | tail -n 60; uname -r"],
        source: "https://docs.kernel.org/gpu/amdgpu/debugging.html",
        ..BASE
    },
];
