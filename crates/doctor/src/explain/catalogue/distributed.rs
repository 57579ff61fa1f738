//! Several processes that train together, and how one of them ended.

use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "fork-after-gpu",
        patterns: &[
            r"(?i)Cannot re-?initialize (?:CUDA|HIP|the GPU) in (?:a )?forked subprocess",
            r"(?i)To use (?:CUDA|HIP) with multiprocessing, you must use the '?spawn",
        ],
        covers: &["no-hip-device", "launcher-reports"],
        cause: "The program had used the GPU before it started a child process by fork, and a forked child cannot use a runtime that its parent initialised. It is an error of the program or of its settings; GPU and driver are fine.",
        fix: &[
            "start the children with spawn: torch.multiprocessing.set_start_method(\"spawn\") first of all, DataLoader(multiprocessing_context=\"spawn\"), vLLM: VLLM_WORKER_MULTIPROCESSING_METHOD=spawn",
            "or no call of torch.cuda (is_available() counts) before the fork: data loaders that return CPU tensors, num_workers=0",
            "PYTORCH_NVML_BASED_CUDA_CHECK=1, where only is_available() was asked",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/multiprocessing.html",
        ..BASE
    },
    Entry {
        id: "no-nccl",
        patterns: &[
            r"(?i)Distributed package doesn'?t have (?:NCCL|RCCL)\b",
            r"(?i)(?:backend|ProcessGroup) ?'?NCCL'? is not (?:available|built|supported)",
        ],
        covers: &["launcher-reports"],
        cause: "This torch has no NCCL (on AMD: RCCL), through which several GPUs exchange gradients. PyTorch for Windows is never built with it, and neither is the CPU wheel.",
        fix: &[
            "one process on one GPU: without torchrun, accelerate config with one process (num_processes: 1) and no distributed type",
            "Windows: the backend gloo, where the program has a setting for it (PL_TORCH_DISTRIBUTED_BACKEND=gloo for Lightning); several GPUs need Linux or WSL",
            "Linux, WSL: a ROCm wheel of torch: python -c \"import torch; print(torch.version.hip, torch.distributed.is_nccl_available())\"",
        ],
        source: "https://docs.pytorch.org/docs/stable/distributed.html",
        ..BASE
    },
    Entry {
        id: "no-libuv",
        patterns: &[r"(?i)use_libuv was requested but PyTorch was buil[dt] without libuv"],
        covers: &["launcher-reports"],
        cause: "torchrun asks for the libuv server by default (from torch 2.4 on), and this torch is built without libuv, as those for Windows are.",
        fix: &[
            "Linux, WSL: USE_LIBUV=0 in the environment",
            "Windows: $env:USE_LIBUV=\"0\" before the command (cmd: set USE_LIBUV=0)",
            "or without torchrun: one GPU needs no launcher",
        ],
        source: "https://github.com/pytorch/pytorch/issues/139990",
        ..BASE
    },
    Entry {
        id: "distributed-port-taken",
        patterns: &[
            r"(?i)The server socket has failed to (?:listen|bind)",
            r"(?i)(?:DistNetworkError|torch|c10d|TCPStore|socket).{0,120}(?:EADDRINUSE|Address already in use)",
        ],
        covers: &["port-taken", "launcher-reports"],
        cause: "The port over which the processes of a run meet is taken: by another run, or by a process that an earlier one left.",
        fix: &[
            "another port: --master_port 29501 (torchrun), --main_process_port 29501 (accelerate), MASTER_PORT",
            "end what an earlier run left; it holds GPU memory, too",
        ],
        source: "https://docs.pytorch.org/docs/stable/elastic/run.html",
        ..BASE
    },
    Entry {
        id: "distributed-unreachable",
        confidence: Medium,
        patterns: &[
            r"(?i)The client socket has (?:failed|timed out).{0,40}(?:connect|while|after)",
            r"(?i)Timed out initializing process group",
            r"(?i)gloo.{0,160}Unable to find address for",
            r"(?i)Gloo connectFullMesh failed",
            r"(?i)Rendezvous(?:Connection|Timeout)Error|connection to the C10d store has failed",
            r"(?i)NCCL WARN .*(?:no socket interface found|Bootstrap : no)",
        ],
        covers: &["launcher-reports", "rccl-error"],
        cause: "The processes of a run do not reach each other over the network: the address or port of the first one is wrong or closed by a firewall, it has not started or has ended, or another network interface was taken than the one that connects the machines.",
        fix: &[
            "the same MASTER_ADDR and MASTER_PORT everywhere, an address that the other machines reach; the port open in the firewall",
            "name the interface: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME (`ip -br addr` lists them)",
            "`surefoot probe --link HOST` measures the network between two machines",
        ],
        ask: &["Linux: ip -br addr; getent hosts $(hostname)"],
        source: "https://docs.pytorch.org/docs/stable/distributed.html",
        ..BASE
    },
    Entry {
        id: "distributed-peer-lost",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)DistNetworkError: Failed to recv, got 0 bytes",
            r"BrokenPipeError: \[Errno 32\]",
            r"(?i)NCCL communicator was aborted on rank",
            r"(?i)Connection closed by peer \[",
        ],
        cause: "Another process of the run has ended, and this one lost its connection to it. The error of that process is the cause.",
        fix: &[
            "look for the rank that failed first: torchrun names it (`Root Cause (first observed failure)`)",
            "torchrun --redirects 3 --log-dir logs writes the output of each rank into a file of its own",
        ],
        ask: &["the output of the rank that ended first"],
        source: "https://docs.pytorch.org/docs/stable/elastic/run.html",
        ..BASE
    },
    Entry {
        id: "distributed-timeout",
        confidence: Low,
        patterns: &[
            r"(?i)Timed out after \d+ seconds waiting for clients|DistStoreError.*Timed out",
            r"(?i)\[Rank \d+\].{0,60}(?:collective|WorkNCCL).{0,200}ran for \d+ milliseconds before timing out",
        ],
        covers: &["launcher-reports"],
        cause: "One process waited for the others until its patience ended: one of them has crashed, hangs, or does work of its own (caching, saving), or the GPUs cannot reach each other's memory.",
        fix: &[
            "the first process that reports anything else is the cause: look for its error",
            "one GPU first; then NCCL_P2P_DISABLE=1, and NCCL_DEBUG=INFO to see how far it comes",
            "Linux: iommu=pt on the kernel command line, where GPUs exchange data through the IOMMU",
            "a longer timeout, where one process prepares data for long",
        ],
        ask: &[
            "NCCL_DEBUG=INFO <your program> 2>&1 | tail -n 60",
            "Linux: dmesg | grep -iE 'amdgpu|kfd' | tail -n 40",
        ],
        source: "https://rocm.docs.amd.com/projects/rccl/en/latest/how-to/troubleshooting-rccl.html",
        ..BASE
    },
    Entry {
        id: "duplicate-gpu",
        patterns: &[r"(?i)Duplicate GPU detected ?: rank \d+ and rank \d+"],
        covers: &["rccl-error", "launcher-reports"],
        cause: "Two processes of the run use the same GPU: more processes were started than there are GPUs, or the program gives all of them one device (`cuda:0`, a default device, HIP_VISIBLE_DEVICES with a single number).",
        fix: &[
            "as many processes as GPUs at most: torchrun --nproc_per_node, accelerate's num_processes; python -c \"import torch; print(torch.cuda.device_count())\" counts them",
            "in the program: torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])) before the first use, and no fixed device",
            "Ray: a newer version, which passes HIP_VISIBLE_DEVICES on for each worker",
        ],
        source: "https://docs.pytorch.org/docs/stable/elastic/run.html",
        ..BASE
    },
    Entry {
        id: "ray-visible-devices",
        patterns: &[r"(?i)use HIP_VISIBLE_DEVICES instead of ROCR_VISIBLE_DEVICES"],
        cause: "Ray assigns GPUs to its workers through HIP_VISIBLE_DEVICES, and stops where ROCR_VISIBLE_DEVICES is set, in some versions even if both are.",
        fix: &[
            "unset ROCR_VISIBLE_DEVICES (look into ~/.bashrc and the container), and choose the GPUs with HIP_VISIBLE_DEVICES",
            "a newer Ray, which accepts both",
        ],
        ask: &["Linux, WSL: env | grep VISIBLE_DEVICES"],
        source: "https://github.com/ray-project/ray/issues/53737",
        ..BASE
    },
    Entry {
        id: "device-number",
        confidence: Medium,
        patterns: &[
            r"(?i)(?:ROCm|CUDA|HIP) error: (?:\w+: )?invalid device ordinal",
            r"(?i)\berror\b[^'\x22]{0,20}['\x22]invalid device ordinal['\x22]",
            r"(?i)AssertionError: Invalid device id\b",
            r"(?i)\bHIP (?:runtime |API )?error(?: code)?[ :=#(]{1,3}0?101\b",
            r"(?i)torch\.cuda\.set_device\(.*invalid device",
        ],
        covers: &["no-hip-device", "hip-error-other"],
        cause: "The program asks for a GPU by a number that does not exist: there are fewer GPUs than that number or than processes, or HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) hides some; those that are left are counted from 0 again.",
        fix: &[
            "the number of GPUs that torch sees: python -c \"import torch; print(torch.cuda.device_count())\"; as many processes at most",
            "one GPU: it is number 0 in the settings of the program (device 0, cuda:0)",
            "unset HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, or number within what they leave",
        ],
        source: "https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html",
        ..BASE
    },
    Entry {
        id: "ended-by-abort",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)\b(?:crashed|exited|died|failed|terminated|ended|finished) (?:with|by|due to) (?:exit ?code:? |code:? |status |signal:? |<?Signals\.)?(?:-6\b|134\b|SIGABRT)",
            r"(?i)\bexit ?code ?[:=] ?(?:-6|134)\b|\bSignal 6 \(SIGABRT\)",
        ],
        cause: "A process was ended by SIGABRT (exit code -6 or 134): native code met an error and gave up. Who reports it here does not know why; the last lines of that process itself say so.",
        fix: &[
            "look at the output of the process that ended, above this line: what(): …, Assertion …, Memory access fault, HSA_STATUS_ERROR",
            "python -X faulthandler <your program> shows which call it was",
        ],
        ask: &[
            "the last 50 lines of the process that ended, not of its launcher",
            "Linux: dmesg | grep -iE 'amdgpu|kfd' | tail -n 40",
        ],
        source: "https://docs.pytorch.org/docs/stable/elastic/errors.html",
        ..BASE
    },
    Entry {
        id: "iommu-not-passed",
        severity: Warning,
        confidence: Medium,
        patterns: &[r#"(?i)Missing "?iommu=pt"? from kernel command line"#],
        cause: "RCCL warns that the IOMMU is not in pass-through mode: GPUs that reach each other's memory through it can hang, or compute wrongly.",
        fix: &[
            "Linux: iommu=pt on the kernel command line, then restart",
            "until then NCCL_P2P_DISABLE=1 (vLLM also --disable-custom-all-reduce): the GPUs exchange data through the host",
        ],
        ask: &["Linux: cat /proc/cmdline"],
        source: "https://rocm.docs.amd.com/projects/rccl/en/latest/how-to/troubleshooting-rccl.html",
        ..BASE
    },
    Entry {
        id: "launched-without-launcher",
        severity: Warning,
        patterns: &[
            r"environment variable (?:RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT) expected, but not set",
            r"(?i)Default process group has not been initialized",
            r"KeyError: '(?:LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR)'",
        ],
        covers: &["launcher-reports"],
        cause: "The program trains in several processes and expects a launcher (torchrun, accelerate launch, deepspeed) to start it, which sets RANK, WORLD_SIZE and the like; it was started by plain python. It is not an error of the GPU.",
        fix: &[
            "torchrun --nproc_per_node 1 <script> … (or accelerate launch), also for one GPU",
            "or its setting for a single process",
        ],
        source: "https://docs.pytorch.org/docs/stable/elastic/run.html",
        ..BASE
    },
    Entry {
        id: "ended-from-outside",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)SignalException: Process \d+ got signal: (?:15|2)\b",
            r"(?i)Received (?:Signals\.SIGTERM|15|2|Signals\.SIGINT) death signal, shutting down",
        ],
        covers: &["launcher-reports"],
        cause: "The launcher was told to end (SIGTERM, 15, or SIGINT, 2): somebody or something stopped the run: Ctrl+C, a scheduler whose time or memory limit was reached, a container that was stopped, a daemon that frees RAM (systemd-oomd, earlyoom). The program itself reported nothing.",
        fix: &[
            "the scheduler's and the container's own log tell why; Linux: journalctl -b | grep -iE 'oomd|earlyoom' | tail",
            "save checkpoints often enough to resume",
        ],
        ask: &["Linux: journalctl -b --no-pager | grep -iE 'oomd|earlyoom|killed' | tail -n 5"],
        source: "https://docs.pytorch.org/docs/stable/elastic/errors.html",
        ..BASE
    },
];
