//! Vulkan, as far as programs meet it that compute.

use super::{BASE, Entry};
use crate::explain::Confidence::Medium;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "vulkan-device-lost",
        confidence: Medium,
        patterns: &[
            r"(?i)\bVkResult\W{0,4}(?:is )?-4\b|\bvk(?:Queue|Wait)\w+ .{0,30}(?:error|failed|returned).{0,15} -4\b",
            r"(?i)radv: GPUVM fault detected",
            r"(?i)ErrorDeviceLost|vk::DeviceLost|VK_ERROR_DEVICE_LOST",
            r"(?i)radv/amdgpu: The CS has been cancelled because the context is lost",
            r"(?i)\bwgpu\b.{0,40}Device (?:is |was )?lost",
        ],
        covers: &["mes-hang"],
        cause: "The Vulkan device was lost: the driver or the kernel reset the GPU, because a submission took longer than a job may (a timeout, mostly on integrated GPUs and with large batches), faulted, or found no memory. Vulkan does not use ROCm; no ROCm package and no override changes it.",
        fix: &[
            "smaller submissions: -ub 256 (or 128) and -b 512 in llama.cpp; a smaller context, fewer layers on the GPU",
            "another build of the program: newer, or the last one that worked",
            "Linux: a newer kernel and Mesa (RADV); amdgpu.lockup_timeout=60000 on the kernel command line for long jobs",
            "Windows: a newer graphics driver (Adrenalin)",
            "Linux: the line about amdgpu in the kernel log tells whether it hung, faulted or had no memory",
        ],
        ask: &[
            "Linux: dmesg | grep -iE 'amdgpu|ring|fault' | tail -n 40",
            "vulkaninfo --summary",
        ],
        source: "https://github.com/ggml-org/llama.cpp/issues/21724",
        ..BASE
    },
    Entry {
        id: "vulkan-buffer-limit",
        patterns: &[
            r"(?i)\bVkResult\W{0,4}(?:is )?-[12]\b|\bvkAllocate\w+ .{0,30}(?:error|failed|returned).{0,15} -[12]\b",
            r"(?i)Requested buffer size exceeds device (?:memory allocation|buffer size) limit",
            r"(?i)(?:exceeds|larger than).{0,30}(?:maxBufferSize|maxMemoryAllocationSize|maxStorageBufferRange)",
            r"(?i)ggml_vulkan: Device memory allocation of size \d+ failed",
            r"(?i)vk::\S+: ErrorOutOf(?:Device|Host)Memory|VK_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY",
        ],
        covers: &["ggml-out-of-memory"],
        cause: "Vulkan refused an allocation: the memory of the GPU is full, or one buffer is larger than the driver allows in one piece (4 GiB or less with many drivers).",
        fix: &[
            "fewer layers on the GPU (-ngl), a smaller context (-c) and batch (-ub), a smaller quantisation",
            "a newer Mesa or Adrenalin driver, which allows larger buffers; RADV instead of AMDVLK",
            "close other programs on the GPU",
        ],
        ask: &["vulkaninfo | grep -iE 'maxMemoryAllocationSize|maxBufferSize|driverName'"],
        source: "https://github.com/ggml-org/llama.cpp/issues/15120",
        ..BASE
    },
    Entry {
        id: "vulkan-no-device",
        confidence: Medium,
        patterns: &[
            r"(?i)\bVkResult\W{0,4}(?:is )?-[39]\b|VK_ERROR_INITIALIZATION_FAILED|ErrorInitializationFailed|vkCreateInstance .{0,30}returned.{0,15} -[39]\b",
            r"(?i)vkEnumerateInstance\w+ failed",
            r"(?i)ggml_vulkan: (?:Warning: Device type is CPU|0 = llvmpipe)",
            r"(?i)ggml_vulkan: No (?:devices|suitable GPU)",
            r"(?i)ErrorIncompatibleDriver|VK_ERROR_INCOMPATIBLE_DRIVER",
            r"(?i)Cannot find a compatible Vulkan (?:driver|installable client driver)",
            r"(?i)vkCreateInstance.{0,40}(?:fail|error)|vk::createInstance: Error",
            r"(?i)vkEnumeratePhysicalDevices.{0,40}(?:fail|error)|Vulkan: no (?:physical )?devices? found",
        ],
        cause: "Vulkan finds no GPU that it can use: no Vulkan driver is installed for it (an ICD), the device may not be opened, or a container was started without it.",
        fix: &[
            "Linux: install the driver: mesa-vulkan-drivers (Debian, Ubuntu), vulkan-radeon (Arch), mesa-vulkan-drivers (Fedora)",
            "Linux: container: --device /dev/dri, and the driver in the image",
            "Windows: a newer Adrenalin driver",
        ],
        ask: &[
            "vulkaninfo --summary",
            "Linux: ls /usr/share/vulkan/icd.d /dev/dri",
        ],
        source: "https://docs.vulkan.org/guide/latest/loader.html",
        ..BASE
    },
    Entry {
        id: "vulkan-sdk-missing",
        patterns: &[
            r"(?i)Could NOT find Vulkan|Could not find .*(?:Vulkan_LIBRARY|VULKAN_SDK)",
            r"(?i)glslc.{0,40}(?:not found|NOTFOUND|No such file)|missing: .*glslc",
        ],
        cause: "The build needs the development files of Vulkan (headers, loader, the shader compiler glslc), which are not installed.",
        fix: &[
            "Linux, WSL: sudo apt install libvulkan-dev glslc (Fedora: vulkan-devel glslc), or the LunarG SDK",
            "Windows: install the LunarG Vulkan SDK and open a new terminal",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/docs/build.md#vulkan",
        ..BASE
    },
];
