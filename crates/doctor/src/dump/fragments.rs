//! Fragments of tool output, pasted without the part that names a GPU.

/// A tool with lines that only it prints. Three of them make a fragment, and every sign counts once.
struct Tool {
    name: &'static str,
    signs: &'static [&'static str],
}

const ENOUGH: usize = 3;

const TOOLS: &[Tool] = &[
    Tool {
        name: "rocminfo",
        signs: &[
            "HSA System Attributes",
            "HSA Agents",
            "Runtime Version:",
            "System Timestamp Freq.:",
            "Max Queue Number:",
            "Float Round Mode:",
            "Cacheline Size:",
            "Max Clock Freq. (MHz):",
            "BDFID:",
            "Internal Node ID:",
            "Compute Unit:",
            "SIMDs per CU:",
            "Shader Engines:",
            "Coherent Host Access:",
            "Wavefront Size:",
            "Workgroup Max Size per Dimension",
            "Max Waves Per CU:",
            "Max Work-item Per CU:",
            "Grid Max Size per Dimension",
            "Pool Info:",
            "Alloc Granule:",
            "Accessible by all:",
            "Fast F16 Operation:",
            "Packet Processor uCode",
            "IOMMU Support",
            "FBarrier Max Size:",
            "Default Rounding Mode:",
            "Machine Models:",
            "HSA_PROFILE_",
            "SDMA engine uCode",
            "Allocatable:",
        ],
    },
    Tool {
        name: "collect_env",
        signs: &[
            "Is debug build",
            "CUDA used to build PyTorch",
            "ROCM used to build PyTorch",
            "Clang version",
            "CMake version",
            "Libc version",
            "Python platform",
            "Is CUDA available",
            "CUDA runtime version",
            "CUDA_MODULE_LOADING set to",
            "Nvidia driver version",
            "cuDNN version",
            "HIP runtime version",
            "MIOpen runtime version",
            "Is XNNPACK available",
            "Versions of relevant libraries",
        ],
    },
    Tool {
        name: "clinfo",
        signs: &[
            "Platform Profile",
            "Platform Extensions",
            "Number of platforms",
            "Device Available",
            "Compiler Available",
            "Max compute units",
            "Max work item dimensions",
            "Max work group size",
            "Preferred work group size",
            "Wavefront width (AMD)",
            "Graphics IP (AMD)",
            "Max clock frequency",
            "Max memory allocation",
            "Image support",
            "Queue properties",
            "Local memory",
            "Global memory size",
            "Device Extensions",
        ],
    },
    Tool {
        name: "amd-smi",
        signs: &[
            "GFX_ACTIVITY:",
            "UMC_ACTIVITY:",
            "MM_ACTIVITY:",
            "VCN_ACTIVITY:",
            "SOCKET_POWER:",
            "GFX_VOLTAGE:",
            "THROTTLE_STATUS:",
            "POWER_MANAGEMENT:",
            "CLK_LOCKED:",
            "SUBVENDOR_ID:",
            "SUBSYSTEM_ID:",
            "MAX_PCIE_WIDTH:",
            "BAD_PAGE_THRESHOLD:",
            "PRODUCT_SERIAL:",
            "REPLAY_COUNT:",
        ],
    },
    Tool {
        name: "vulkaninfo",
        signs: &[
            "VULKANINFO",
            "Vulkan Instance Version:",
            "Instance Extensions: count",
            "VK_KHR_get_physical_device_properties2",
            "maxImageDimension2D",
            "conformanceVersion",
            "VkPhysicalDevice",
            "driverUUID",
        ],
    },
    Tool {
        name: "hipInfo",
        signs: &[
            "multiProcessorCount:",
            "maxThreadsPerMultiProcessor:",
            "isMultiGpuBoard:",
            "memoryBusWidth:",
            "totalConstMem:",
            "sharedMemPerBlock:",
            "canMapHostMemory:",
            "regsPerBlock:",
            "concurrentKernels:",
            "cooperativeLaunch:",
        ],
    },
    Tool {
        name: "Win32_VideoController",
        signs: &[
            "AdapterCompatibility",
            "AdapterDACType",
            "AdapterRAM",
            "VideoProcessor",
            "VideoArchitecture",
            "InstalledDisplayDrivers",
        ],
    },
    Tool {
        name: "lshw",
        signs: &[
            "*-core",
            "*-memory",
            "*-cpu",
            "*-firmware",
            "physical id:",
            "bus info:",
            "capabilities:",
            "configuration:",
        ],
    },
    Tool {
        name: "dxdiag",
        signs: &[
            "DDI Version:",
            "Feature Levels:",
            "Driver Model:",
            "Driver Attributes:",
            "WHQL Logo",
            "Output Type:",
            "Monitor Model:",
            "Device Problem Code:",
        ],
    },
];

/// The tool of which a text has a part.
pub(super) fn tool_of(text: &str) -> Option<&'static str> {
    // The survey of LM Studio has the words of several tools.
    if text.contains("gpuSurveyResult") {
        return None;
    }
    let count = |tool: &Tool| {
        let is_there = |sign: &&&str| text.contains(**sign);
        tool.signs.iter().filter(is_there).count()
    };
    let best = TOOLS.iter().max_by_key(|tool| count(tool))?;
    (count(best) >= ENOUGH).then_some(best.name)
}

/// Whether the list of agents of `rocminfo` breaks off within an agent.
pub(super) fn ends_within_an_agent(text: &str) -> bool {
    let Some(at) = text.rfind("Agent ") else {
        return false;
    };
    let last = &text[at..];
    text.contains("HSA Agents")
        && !text.contains("*** Done ***")
        && !["ISA Info:", "Accessible by all:"]
            .iter()
            .any(|sign| last.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_tells_its_tool() {
        for (text, tool) in [
            (
                "Compute Unit: 104\nSIMDs per CU: 4\nWavefront Size: 64\n",
                Some("rocminfo"),
            ),
            (
                "CMake version: 4.2\nLibc version: 2.39\nIs CUDA available: True\n",
                Some("collect_env"),
            ),
            (
                "Max compute units 30\nWavefront width (AMD) 32\nGraphics IP (AMD) 10.3\n",
                Some("clinfo"),
            ),
            (
                "GFX_ACTIVITY: 0 %\nUMC_ACTIVITY: 1 %\nGFX_VOLTAGE: 780 mV\n",
                Some("amd-smi"),
            ),
            // Two words of a tool are in many a log.
            ("CMake version: 4.2\nLibc version: 2.39\n", None),
            ("", None),
        ] {
            assert_eq!(tool_of(text), tool, "{text}");
        }
    }

    #[test]
    fn a_list_of_agents_ends_within_one_or_after_it() {
        let head = "HSA Agents\n*******\nAgent 1\n*******\n  Name: AMD Ryzen\n  Device Type: CPU\n";
        assert!(ends_within_an_agent(head));
        assert!(!ends_within_an_agent(&format!(
            "{head}  ISA Info:\n$ exit\n"
        )));
        assert!(!ends_within_an_agent(&format!("{head}*** Done ***\n")));
        assert!(!ends_within_an_agent("Agent 1"));
    }
}
