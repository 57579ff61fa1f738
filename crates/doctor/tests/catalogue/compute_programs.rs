//! Messages of other programs that compute on GPUs.

/// An entry of the catalogue, and what the log says.
pub(super) const MESSAGES: &[(&str, &str)] = &[
    (
        "opencl-no-device",
        "     0.0234 [opencl_init] no devices found for unknown platform",
    ),
    (
        "opencl-no-device",
        "pyopencl._cl.LogicError: clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR",
    ),
    (
        "opencl-build-failed",
        "clBuildProgram(): CL_BUILD_PROGRAM_FAILURE",
    ),
    (
        "jax-no-gpu",
        "WARNING: No GPU/TPU found, falling back to CPU. (Set TF_CPP_MIN_LOG_LEVEL=0 and rerun for more info.)",
    ),
    (
        "cuda-python-package",
        "numba.cuda.cudadrv.error.CudaSupportError: Error at driver init:",
    ),
    (
        "cuda-python-package",
        "Could not load library libcudnn_ops_infer.so.8. Error: x",
    ),
    (
        "operators-without-gpu",
        "RuntimeError: nms_impl: implementation for device cuda:0 not found.",
    ),
    ("gpu-refused", "ERROR: this GPU is not supported"),
    (
        "scheduler-refused",
        "srun: error: Unable to create step for job 12: Invalid generic resource (gres) specification",
    ),
    (
        "pip-permission",
        "ERROR: Could not install packages due to an OSError: [WinError 5] Access is denied: 'x'",
    ),
    (
        "not-a-git-repository",
        "fatal: not a git repository (or any of the parent directories): .git",
    ),
    (
        "driver-fence-order",
        "[drm:amdgpu_fence_process [amdgpu]] *ERROR* fences signalled out of order",
    ),
];
