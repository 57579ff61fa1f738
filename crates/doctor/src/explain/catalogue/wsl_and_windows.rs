//! WSL and Windows, where little applies of what is true on Linux.

use super::Scope::{Windows, Wsl};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Info;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "wsl-gpu-not-usable",
        confidence: Medium,
        patterns: &[
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
            r"(?i)ROCR: unsupported GPU",
            r"(?i)No HIP GPUs are available",
            r"(?i)no ROCm-capable device",
            r"(?i)Could not initialize Tensile host: No devices found",
            r"hipErrorNoDevice|hipErrorInvalidDevice\b",
            r"/dev/kfd.*(?:No such file|Permission denied)",
            r"(?i)ROCk module is NOT (?:loaded|live)",
            r"(?i)No WDDM adapters found",
            r"(?i)dxgk\w*: Ioctl failed",
            r"(?i)libdxcore\.so\S*: cannot open|Failed to mount /dev/dxg",
            r"(?i)(?:hsa api call failure|rocminfo).{0,200}Call returned 4104\b",
            r"(?i)thunk_proxy\.cpp|sources/wsl/libhsakmt\S*: .*Assertion",
            r"props\.EngineId\.ui32\.Major",
            r"(?i)hsa_init Failed, possibly no supported GPU",
            r"(?i)HIP initialization: Unexpected error from hipGetDeviceCount",
            r"(?i)libdxcore\.so\S*.{0,20}(?:not found|No such file)",
            r"(?i)ggml_cuda_init: (?:failed to initialize|no) ROCm",
        ],
        scope: Wsl,
        covers: &["torch-cpu-only"],
        cause: "Under WSL the ROCm runtime finds no GPU that it can use. There the GPU comes through the Windows driver (/dev/dxg): either this card is not supported under WSL by this ROCm release, or the Windows driver, WSL and ROCm do not fit together, or ROCm is the package for Linux of its own and not the one for WSL.",
        fix: &[
            "Windows: a card and an Adrenalin driver that AMD's compatibility table lists for WSL and this ROCm version",
            "WSL: the Adrenalin driver on Windows that AMD's table names for this ROCm version, and a card that the table lists",
            "WSL: ROCm for WSL: amdgpu-install --usecase=wsl,rocm --no-dkms (newer releases: librocdxg); no packages of the distribution",
            "WSL: `export HSA_ENABLE_DXG_DETECTION=1`, which librocdxg needs with a ROCm before 7.13",
            "WSL: rocminfo shows the GPU and torch does not: take away the wheel's own runtime, which does not know WSL, so that the one of /opt/rocm is used: rm $(python -c 'import torch, os; print(os.path.dirname(torch.__file__))')/lib/libhsa-runtime64.so*",
            "WSL: `wsl --update` in Windows 11 and a current kernel; Windows 10 is not enough",
        ],
        ask: &[
            "uname -r; ls -l /dev/dxg",
            "rocminfo | head -n 20",
            "dpkg -l | grep -iE 'rocr4wsl|rocm-core|librocdxg'",
        ],
        source: "https://rocm.docs.amd.com/projects/radeon-ryzen/en/latest/docs/compatibility/compatibilityrad/wsl/wsl_compatibility.html",
        ..BASE
    },
    Entry {
        id: "wsl-torch-sees-no-gpu",
        confidence: Medium,
        patterns: &[
            r"torch\.cuda\.is_available\(\)(?: should be True but)?(?: is)?\W{1,8}False",
            r"(?i)^\W*(?:Using torch )?(?:CUDA|GPU|HIP \(ROCm\)|ROCm|CUDA/ROCm) available\W{1,6}False\b",
            r"hipGetDeviceCount: Returned hipErrorNoDevice",
        ],
        scope: Wsl,
        covers: &["torch-cpu-only", "wsl-gpu-not-usable"],
        cause: "Under WSL this torch sees no GPU. If rocminfo shows it, the wheel brings a runtime of its own (libhsa-runtime64 in torch/lib) that does not know WSL, and is used instead of the one of ROCm for WSL; or torch is not a ROCm build at all. If rocminfo does not show it either, the Windows driver, the card and ROCm for WSL do not fit together.",
        fix: &[
            "python -c \"import torch; print(torch.__version__, torch.version.hip)\": None means a build for the CPU or CUDA: install torch in the ROCm version that is installed in WSL (AMD's wheels for WSL)",
            "WSL: take the wheel's own runtime away: rm $(python -c 'import torch, os; print(os.path.dirname(torch.__file__))')/lib/libhsa-runtime64.so* (ROCm before 7.2; newer wheels work with librocdxg)",
            "WSL: rocminfo without the GPU: an Adrenalin driver and a card that AMD's table for WSL lists, and ROCm for WSL (amdgpu-install --usecase=wsl,rocm --no-dkms, or librocdxg)",
        ],
        ask: &[
            "rocminfo | grep -E 'gfx|WSL'",
            "python -c 'import torch; print(torch.__version__, torch.version.hip)'",
            "ls /opt/rocm*/lib/librocdxg.so* /opt/rocm*/lib/libhsa-runtime64.so*",
        ],
        source: "https://rocm.docs.amd.com/projects/radeon-ryzen/en/latest/docs/install/installrad/wsl/install-pytorch.html",
        ..BASE
    },
    Entry {
        id: "wsl-rocdxg-mismatch",
        patterns: &[
            r"librocdxg\.so\S*: undefined symbol",
            r"GetExportAddress failed: \S*librocdxg",
        ],
        scope: Wsl,
        covers: &[
            "rocm-library-mismatch",
            "undefined-symbol",
            "segmentation-fault",
        ],
        cause: "librocdxg, through which ROCm reaches the GPU under WSL, is of another version than the ROCm runtime that loads it: often the one of the host, mounted into a container with a newer ROCm.",
        fix: &[
            "the librocdxg that belongs to this ROCm (build it from its repository for that version), in the host and in the container",
            "or a container with the ROCm of the host; with one before 7.13 also -e HSA_ENABLE_DXG_DETECTION=1",
        ],
        ask: &[
            "ls -l /opt/rocm*/lib/librocdxg.so*",
            "rocminfo | head -n 12",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/6528",
        ..BASE
    },
    Entry {
        id: "wsl-rocdxg-missing",
        patterns: &[
            r"librocdxg\.so\S*: cannot open shared object file",
            r"(?i)dlopen \S*librocdxg\S* failed|librocdxg\S* (?:is )?(?:not found|missing|not installed|is not)\b",
        ],
        scope: Wsl,
        covers: &[
            "rocm-library-mismatch",
            "missing-library",
            "wsl-runtime-only",
        ],
        cause: "librocdxg, through which ROCm reaches the GPU of Windows under WSL, is not there.",
        fix: &[
            "install librocdxg for this version of ROCm, beside its other libraries (/opt/rocm/lib)",
            "in a container: mount it, and pass --device /dev/dxg -v /usr/lib/wsl/lib/libdxcore.so:/usr/lib/libdxcore.so",
            "`export HSA_ENABLE_DXG_DETECTION=1` with a ROCm before 7.13",
        ],
        ask: &["ls -l /dev/dxg /opt/rocm*/lib/librocdxg.so*"],
        source: "https://github.com/ROCm/librocdxg",
        ..BASE
    },
    Entry {
        id: "wsl-runtime-only",
        patterns: &[
            r"lib(?:roc\w+|hip\w+|MIOpen|rccl|amd\w+|hsa\w+)\.so\S*: cannot open shared object file",
        ],
        scope: Wsl,
        covers: &["rocm-library-mismatch", "missing-library"],
        cause: "A library of ROCm is missing: under WSL only the runtime of ROCm is installed, and this wheel needs more of it, of its own version.",
        fix: &[
            "install all of ROCm for WSL, in the version that the wheel names: amdgpu-install -y --usecase=wsl,rocm --no-dkms",
            "or a wheel that brings its libraries (from AMD's index, rocm[libraries])",
        ],
        ask: &[
            "dpkg -l | grep -E 'rocm-core|rocr4wsl'",
            "pip list | grep -iE 'torch|rocm'",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/6053",
        ..BASE
    },
    Entry {
        id: "windows-no-hip-device",
        confidence: Medium,
        patterns: &[
            r"(?i)No HIP GPUs are available",
            r"(?i)no ROCm-capable device",
            r"(?i)Could not initialize Tensile host: No devices found",
            r"hipErrorNoDevice|hipErrorInvalidDevice\b",
            r"(?i)ggml_cuda_init: (?:failed to initialize|no) ROCm",
            r"(?i)HIP initialization: Unexpected error from hipGetDeviceCount|driver version is insufficient for runtime",
            r"(?i)(?:No|couldn't find any) HIP devices? (?:were )?found|couldn't find any HIP devices|Error trying to query ROCm gpus",
        ],
        scope: Windows,
        covers: &["torch-cpu-only", "tensile-library-missing"],
        cause: "HIP on Windows finds no GPU that it can use: the card is not supported by this release (RX 400 and 500, Vega and its APUs are not), the Adrenalin driver is too old for it, or a variable hides the GPU.",
        fix: &[
            "a current Adrenalin driver, then restart",
            "look the card up in AMD's list of supported GPUs for HIP on Windows; without support: DirectML, Vulkan, or ZLUDA with an older SDK",
            "remove HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES from the environment",
        ],
        ask: &[
            "hipInfo",
            "the name and the driver version of the card in the Device Manager",
            "set | findstr VISIBLE_DEVICES",
        ],
        source: "https://github.com/ROCm/hip/issues/3805",
        ..BASE
    },
    Entry {
        id: "hip-sdk-missing",
        confidence: Medium,
        patterns: &[
            r"(?i)\bno HIP SDK (?:was |is )?(?:found|installed|detected)",
            r"(?i)HIP SDK (?:is |was )?not (?:found|installed|detected)",
            r"(?i)(?:could not|unable to|failed to) (?:find|locate|detect) (?:the )?(?:AMD )?HIP SDK",
        ],
        covers: &["hip-headers-missing"],
        cause: "The HIP SDK for Windows is not installed, or the program does not find it (HIP_PATH, PATH; the program was installed for another backend, such as DirectML). ZLUDA and programs that are compiled with HIP need it; AMD's wheels of torch and the Vulkan builds do not.",
        fix: &[
            "install the HIP SDK in the version that the program names, open a new terminal, and look whether HIP_PATH names its folder",
            "install the program again with ZLUDA (or ROCm) chosen, where it was installed for DirectML",
        ],
        ask: &["echo %HIP_PATH%", "dir \"C:\\Program Files\\AMD\\ROCm\""],
        source: "https://rocm.docs.amd.com/projects/install-on-windows/en/latest/",
        ..BASE
    },
    Entry {
        id: "zluda-other-sdk",
        patterns: &[
            r"(?i)Could not find module .*hiprtc\d+\.dll",
            r"(?i)(?:Failed to|Could not|Cannot) load ZLUDA",
            r"(?i)ZLUDA.*(?:hiprtc|nvrtc|HIP SDK).*(?:not found|missing|could not|cannot)",
        ],
        covers: &[
            "windows-dll-missing",
            "windows-rocm-dll",
            "zluda-files-missing",
        ],
        cause: "This ZLUDA was built for another version of the HIP SDK than the one that is installed: it looks for the libraries of its own (hiprtc0507.dll is of HIP SDK 5.7).",
        fix: &[
            "install the HIP SDK that this ZLUDA wants (hiprtc0507: 5.7, hiprtc0602: 6.2), and let HIP_PATH and PATH name it",
            "or a newer ZLUDA, made for the installed HIP SDK",
            "or leave ZLUDA: AMD's wheels of torch run natively on Windows on RX 6000 and newer and Ryzen AI",
        ],
        ask: &["dir \"C:\\Program Files\\AMD\\ROCm\"", "echo %HIP_PATH%"],
        source: "https://github.com/Nerogar/OneTrainer/issues/421",
        ..BASE
    },
    Entry {
        id: "windows-openmp-missing",
        patterns: &[
            r"(?:WinError (?:126|127|193|1114)\]|DLL load failed).*(?:fbgemm|shm|torch_cpu|libiomp5md)\.dll",
            r"(?i)libomp140\.x86_64\.dll",
        ],
        covers: &["windows-dll-missing"],
        cause: "A DLL of torch cannot be loaded because one that it depends on is missing: libomp140.x86_64.dll, which comes with Visual Studio and is not in every Windows.",
        fix: &[
            "install the newest Microsoft Visual C++ redistributable; if that does not bring it, the C++ tools of Visual Studio Build Tools",
            "or another version of torch: newer builds bring libomp140 themselves",
        ],
        ask: &["where libomp140.x86_64.dll", "pip list | findstr -i torch"],
        source: "https://github.com/pytorch/pytorch/issues/129568",
        ..BASE
    },
    Entry {
        id: "windows-hip-sdk-missing",
        patterns: &[
            r"(?:WinError (?:126|127)\]|DLL load failed).*(?:caffe2_nvrtc|nvrtc\w*|cublas\w*|cudart\w*|cufft\w*|cusparse\w*|zluda\w*|nvcuda|c10_cuda|torch_cuda\w*)\.dll",
        ],
        covers: &["windows-dll-missing"],
        cause: "The CUDA build of torch was loaded through ZLUDA, and a library that it depends on is missing: the HIP SDK is not installed, or its bin folder is not on PATH.",
        fix: &[
            "install the HIP SDK in the version that ZLUDA asks for, add its bin folder (%HIP_PATH%bin) to PATH and restart",
            "without ZLUDA: install the ROCm build of torch for this card instead of the CUDA build",
        ],
        ask: &[
            "echo %HIP_PATH%",
            "where amdhip64.dll amdhip64_6.dll amdhip64_7.dll",
        ],
        source: "https://github.com/patientx/ComfyUI-Zluda/issues/76",
        ..BASE
    },
    Entry {
        id: "windows-rocm-dll",
        patterns: &[
            r"(?i)entry point (?:hip|roc|ggml|amd|miopen)\w* could not be located",
            r"WinError (?:126|127|193|1114)\].*(?:amd_comgr|amdhip64|hiprtc|hipblas|rocblas|MIOpen|c10_hip|torch_hip|rocsolver|hipfft|hipsparse|rocm_kpack|_rocm_sdk)\w*[\\.]",
            r"(?i)LoadLibraryExW failed for (?:amdhip64|amd_comgr|hiprtc)\w*\.dll",
            r"(?i)(?:can ?not|can't|could not|failed to|unable to) load .{0,120}(?:amdhip64|amd_comgr|hiprtc|hipblas|rocblas|ggml-hip)\w*\.dll",
            r"(?i)Could not find module '.*(?:amdhip64|amd_comgr|hiprtc|hip[a-z]+|roc[a-z]+|MIOpen)\w*\.dll'",
            r"(?i)(?:amdhip64|amd_comgr|hiprtc|hipblas|rocblas|MIOpen)\w*\.dll.{0,60}(?:not found|was not found|missing|could not be loaded|cannot be loaded|fehlt|nicht gefunden|introuvable)",
        ],
        covers: &["windows-dll-missing", "windows-no-hip-device"],
        cause: "A DLL of ROCm (the HIP runtime, such as amdhip64 or amd_comgr) is missing, cannot be initialised or is one of another version: the one of the driver or of an old HIP SDK is found first, or the packages of torch and rocm are of different dates.",
        fix: &[
            "reinstall torch, torchvision, torchaudio and the rocm packages together, of one version and date, in a fresh environment (or another nightly)",
            "take folders of other HIP SDKs and of ZLUDA off PATH; amdhip64*.dll copied by hand goes",
            "update the Adrenalin driver, which brings a HIP runtime of its own",
            "a program without Python (llama.cpp, stable-diffusion.cpp, koboldcpp): the HIP SDK in the version that it was built with, and its bin folder on PATH",
        ],
        ask: &[
            "where amdhip64.dll amdhip64_6.dll amdhip64_7.dll amd_comgr.dll",
            "pip list | findstr -i \"torch rocm\"",
        ],
        source: "https://github.com/ROCm/TheRock/issues/827",
        ..BASE
    },
    Entry {
        id: "windows-dll-missing",
        confidence: Medium,
        patterns: &[
            r"(?i)DllNotFoundException|Unable to load DLL .",
            r"\[WinError (?:126|127|193|1114)\]",
            r"(?i)LoadLibrary\w* failed.{0,12}\b126\b|\berror(?: code)?:? 126\b.{0,40}\bmodule\b",
            r"DLL load failed while importing",
            r"(?i)(?:MSVCP|VCRUNTIME|CONCRT|VCOMP)140(?:_\d)?\.dll.{0,40}(?:missing|not found|fehlt|introuvable)",
            r"(?i)Could not find module '.*\.dll'",
        ],
        cause: "A DLL, or one that it depends on, is missing or of another version than what loads it. The line names the one that was asked for, not the one that is missing.",
        fix: &[
            "install the newest Microsoft Visual C++ redistributable",
            "reinstall the package that the line names, and torch, torchvision and torchaudio of one build from one index",
            "look into PATH for another HIP SDK or an old driver library that is found first",
        ],
        ask: &[
            "pip list | findstr -i \"torch rocm\"",
            "where amdhip64_7.dll libomp140.x86_64.dll",
        ],
        source: "https://learn.microsoft.com/windows/win32/debug/system-error-codes--0-499-",
        ..BASE
    },
    Entry {
        id: "windows-access-violation",
        confidence: Medium,
        patterns: &[
            r"(?i)0xC0000005",
            r"(?:[Ee]xit(?:ed with)? (?:status|code):? ?)(?:3221225477|-1073741819)\b",
            r"(?i)access violation.*amdhip64",
            r"(?i)Windows fatal exception: access violation",
            r"(?i)exception: access violation (?:reading|writing) 0x",
            r"amdhip64\w*\.dll.*(?:exception|fault)",
        ],
        cause: "Native code crashed on Windows, mostly the HIP runtime or the Vulkan driver: the 6.4.4 preview on the first copy, a single-architecture wheel with a visible integrated GPU, or the profiler of 7.14.",
        fix: &[
            "a newer wheel (or program) and driver; after a new driver, also the one before it",
            "HIP_VISIBLE_DEVICES=<index of the card>",
        ],
        source: "https://github.com/ROCm/TheRock/issues/5543",
        ..BASE
    },
    Entry {
        id: "windows-aborted",
        confidence: Low,
        last_resort: true,
        patterns: &[
            r"\b(?:exit (?:status|code)|exited with code):? ?(?:3221226505|-1073740791|0x[cC]0000409)\b",
        ],
        covers: &["launcher-reports"],
        cause: "The process ended itself on Windows (0xC0000409): native code met an error and aborted without a message. On AMD GPUs mostly a library of ROCm that has no code for the GPU or meets another version of itself, or memory that ran out.",
        fix: &[
            "HIP_VISIBLE_DEVICES=<index of the card>, where there is an integrated GPU as well",
            "a newer wheel and driver",
            "python -X faulthandler <your program> shows which call it was",
        ],
        ask: &["the last lines of the process above this one", "hipInfo"],
        source: "https://learn.microsoft.com/openspecs/windows_protocols/ms-erref/596a1078-e883-4972-9bbc-49e60bebca55",
        ..BASE
    },
    Entry {
        id: "windows-driver-timeout",
        confidence: Medium,
        patterns: &[
            r"(?i)VIDEO_TDR_FAILURE|VIDEO_TDR_TIMEOUT|amd[kw]mdag has stopped responding",
            r"(?i)display driver .{0,20}(?:stopped responding|has recovered)",
            r"(?i)LiveKernelEvent.{0,20}\b(?:141|117|1a8)\b",
            r"(?i)driver timeout (?:has )?occurred",
            r"(?i)bugcheck was: 0x0*(?:116|117|119|ea)\b",
            r"DXGI_ERROR_DEVICE_(?:REMOVED|HUNG|RESET)",
        ],
        cause: "The GPU hung or took too long, and Windows reset the driver (TDR): the program that used it lost its context.",
        fix: &[
            "a newer Adrenalin driver and wheel, updated together",
            "take back overclocking and undervolting in Adrenalin",
            "smaller steps: a smaller batch or tile; one program on the GPU",
        ],
        source: "https://learn.microsoft.com/windows-hardware/drivers/display/tdr-registry-keys",
        ..BASE
    },
    Entry {
        id: "windows-arch-tool-missing",
        severity: Info,
        patterns: &[r"(?i)could not detect ROCm GPU architecture.*WinError 2"],
        covers: &["rocm-not-found"],
        cause: "A tool asks a program of ROCm for the architecture, and hipInfo, which tells it on Windows, is not on PATH.",
        fix: &["activate the environment whose wheel brings hipInfo.exe"],
        source: "https://github.com/ROCm/TheRock/blob/main/RELEASES.md",
        ..BASE
    },
    Entry {
        id: "directml-memory",
        patterns: &[
            r"(?i)8007000E\b.*Not enough memory resources",
            r"(?i)Could not allocate tensor with \d+ bytes\. There is not enough GPU video memory",
            r"(?i)DML allocator out of memory|dml_heap_allocator\.cc",
        ],
        covers: &["out-of-memory-without-numbers", "directml-limits"],
        cause: "DirectML found no memory for a tensor. This runs through DirectML and not through ROCm: it needs much more memory for the same model, gives it back late, and attention is computed in one piece. If the tensor is tiny, DirectML does not work on this device at all.",
        fix: &[
            "Windows: AMD's ROCm build of torch on RX 6000 and newer and Ryzen AI, or ZLUDA on older cards, instead of DirectML",
            "WSL: ROCm for WSL instead of DirectML, on a card that AMD's table lists",
            "with DirectML: half precision (float16), a smaller model, image or batch, --medvram or --lowvram, sub-quadratic attention",
        ],
        source: "https://github.com/microsoft/DirectML/issues/579",
        ..BASE
    },
    Entry {
        id: "directml-device",
        patterns: &[r"(?i)unbox expects Dml at::Tensor|DMLTensor\.cpp"],
        covers: &["directml-limits"],
        cause: "DirectML was given a tensor that is not on its device: the program made it on the CPU or left it there.",
        fix: &[
            "move every tensor to the device of torch_directml (.to(dml)), also those of whole numbers that a scheduler or tokenizer makes",
            "or leave DirectML: AMD's ROCm build of torch needs no changes to the program (its device is \"cuda\")",
        ],
        source: "https://github.com/microsoft/DirectML/issues/442",
        ..BASE
    },
    Entry {
        id: "directml-not-on-linux",
        confidence: Medium,
        patterns: &[r"torch_directml/libdirectml\.so"],
        also: &[r"(?i)SIGSEGV|Segmentation fault|core dumped"],
        covers: &["segmentation-fault", "native-abort"],
        cause: "torch-directml crashed on Linux: DirectML exists on Windows, and under WSL through its /dev/dxg; Linux of its own has no driver for it.",
        fix: &[
            "the ROCm build of torch instead: pip uninstall torch-directml, then torch from its ROCm index",
        ],
        source: "https://learn.microsoft.com/windows/ai/directml/pytorch-wsl",
        ..BASE
    },
    Entry {
        id: "docker-device-wsl",
        patterns: &[
            r"(?i)error gathering device information while adding custom device .?/dev/(?:kfd|dri)",
            r"(?i)stat /dev/kfd: no such file",
        ],
        scope: Wsl,
        covers: &["wsl-gpu-not-usable"],
        cause: "WSL has none of the devices that this command passes, which are those of Linux's own driver: the GPU comes through the Windows driver, as /dev/dxg, and only for the cards that AMD's table for WSL lists.",
        fix: &[
            "WSL: docker run --device /dev/dxg -v /usr/lib/wsl:/usr/lib/wsl …, with an image that has ROCm for WSL (rocr4wsl, librocdxg), in place of the devices in the command",
            "WSL: a card that the table does not list (RX 6000 and older): Linux of its own, or programs for Windows (Vulkan, ZLUDA)",
        ],
        ask: &["ls -l /dev/dxg; uname -r"],
        source: "https://github.com/ROCm/AMDMIGraphX/issues/3834",
        ..BASE
    },
    Entry {
        id: "docker-device-windows",
        patterns: &[
            r"(?i)error gathering device information while adding custom device .?/dev/(?:kfd|dri)",
            r"(?i)stat /dev/kfd: no such file",
        ],
        scope: Windows,
        cause: "Docker on Windows runs containers in a virtual machine (WSL), and the devices that this command passes are those of Linux's own kernel driver: there are none, and neither the HIP SDK nor ROCm for Windows brings them.",
        fix: &[
            "without a container: the program's own version for Windows (AMD's ROCm build of torch, Vulkan, ZLUDA)",
            "in WSL, with a card that AMD's table for WSL lists: --device /dev/dxg -v /usr/lib/wsl:/usr/lib/wsl, and an image with ROCm for WSL",
            "or Linux on the machine itself, where the command works as it is",
        ],
        source: "https://github.com/ROCm/AMDMIGraphX/issues/3834",
        ..BASE
    },
    Entry {
        id: "zluda-files-missing",
        confidence: Medium,
        patterns: &[
            r"(?i)Failed to (?:install|load|initialize) ZLUDA\b",
            r"(?i)Could not call zluda_get_nightly_flag|function 'zluda_\w+' not found",
            r"(?i)(?:nccl|nvcuda|nvrtc\w*|cublas\w*|zluda\w*)\.dll is missing",
            r"(?i)zluda.{0,80}(?:blocked|quarantined|removed) by",
        ],
        covers: &["torch-cpu-only", "windows-dll-missing"],
        cause: "Files of ZLUDA are missing or cannot be loaded: the virus scanner took them (it reports ZLUDA wrongly), its download is incomplete, or it is of another version than the HIP SDK. Without it a CUDA build of torch sees no GPU.",
        fix: &[
            "a newer version of the program, or of its fork for AMD, whose installer fits this ZLUDA: git pull, delete its .zluda folder, start again",
            "an exception in the virus scanner for the folder of the program, then let its installer fetch ZLUDA again",
            "the HIP SDK in the version that this ZLUDA asks for, with its bin folder on PATH and HIP_PATH set; rocBLAS files for the card, where the SDK has none",
            "or leave ZLUDA: AMD's ROCm build of torch on RX 6000 and newer and Ryzen AI",
        ],
        ask: &["dir zluda", "echo %HIP_PATH%"],
        source: "https://github.com/patientx/ComfyUI-Zluda/issues/463",
        ..BASE
    },
    Entry {
        id: "zluda-cublas",
        confidence: Medium,
        patterns: &[
            r"(?i)requires an architectural feature absent from the device|CUBLAS_STATUS_ARCH_MISMATCH",
            r"CUBLAS_STATUS_(?:NOT_SUPPORTED|NOT_INITIALIZED|ALLOC_FAILED|INTERNAL_ERROR)",
        ],
        also: &[r"(?i)zluda"],
        cause: "A program for CUDA runs through ZLUDA, and its matrix library (cuBLAS) failed: ZLUDA hands it to the rocBLAS of the HIP SDK, which is not found, has no kernels for {gpu}, or lacks this operation.",
        fix: &[
            "the HIP SDK that this ZLUDA asks for (HIP_PATH set, its bin folder on PATH), with rocBLAS files for <gfx>",
            "without ZLUDA: the program's own build for HIP (ROCm) or Vulkan; llama.cpp and torch have both",
        ],
        ask: &["echo %HIP_PATH%", "hipInfo"],
        source: "https://github.com/vosen/ZLUDA/issues/604",
        ..BASE
    },
    Entry {
        id: "zluda-call-unsupported",
        confidence: Medium,
        patterns: &[r"(?i)CUDA error: (?:operation not supported|CUDA_ERROR_NOT_SUPPORTED)"],
        also: &[r"(?i)zluda"],
        covers: &["hip-unknown-error"],
        cause: "A program for CUDA runs through ZLUDA and calls a function of CUDA that ZLUDA or the HIP SDK does not have: this torch, or an option of the program, is newer than ZLUDA knows.",
        fix: &[
            "the versions of torch and of ZLUDA that the program's instructions name, and its own start script, which switches off what ZLUDA lacks (cuDNN, fused attention, the asynchronous allocator)",
            "or leave ZLUDA: AMD's ROCm build of torch on RX 6000 and newer and Ryzen AI",
        ],
        ask: &["pip list | findstr torch", "echo %HIP_PATH%"],
        source: "https://github.com/vosen/ZLUDA",
        ..BASE
    },
    Entry {
        id: "wsl-dkms",
        patterns: &[
            r"(?i)Bad return status for module build on kernel",
            r"dpkg: error processing package amdgpu-dkms",
            r"/var/lib/dkms/amdgpu/\S+/build/make\.log",
        ],
        also: &[r"(?i)amdgpu|rock-dkms|rocm-dkms"],
        scope: Wsl,
        covers: &[
            "amdgpu-dkms-build",
            "amdgpu-dkms-headers",
            "wsl-needs-no-driver",
        ],
        cause: "AMD's DKMS driver (amdgpu-dkms) was installed under WSL, and does not build for the kernel of Microsoft. It has no use there: the GPU is driven by Windows, and ROCm reaches it through /dev/dxg.",
        fix: &[
            "sudo apt purge amdgpu-dkms, then ROCm for WSL: amdgpu-install -y --usecase=wsl,rocm --no-dkms (newer releases: librocdxg)",
            "the Adrenalin driver on Windows that AMD's table names for this ROCm version, and a card that the table lists",
        ],
        source: "https://rocm.docs.amd.com/projects/radeon-ryzen/en/latest/docs/compatibility/compatibilityrad/wsl/wsl_compatibility.html",
        ..BASE
    },
    Entry {
        id: "wsl-package-missing",
        patterns: &[r"(?i)Unable to locate package \S*rocr4wsl\S*"],
        scope: Wsl,
        covers: &["apt-repository-refused"],
        cause: "This ROCm release has no runtime package for WSL in AMD's repository (hsa-runtime-rocr4wsl-amdgpu): not every release is for WSL, and newer ones replaced it with librocdxg.",
        fix: &[
            "WSL: the release that AMD's table for WSL names (6.4.2 had the package): its amdgpu-install, after sudo amdgpu-install --uninstall and sudo apt purge amdgpu-install",
            "WSL: or ROCm 7.2 and newer with librocdxg, and a Windows driver of its age",
        ],
        ask: &["ls /etc/apt/sources.list.d; dpkg -l amdgpu-install"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/5361",
        ..BASE
    },
];
