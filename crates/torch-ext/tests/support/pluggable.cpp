// A stand-in for libtorch_cuda or libtorch_hip (-DSTREAM=ihipStream_t): the three
// functions that the shim looks up by mangled name, spelled by a compiler from the
// declarations of torch/csrc/cuda/CUDAPluggableAllocator.h, and C functions that
// make it allocate as a tensor would.
#include <functional>
#include <memory>
#include <stdexcept>

#ifndef STREAM
#define STREAM CUstream_st
#endif
struct STREAM;

namespace c10::cuda::CUDACachingAllocator {
struct CUDAAllocator {
  virtual ~CUDAAllocator() = default;
};
} // namespace c10::cuda::CUDACachingAllocator

namespace torch::cuda::CUDAPluggableAllocator {
using Base = c10::cuda::CUDACachingAllocator::CUDAAllocator;

struct CUDAPluggableAllocator : Base {
  std::function<void*(size_t, int, STREAM*)> allocate;
  std::function<void(void*, size_t, int, STREAM*)> release;
  std::function<void(void*, STREAM*)> record_stream;
  void set_record_stream_fn(std::function<void(void*, STREAM*)> function);
};

__attribute__((visibility("default"))) void CUDAPluggableAllocator::set_record_stream_fn(
    std::function<void(void*, STREAM*)> function) {
  record_stream = std::move(function);
}

static std::shared_ptr<Base> current;

std::shared_ptr<Base> createCustomAllocator(
    std::function<void*(size_t, int, STREAM*)> allocate,
    std::function<void(void*, size_t, int, STREAM*)> release) {
  auto allocator = std::make_shared<CUDAPluggableAllocator>();
  allocator->allocate = std::move(allocate);
  allocator->release = std::move(release);
  return allocator;
}

void changeCurrentAllocator(const std::shared_ptr<Base>& allocator) {
  if (current) {
    throw std::runtime_error("Can't swap an already initialized allocator");
  }
  current = allocator;
}
} // namespace torch::cuda::CUDAPluggableAllocator

using torch::cuda::CUDAPluggableAllocator::current;
static auto* allocator() {
  return static_cast<torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator*>(current.get());
}

extern "C" void* tensor_allocate(size_t size) {
  try {
    return allocator()->allocate(size, 0, nullptr);
  } catch (const std::exception&) {
    return nullptr;
  }
}
extern "C" void tensor_record_stream(void* pointer) {
  allocator()->record_stream(pointer, nullptr);
}
extern "C" void tensor_free(void* pointer, size_t size) {
  allocator()->release(pointer, size, 0, nullptr);
}
