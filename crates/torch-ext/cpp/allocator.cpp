// Installs an external allocator (with the C ABI of hip_alloc.h) in libtorch.
//
// For the CPU: a c10::Allocator that calls the C functions with the host's
// device index. A tensor's memory has its own deleter, so memory of an earlier
// allocator is still freed by that one.
//
// For an accelerator: libtorch's own CUDAPluggableAllocator, which is in
// libtorch_cuda or libtorch_hip. This file must not include headers of either, so
// it forward-declares the stream types, and looks up the functions by their
// mangled names in the loaded libraries.

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>

#include <dlfcn.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "boundary.h"

struct CUstream_st;  // cudaStream_t = CUstream_st*
struct ihipStream_t; // hipStream_t = ihipStream_t*

extern "C" {
// Mirrored by `raw::AllocatorFunctions`.
struct surefoot_allocator_functions {
  void* (*malloc)(size_t size, int device, void* stream);
  void (*free)(void* pointer, size_t size, int device, void* stream);
  void (*record_stream)(void* pointer, void* stream);
};
}

namespace {

constexpr int kHost = -1;            // HIP_ALLOC_HOST
constexpr uintptr_t kAlignment = 64; // c10::gAlignment: vector kernels rely on it

// The library that serves the CPU. Set once, before the allocator is installed,
// and never reset, since deleters of live tensors use it.
surefoot_allocator_functions host_functions{};

void* host_allocate(const surefoot_allocator_functions& functions, size_t size) {
  void* pointer = functions.malloc(size, kHost, nullptr);
  if (pointer == nullptr) {
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "out of memory: the allocator library refused ", size, " bytes of host memory");
  }
  return pointer;
}

void host_release(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(pointer);
  // A deleter does not get the size; the library finds its blocks by address.
  host_functions.free(pointer, 0, kHost, nullptr);
}

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const c10::Device cpu(c10::kCPU);
    if (size == 0) {
      return {nullptr, nullptr, &host_release, cpu};
    }
    void* pointer = host_allocate(host_functions, size);
    c10::profiledCPUMemoryReporter().New(pointer, size);
    return {pointer, pointer, &host_release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &host_release;
  }

  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }
};

// A library that returns misaligned or unusable memory must be detected here,
// not later in a vectorised kernel.
void try_out(const surefoot_allocator_functions& functions) {
  for (const size_t size : {size_t{1}, size_t{4097}, size_t{1} << 20}) {
    void* pointer = host_allocate(functions, size);
    const bool aligned = reinterpret_cast<uintptr_t>(pointer) % kAlignment == 0;
    std::memset(pointer, 0xA5, size);
    functions.free(pointer, size, kHost, nullptr);
    if (!aligned) {
      throw surefoot::Refusal{
          surefoot::kInvalidArgument,
          "the allocator library returned memory that is not aligned to " + std::to_string(kAlignment) +
              " bytes (a request of " + std::to_string(size) + ")"};
    }
  }
}

// An opaque instance of c10::cuda::CUDACachingAllocator::CUDAAllocator.
struct OpaqueAllocator;

// The same three functions with either stream type. In a ROCm
// build only the stream type changes: the namespaces stay `cuda` (since 2.11).
template <typename Stream>
struct Pluggable {
  using Allocate = std::function<void*(size_t, int, Stream*)>;
  using Free = std::function<void(void*, size_t, int, Stream*)>;
  using RecordStream = std::function<void(void*, Stream*)>;
  using Create = std::shared_ptr<OpaqueAllocator> (*)(Allocate, Free);
  using Change = void (*)(const std::shared_ptr<OpaqueAllocator>&);
  using SetRecordStream = void (*)(OpaqueAllocator*, RecordStream);

  Create create;
  Change change;
  SetRecordStream set_record_stream;

  explicit operator bool() const {
    return create != nullptr && change != nullptr && set_record_stream != nullptr;
  }

  static Pluggable find(const std::string& stream) {
    const std::string scope = "_ZN5torch4cuda22CUDAPluggableAllocator";
    const auto symbol = [](const std::string& name) { return dlsym(RTLD_DEFAULT, name.c_str()); };
    return {
        reinterpret_cast<Create>(
            symbol(scope + "21createCustomAllocatorESt8functionIFPvmiP" + stream + "EES2_IFvS3_miS5_EE")),
        reinterpret_cast<Change>(symbol(
            scope + "22changeCurrentAllocatorERKSt10shared_ptrIN3c104cuda20CUDACachingAllocator13CUDAAllocatorEE")),
        reinterpret_cast<SetRecordStream>(symbol(
            scope + "22CUDAPluggableAllocator20set_record_stream_fnESt8functionIFvPvP" + stream + "EE")),
    };
  }

  void install(const surefoot_allocator_functions& functions) const {
    const std::shared_ptr<OpaqueAllocator> allocator = create(
        [functions](size_t size, int device, Stream* stream) {
          void* pointer = functions.malloc(size, device, stream);
          // PyTorch would use null as the address of a tensor.
          if (pointer == nullptr && size != 0) {
            TORCH_CHECK_WITH(
                OutOfMemoryError,
                false,
                "out of memory: the allocator library refused ",
                size,
                " bytes on device ",
                device);
          }
          return pointer;
        },
        [functions](void* pointer, size_t size, int device, Stream* stream) {
          functions.free(pointer, size, device, stream);
        });
    // `set_record_stream_fn` belongs to CUDAPluggableAllocator, but this is a pointer to
    // its base class. With single inheritance both have one address; the vtable's
    // offset-to-top (Itanium C++ ABI 2.5.2) says whether that is still so.
    const auto vtable = *reinterpret_cast<const ptrdiff_t* const*>(allocator.get());
    if (vtable[-2] != 0) {
      throw surefoot::Refusal{
          surefoot::kTorch, "this libtorch lays out CUDAPluggableAllocator in a way that is not supported"};
    }
    set_record_stream(allocator.get(), [functions](void* pointer, Stream* stream) {
      functions.record_stream(pointer, stream);
    });
    change(allocator);
  }
};

} // namespace

extern "C" {

// Makes `functions` serve libtorch's CPU tensors from now on. Can be called only once.
int32_t surefoot_install_cpu_allocator(const surefoot_allocator_functions* functions) {
  return surefoot::guarded([&] {
    static std::atomic<bool> installed{false};
    try_out(*functions);
    if (installed.exchange(true)) {
      throw surefoot::Refusal{surefoot::kInvalidArgument, "an allocator library already serves the CPU"};
    }
    host_functions = *functions;
    // Never destroyed: c10 keeps the pointer for the lifetime of the process, and destructors that run at exit
    // still create tensors.
    static auto* const allocator = new HostAllocator;
    c10::SetCPUAllocator(allocator);
    if (c10::GetCPUAllocator() != allocator) {
      throw surefoot::Refusal{
          surefoot::kTorch, "libtorch kept its CPU allocator: one of a higher priority is installed"};
    }
  });
}

// Makes `functions` serve the accelerator. Must be called before the device is initialised.
int32_t surefoot_install_accelerator_allocator(const surefoot_allocator_functions* functions) {
  return surefoot::guarded([&] {
    if (const auto cuda = Pluggable<CUstream_st>::find("11CUstream_st")) {
      cuda.install(*functions);
    } else if (const auto hip = Pluggable<ihipStream_t>::find("12ihipStream_t")) {
      hip.install(*functions);
    } else {
      throw surefoot::Refusal{
          surefoot::kNoAccelerator,
          "torch::cuda::CUDAPluggableAllocator is in no library of this process: "
          "this libtorch was built without CUDA and without ROCm"};
    }
  });
}
}
