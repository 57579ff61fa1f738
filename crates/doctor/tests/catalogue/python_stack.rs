//! Messages of the Python packages under a training, of its data and of its files.

/// The entry, and what the log says.
pub(crate) const MESSAGES: &[(&str, &str)] = &[
    (
        "hub-rate-limit",
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/black-forest-labs/FLUX.1-dev/revision/main",
    ),
    (
        "hub-download-broken",
        "RuntimeError: Data processing error: CAS service error : ReqwestMiddleware Error: Request failed after 5 retries",
    ),
    (
        "hub-download-broken",
        "requests.exceptions.ReadTimeout: (ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\"), '(Request ID: 0f3b)')",
    ),
    (
        "hf-transfer-missing",
        "ValueError: Fast download using 'hf_transfer' is enabled (HF_HUB_ENABLE_HF_TRANSFER=1) but 'hf_transfer' package is not available in your environment.",
    ),
    (
        "symlinks-refused",
        "OSError: [WinError 1314] A required privilege is not held by the client: '..\\\\..\\\\blobs\\\\abc' -> 'C:\\\\Users\\\\user\\\\.cache\\\\huggingface\\\\hub\\\\models--x\\\\snapshots\\\\abc\\\\config.json'",
    ),
    (
        "hub-name-invalid",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': 'C:/models/flux1-dev.safetensors'. Use `repo_type` argument if needed.",
    ),
    (
        "model-checkpoint-none",
        "OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5, model.ckpt.index or flax_model.msgpack found in directory ./model.",
    ),
    (
        "tokenizer-missing",
        "OSError: Can't load tokenizer for 'openai/clip-vit-large-patch14'. If you were trying to load it from 'https://huggingface.co/models', make sure you don't have a local directory with the same name.",
    ),
    (
        "remote-code-asked",
        "ValueError: Loading microsoft/Phi-3 requires you to execute the configuration file in that repo on your local machine. Make sure you have read the code there to avoid malicious use, then set the option `trust_remote_code=True` to remove this error.",
    ),
    (
        "dataset-script",
        "RuntimeError: Dataset scripts are no longer supported, but found wikitext.py",
    ),
    (
        "dataset-missing",
        "datasets.exceptions.DatasetNotFoundError: Dataset 'foo/bar' doesn't exist on the Hub or cannot be accessed.",
    ),
    (
        "checkpoint-not-written",
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 1343569600 vs 1343569488",
    ),
    (
        "file-still-mapped",
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 1224, kind: Uncategorized, message: \"The requested operation cannot be performed on a file with a user-mapped section open.\" })",
    ),
    ("pickle-cut-short", "EOFError: Ran out of input"),
    (
        "tensors-share-memory",
        "RuntimeError: Some tensors share memory, this will lead to duplicate memory on disk and potential differences when loading them again: [{'lm_head.weight', 'model.embed_tokens.weight'}].",
    ),
    (
        "training-state-missing",
        "ValueError: No valid checkpoint found in output directory (./outputs)",
    ),
    (
        "cache-permission",
        "PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface/hub'",
    ),
    (
        "extension-cache-empty",
        "ImportError: /home/user/.cache/torch_extensions/py310_cu118/fused_adam/fused_adam.so: cannot open shared object file: No such file or directory",
    ),
    (
        "upload-or-web-refused",
        "urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
    ),
    (
        "dataloader-shared-mapping",
        "RuntimeError: Couldn't open shared file mapping: <torch_13392_2310>, error code: <1455>",
    ),
    (
        "main-guard-missing",
        "RuntimeError: \n        An attempt has been made to start a new process before the\n        current process has finished its bootstrapping phase.",
    ),
    (
        "worker-not-picklable",
        "AttributeError: Can't pickle local object 'ConcatDataset.__init__.<locals>.<lambda>'",
    ),
    (
        "dataloader-timeout",
        "RuntimeError: DataLoader timed out after 120 seconds",
    ),
    (
        "dataloader-worker-died",
        "RuntimeError: DataLoader worker (pid 12345) is killed by signal: Killed. ",
    ),
    (
        "shared-memory-too-small",
        "RuntimeError: unable to write to file </torch_4321_1234_0>: No space left on device (28)",
    ),
    (
        "too-many-open-files",
        "RuntimeError: received 0 items of ancdata",
    ),
    (
        "no-training-data",
        "ValueError: num_samples should be a positive integer value, but got num_samples=0",
    ),
    (
        "no-training-data",
        "ValueError: No training items found in the dataset. Please ensure that the latent/Text Encoder cache has been created beforehand.",
    ),
    (
        "samples-differ",
        "RuntimeError: stack expects each tensor to be equal size, but got [3, 512, 512] at entry 0 and [3, 640, 448] at entry 1",
    ),
    (
        "image-unreadable",
        "PIL.UnidentifiedImageError: cannot identify image file '/data/img1.webp'",
    ),
    (
        "map-worker-died",
        "RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.",
    ),
    (
        "dataset-format",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
    ),
    (
        "dataloader-worker-reports",
        "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):",
    ),
    (
        "settings-unreadable",
        "toml.decoder.TomlDecodeError: Reserved escape sequence used (line 5 column 1 level 1)",
    ),
    (
        "arguments-unknown",
        "sdxl_train_network.py: error: unrecognized arguments: --fp8_scaled",
    ),
    (
        "text-encoding",
        "UnicodeEncodeError: 'charmap' codec can't encode characters in position 0-3: character maps to <undefined>",
    ),
    (
        "quantization-needs-accelerate",
        "ImportError: Using `load_in_8bit=True` requires Accelerate: `pip install accelerate` and the latest version of bitsandbytes `pip install -i https://test.pypi.org/simple/ bitsandbytes`",
    ),
    (
        "quantization-needs-accelerate",
        "ImportError: Using `bitsandbytes` 4-bit quantization requires Accelerate: `pip install 'accelerate>=0.26.0'`",
    ),
    (
        "sentencepiece-missing",
        "ValueError: Couldn't instantiate the backend tokenizer from one of: ",
    ),
    (
        "protobuf-versions",
        "TypeError: Descriptors cannot be created directly.",
    ),
    (
        "numpy-names-removed",
        "AttributeError: module 'numpy' has no attribute 'bool'.",
    ),
    (
        "numpy-names-removed",
        "AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead.",
    ),
    (
        "setuptools-missing",
        "ModuleNotFoundError: No module named 'pkg_resources'",
    ),
    (
        "python-too-old",
        "TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'",
    ),
    (
        "typing-extensions-old",
        "ImportError: cannot import name 'TypeIs' from 'typing_extensions' (/venv/lib/python3.10/site-packages/typing_extensions.py)",
    ),
    (
        "two-openmp",
        "OMP: Error #15: Initializing libiomp5md.dll, but found libiomp5md.dll already initialized.",
    ),
    (
        "mkl-mismatch",
        "ImportError: /venv/lib/python3.10/site-packages/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent",
    ),
    (
        "tkinter-missing",
        "ModuleNotFoundError: No module named 'tkinter'",
    ),
    (
        "desktop-library-missing",
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
    ),
    (
        "gradio-start",
        "ValueError: When localhost is not accessible, a shareable link must be created. Please set share=True or check your proxy settings to allow access to localhost.",
    ),
    (
        "wandb-login",
        "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
    ),
    (
        "port-taken",
        "Error: listen EADDRINUSE: address already in use :::8675",
    ),
    (
        "optional-package-missing",
        "ImportError: No prodigyopt / prodigyopt がインストールされていないようです",
    ),
    (
        "argument-not-known",
        "TypeError: T5EncoderModel.__init__() got an unexpected keyword argument 'offload_state_dict'",
    ),
    (
        "name-not-in-package",
        "AttributeError: module 'PIL.Image' has no attribute 'ANTIALIAS'",
    ),
    (
        "windows-file-locked",
        "C:\\ai> python train.py\nPermissionError: [WinError 32] The process cannot access the file because it is being used by another process: 'outputs\\\\tmp-checkpoint-500'",
    ),
    (
        "python-version-refused",
        "Error: Python version 3.13 is not supported. Required 3.10 to 3.12",
    ),
    (
        "program-refuses-gpu",
        "RuntimeError: Unsupported AMD GPU: gfx1032",
    ),
    (
        "unsloth-outdated",
        "ImportError: Unsloth: Please update Unsloth and Unsloth-Zoo to the latest version!",
    ),
    (
        "unsloth-no-gpu",
        "NotImplementedError: Unsloth currently only works on NVIDIA, AMD and Intel GPUs.",
    ),
    (
        "unsloth-llama-cpp",
        "RuntimeError: *** Unsloth: Failed compiling llama.cpp using os.system(...) with error 256. Please report this ASAP!",
    ),
    (
        "adapter-made-by-newer-peft",
        "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'corda_config'",
    ),
    (
        "model-offloaded",
        "RuntimeError: You can't move a model that has some modules offloaded to cpu or disk.",
    ),
    (
        "deepspeed-settings",
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 32 != 1 * 1 * 4",
    ),
    (
        "deepspeed-op-incompatible",
        "RuntimeError: Unable to JIT load the async_io op due to it not being compatible due to hardware/software issue. ",
    ),
    (
        "compile-unsupported",
        "RuntimeError: Dynamo is not supported on Python 3.12+",
    ),
    (
        "compiled-graph-overwritten",
        "RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run.",
    ),
    ("vocabulary-index", "IndexError: index out of range in self"),
    (
        "fp8-without-hardware",
        "RuntimeError: torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+",
    ),
    (
        "sampling-nan",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    ),
    (
        "factorization-failed",
        "torch._C._LinAlgError: linalg.svd: The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated singular values (error code: 1).",
    ),
    (
        "solver-library-failed",
        "RuntimeError: cusolver error: HIPSOLVER_STATUS_NOT_INITIALIZED, when calling `hipsolverDnCreate(handle)`",
    ),
    (
        "torch-without-lapack",
        "RuntimeError: Calling torch.linalg.cholesky on a CPU tensor requires compiling PyTorch with LAPACK. Please use PyTorch built with LAPACK support.",
    ),
    (
        "launched-without-launcher",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
    ),
    (
        "torchao-extensions-skipped",
        "Skipping import of cpp extensions due to incompatible torch version 2.9.1+rocm6.4 for torchao version 0.15.0",
    ),
    (
        "compile-remarks-harmless",
        "W1010 [0/0] Not enough SMs to use max_autotune_gemm mode",
    ),
    (
        "training-remarks-harmless",
        "[WARNING]  async_io requires the dev libaio .so object and headers but these were not found.",
    ),
    (
        "mxfp4-unpacked",
        "MXFP4 quantization requires triton >= 3.4.0 and kernels installed, we will default to dequantizing the model to bf16",
    ),
    (
        "hub-cache-without-links",
        "UserWarning: `huggingface_hub` cache-system uses symlinks by default to efficiently store duplicated files but your machine does not support them in C:\\Users\\user\\.cache\\huggingface\\hub.",
    ),
    (
        "triton-too-many-threads",
        "triton.runtime.errors.OutOfResources: out of resource: threads, Required: 2048, Hardware limit: 1024. Reducing block sizes or `num_stages` may help.",
    ),
    (
        "torchao-versions",
        "Failed to quantize attn1: Float8Tensor dispatch: attempting to run unimplemented operator/function: func=<OpOverload(op='aten.abs', overload='default')>",
    ),
    (
        "bitsandbytes-optimizer-arguments",
        "TypeError: AdamW8bit.__init__() got an unexpected keyword argument 'percentile_clipping'",
    ),
    (
        "command-not-found",
        "'llamafactory-cli' 不是内部或外部命令，也不是可运行的程序\n或批处理文件。",
    ),
    (
        "name-not-in-object",
        "  File \"/venv/lib/python3.12/site-packages/transformers/modeling_utils.py\", line 2145, in from_pretrained\nAttributeError: 'LlamaConfig' object has no attribute 'layer_types'",
    ),
    (
        "setuptools-missing",
        "Error running job: cannot import name 'packaging' from 'pkg_resources' (E:\\Ai\\ai-toolkit\\venv\\Lib\\site-packages\\pkg_resources\\__init__.py)",
    ),
    (
        "device-called-hip",
        "NotImplementedError: Could not run 'aten::empty.memory_format' with arguments from the 'HIP' backend. This could be because the operator doesn't exist for this backend",
    ),
    (
        "accelerate-settings",
        "ValueError: Less than two GPU ids were configured and tried to run on on multiple GPUs. Please ensure at least two are specified for `--gpu_ids`, or use `--gpu_ids='all'`.",
    ),
    (
        "file-system-without-mapping",
        "OSError: No such device (os error 19)",
    ),
    (
        "feature-for-nvidia",
        "ValueError: --tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7",
    ),
    (
        "feature-for-nvidia",
        "ValueError: quantize_moe_experts requires CUDA (not compatible with ROCm or other backends)",
    ),
    (
        "torch-cpu-only",
        "RuntimeError: No GPU or Intel XPU found. A GPU or Intel XPU is needed for quantization.",
    ),
    (
        "package-versions-differ",
        "ImportError: Found an incompatible version of torchao. Found version 0.10.0, but only versions above 0.16.0 are supported",
    ),
    (
        "tensors-on-two-devices",
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
    ),
    (
        "ended-from-outside",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3421 got signal: 15",
    ),
    (
        "allocator-settings",
        "RuntimeError: Unrecognized CachingAllocator option: expandable_segment",
    ),
    (
        "weights-only-refused",
        "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default value of the `weights_only` argument",
    ),
    (
        "disk-or-share-failed",
        "OSError: [Errno 5] Input/output error",
    ),
    (
        "file-not-found",
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.jsonl'",
    ),
    (
        "cmake-too-new",
        "  Compatibility with CMake < 3.5 has been removed from CMake.",
    ),
    (
        "dataset-column-too-large",
        "pyarrow.lib.ArrowInvalid: offset overflow while concatenating arrays",
    ),
    (
        "dataset-columns-of-different-length",
        "pyarrow.lib.ArrowInvalid: Column 1 named input_ids expected length 1000 but got length 999",
    ),
    (
        "dataset-format",
        "pyarrow.lib.ArrowInvalid: JSON parse error: Column(/result/[]) changed from number to string in row 13",
    ),
    (
        "rocm-torch-replaced",
        "WARNING  Package wrong version: torch 2.5.1+rocm6.2 required 2.5.1+cu124",
    ),
    (
        "rocm-torch-uninstalled",
        "    Uninstalling torch-2.5.1+rocm6.2:\n      Successfully uninstalled torch-2.5.1+rocm6.2\nSuccessfully installed nvidia-cublas-cu12-12.4.5.8 torch-2.6.0 triton-3.2.0",
    ),
    (
        "trainer-arguments-renamed",
        "AttributeError: 'GRPOConfig' object has no attribute 'num_iterations'. Did you mean: 'num_generations'?",
    ),
    (
        "compile-cache-broken",
        "torch._dynamo.exc.BackendCompilerFailed: debug_wrapper raised OSError: /tmp/torchinductor_user/tr/ctr.so: file too short",
    ),
    (
        "mapping-refused",
        "ImportError: /tmp/torchinductor_user/k6/ck6fiae7.so: failed to map segment from shared object: Operation not permitted",
    ),
    (
        "model-lacks-feature",
        "ValueError: FalconForCausalLM does not support an attention implementation through torch.nn.functional.scaled_dot_product_attention yet.",
    ),
    (
        "model-of-another-kind",
        "ValueError: Unrecognized configuration class <class 'transformers.models.llama.configuration_llama.LlamaConfig'> for this kind of AutoModel: AutoModelForSeq2SeqLM.",
    ),
    (
        "hub-kernel-without-build",
        "FileNotFoundError: Kernel `kernels-community/flash-attn3` at revision main does not have build variant `torch29-cxx11-rocm64-x86_64-linux`",
    ),
];
