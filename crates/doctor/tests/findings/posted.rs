//! What posted texts say about themselves, and about the programs that printed them.

use super::machines::{Case, card};

const OLLAMA: &str = "time=x level=INFO msg=\"inference compute\" id=0 library=";
const COMFY: &str = "Total VRAM 16368 MB, total RAM 32000 MB\npytorch version: 2.7.0+cu118\nDevice: cuda:0 AMD Radeon RX 6800";

fn case(id: &'static str, fires: &str, silent: &str) -> Case {
    (id, fires.to_owned(), silent.to_owned())
}

pub(crate) fn of_texts() -> Vec<Case> {
    let ollama = |rest: &str| format!("{OLLAMA}{rest}\n");
    vec![
        case(
            "text-cut-off",
            "ROCk module version 6.8.5 is loaded\nHSA System Attributes\nHSA Agents\nAgent 1\n  Name: AMD Ryzen\n  Device Type: CPU\n",
            "HSA Agents\nAgent 1\n  Name: AMD Ryzen\n  Device Type: CPU\n*** Done ***\n",
        ),
        // A warning stopped nothing: the report is cut all the same.
        case(
            "text-cut-off",
            "x.py:15: RuntimeWarning: Failed to read commit hash\nCollecting environment information...\nPyTorch version: 2.3.0\nROCM used to build PyTorch: 6.1.40093\n",
            "RuntimeError: Failed to read commit hash\nCollecting environment information...\nPyTorch version: 2.3.0\nROCM used to build PyTorch: 6.1.40093\n",
        ),
        case(
            "several-rocm-versions",
            "AMD arch: gfx1100\n/opt/rocm-6.2.4/lib/libhsa-runtime64.so.1\nii  rocm-core7.0.2 7.0.2.70002-56~24.04 amd64\n",
            "AMD arch: gfx1100\n/opt/rocm-6.2.4/lib/libhsa-runtime64.so.1\n/opt/rocm-6.2.0/llvm\npytorch version: 2.9.1+rocm6.4\n",
        ),
        case(
            "kernel-older-than-gpu",
            "My RX 9070 XT hangs in training.\nUbuntu 22.04, kernel 6.8, ROCm 6.4.1\n",
            "My RX 9070 XT hangs in training.\nUbuntu 24.04, kernel 6.14, ROCm 6.4.1\n",
        ),
        case(
            "rocm-older-than-gpu",
            "My 7900 XTX crashes in training with rocm 5.4.1\n",
            "My 7900 XTX crashes in training with rocm 6.2.1 and tensorflow-rocm v2.11.0\n",
        ),
        // LM Studio's runtimes have numbers of their own.
        case(
            "rocm-older-than-gpu",
            "LM Studio crashes on my RX 9070 XT. ROCm 5.7\n",
            "LM Studio crashes on my RX 9070 XT. Runtime: ROCm 2.13\n",
        ),
        case(
            "rocm-of-years-ago",
            "My RX 6800 gives NaN in training with ROCm5.4.2\n",
            "My RX 6800 gives NaN in training with ROCm 6.2\n",
        ),
        case(
            "npu-is-no-gpu",
            "HSA Agents\nAgent 2\n  Name: aie2\n  Device Type: DSP\n",
            "HSA Agents\nAgent 2\n  Name: gfx1151\n  Device Type: GPU\nAgent 3\n  Name: aie2\n  Device Type: DSP\n",
        ),
        // Under an override every GPU is called so; a name tells more.
        case(
            "override-hides-gpu",
            "HSA_OVERRIDE_GFX_VERSION=10.3.0\nAMD arch: gfx1030\n",
            "HSA_OVERRIDE_GFX_VERSION=10.3.0\nAMD arch: gfx1030\nDevice: cuda:0 AMD Radeon RX 6800 : native\n",
        ),
        case(
            "macos",
            "ggml_vulkan: 0 = AMD Radeon RX 6800 XT (MoltenVK) | uma: 0 | fp16: 1\n",
            "ggml_vulkan: 0 = AMD Radeon RX 6800 XT (RADV NAVI21) | uma: 0 | fp16: 1\n",
        ),
        case(
            "directml",
            "Total VRAM 1024 MB, total RAM 32637 MB\nDevice: privateuseone\n",
            &format!("{COMFY} : native\n"),
        ),
        case(
            "zluda",
            &format!("{COMFY} [ZLUDA] : native\n"),
            &format!("{COMFY} : native\n"),
        ),
        case(
            "program-without-code",
            "time=x level=WARN msg=\"amdgpu is not supported (supported types:[gfx1103])\" gpu_type=gfx1150 gpu=0 library=C:\\x\n",
            &ollama("rocm compute=gfx1150 name=\"AMD Radeon 890M\" total=\"15.9 GiB\""),
        ),
        case(
            "program-found-no-gpu",
            &ollama("cpu compute=\"\" name=cpu total=\"7.7 GiB\""),
            &ollama("rocm compute=gfx1201 name=\"AMD Radeon RX 9070 XT\" total=\"15.9 GiB\""),
        ),
        case(
            "program-on-cpu",
            "INFO     ROCm: version=6.4, using agent gfx1030\nINFO     Engine: compute=cpu mode=no_grad device=cpu\n",
            "INFO     ROCm: version=6.4, using agent gfx1030\nINFO     Engine: compute=rocm mode=no_grad device=cuda\n",
        ),
        // The wrong build has a finding of its own.
        case(
            "program-on-cpu",
            "[InvokeAI]::INFO --> Using torch device: CPU\nGPU: RX 6800\n",
            "[InvokeAI]::INFO --> Using torch device: CPU\nGPU: RX 6800\ntorch.__version__: 2.6.0+cu124\n",
        ),
        case(
            "code-list-without-gpu",
            "$ rocm-sdk targets\ngfx1100;gfx1101;gfx1102\nGPU: AMD Radeon 780M\n",
            "$ rocm-sdk targets\ngfx1100;gfx1101;gfx1103\nGPU: AMD Radeon 780M\n",
        ),
        // An override names code that is there.
        case(
            "code-list-without-gpu",
            ">>> torch.cuda.get_arch_list()\n['gfx900', 'gfx1030']\nGPU: AMD Radeon RX 6700 XT\n",
            "export HSA_OVERRIDE_GFX_VERSION=10.3.0\n>>> torch.cuda.get_arch_list()\n['gfx900', 'gfx1030']\nGPU: AMD Radeon RX 6700 XT\n",
        ),
        // A form names the GPU that rocminfo does not list.
        case(
            "no-gpu",
            "WSL environment detected.\nHSA System Attributes\nHSA Agents\nAgent 1\n  Name: Intel(R) Core(TM) i9\n  Device Type: CPU\n*** Done ***\n### GPU\n\nRX 9070 XT\n",
            "WSL environment detected.\nHSA System Attributes\nHSA Agents\nAgent 1\n  Name: Intel(R) Core(TM) i9\n  Device Type: CPU\nAgent 2\n  Name: gfx1201\n  Device Type: GPU\n*** Done ***\n### GPU\n\nRX 9070 XT\n",
        ),
        case(
            "pool-below-carveout",
            "GPU: Radeon 8060S\n$ cat /sys/class/drm/card1/device/mem_info_vram_total\n103079215104\n$ rocminfo | grep -A3 Pool | grep Size\nSize:  16651264(0x3e2000) KB\n",
            "GPU: Radeon 8060S\n$ cat /sys/class/drm/card1/device/mem_info_vram_total\n103079215104\n$ rocminfo | grep -A3 Pool | grep Size\nSize:  100663296(0x6000000) KB\n",
        ),
        case(
            "npu-is-no-gpu",
            "$ xrt-smi examine\nDevice(s) Present\n|[0000:67:00.1]  |RyzenAI-npu4  |\n",
            "$ xrt-smi examine\n|[0000:67:00.1]  |RyzenAI-npu4  |\nGPU: Radeon 890M\n",
        ),
        // A suggestion is no use.
        case(
            "zluda",
            "INFO     Args: ['--use-zluda']\nDevice: cuda:0 AMD Radeon RX 6800\n",
            "INFO     For ZLUDA support specify '--use-zluda'\nDevice: cuda:0 AMD Radeon RX 6800\n",
        ),
        case(
            "torch-sees-no-gpu",
            "Torch 2.3.0+rocm6.0\nWARNING  Torch reports GPU not available\n",
            "Torch 2.3.0+rocm6.0\nINFO  Torch detected GPU: AMD Radeon RX 6800 VRAM 16368\n",
        ),
        case(
            "torch-sees-no-gpu",
            ">>> torch.cuda.is_available()\nFalse\nGPU: AMD Radeon RX 7900 XTX\n",
            ">>> torch.cuda.is_available()\nTrue\nGPU: AMD Radeon RX 7900 XTX\n",
        ),
        // A cure that was found, and a torch whose build alone is the reason.
        case(
            "torch-sees-no-gpu",
            "GPU: AMD Radeon RX 7900 XTX\n2.9.1+rocm6.4 False\n",
            "GPU: AMD Radeon RX 7900 XTX\nCUDA available: False\nafter usermod: CUDA available: True\n",
        ),
        case(
            "device-permission",
            "GPU: RX 7900 XTX\nuid=1000(user) gid=1000(user) groups=1000(user),44(video)\ncrw-rw---- 1 root render 511, 0 Sep 1 10:00 /dev/kfd\n",
            "GPU: RX 7900 XTX\nuid=1000(user) gid=1000(user) groups=1000(user),992(render)\ncrw-rw---- 1 root render 511, 0 Sep 1 10:00 /dev/kfd\n",
        ),
        case(
            "virtual-machine-without-gpu",
            "00:01.0 VGA compatible controller [0300]: Device [1234:1111] (rev 02)\n",
            "00:01.0 VGA compatible controller [0300]: Device [1234:1111] (rev 02)\n03:00.0 VGA compatible controller [0300]: Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 [1002:744c]\n",
        ),
        case(
            "virtual-machine-without-gpu",
            "  *-display\n       product: SVGA II Adapter\n       vendor: VMware\n",
            "  *-display\n       product: Navi 22 [Radeon RX 6700 XT]\n       vendor: AMD\n",
        ),
        case(
            "other-vendor",
            "Device: cuda:0 NVIDIA GeForce RTX 4090 : native\n",
            "Device: cuda:0 NVIDIA GeForce RTX 4090 : native\nDevice: cuda:1 AMD Radeon RX 6800 : native\n",
        ),
        case(
            "gpu-not-identified",
            "GPU: AMD Radeon(TM) Graphics\n",
            "GPU: AMD Radeon 780M Graphics\n",
        ),
        case(
            "gpu-too-old",
            "01:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Ellesmere [Radeon RX 580] [1002:67df]\n",
            "01:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Vega 20 [Radeon VII] [1002:66af]\n",
        ),
        case("gpu-too-old", &card(80_003), &card(90_000)),
        case(
            "geforce-beside-radeon",
            "a dual-gpu system with RX 9070 and GTX 1060\n",
            "a system with RX 9070\n",
        ),
        case(
            "architecture-without-wheel",
            "Agent 2\n  Name: gfx902\n  Device Type: GPU\n",
            "Agent 2\n  Name: gfx1031\n  Device Type: GPU\n",
        ),
        case(
            "architecture-without-wheel",
            "Agent 2\n  Name: gfx1013\n  Device Type: GPU\n",
            "Agent 2\n  Name: gfx1036\n  Device Type: GPU\n",
        ),
        case(
            "memory-implausible",
            "device#    0\nName:   AMD Radeon RX 9070 XT\ngcnArchName: gfx1201\ntotalGlobalMem: 0.16 GB\n",
            "device#    0\nName:   AMD Radeon RX 9070 XT\ngcnArchName: gfx1201\ntotalGlobalMem: 15.92 GB\n",
        ),
        case(
            "override-suspected",
            "CPU: AMD Ryzen 7 7840HS w/ Radeon 780M Graphics\nGPU: AMD Radeon Graphics (gfx1102)\n",
            "CPU: AMD Ryzen 7 7840HS w/ Radeon 780M Graphics\nGPU: AMD Radeon RX 7600S (gfx1102)\n",
        ),
        case(
            "wsl-gpu-not-listed",
            "WSL environment detected.\nGPU: AMD Radeon RX 6800 XT\n",
            "WSL environment detected.\nGPU: AMD Radeon RX 7800 XT\n",
        ),
        case(
            "carveout-starves-host",
            "GPU: Radeon 8060S\n[drm] amdgpu: 98304M of VRAM memory ready\n",
            "GPU: Radeon 8060S\n[drm] amdgpu: 512M of VRAM memory ready\n",
        ),
        case(
            "visibility-leaves-nothing",
            "$ export ROCR_VISIBLE_DEVICES=1\n$ export HIP_VISIBLE_DEVICES=1\n",
            "$ export ROCR_VISIBLE_DEVICES=1\n$ export HIP_VISIBLE_DEVICES=0\n",
        ),
    ]
}
