// Tells PyTorch's profiler about memory, as PyTorch's own allocators do: without it
// torch.profiler.profile(profile_memory=True) shows no device memory, in silence. The functions
// are those of c10/core/Allocator.h, by their mangled names.

#include "libc10.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace {

// c10::Device: two bytes that are passed by value.
struct Device {
  int8_t type;
  int8_t index;
};

// c10::DeviceType::CUDA, which is what ROCm builds call their devices too.
constexpr int8_t type_cuda = 1;

using Enabled = bool (*)();
using Report = void (*)(void *address, int64_t change, size_t allocated, size_t reserved, Device);

// Looked for once: whoever asks for device memory under PyTorch has libc10 already. Two threads
// that look at once find the same.
std::atomic<bool> looked{false};
std::atomic<Enabled> enabled{nullptr};
std::atomic<Report> report{nullptr};

void look() {
  auto *asks = reinterpret_cast<Enabled>(find_in_libc10("_ZN3c1022memoryProfilingEnabledEv"));
  auto *tells = reinterpret_cast<Report>(find_in_libc10("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"));
  if (asks && tells) {
    report.store(tells, std::memory_order_relaxed);
    enabled.store(asks, std::memory_order_relaxed);
  }
  looked.store(true, std::memory_order_release);
}

} // namespace

// Whether somebody profiles the memory of this thread.
extern "C" bool hip_alloc_profiler_listens() noexcept {
  if (!looked.load(std::memory_order_acquire)) {
    look();
  }
  Enabled asks = enabled.load(std::memory_order_relaxed);
  try {
    return asks && asks();
  } catch (...) {
    return false;
  }
}

// `change` bytes at `address`, below zero for a free, and what is allocated and held then. Only
// after hip_alloc_profiler_listens said so.
extern "C" void hip_alloc_tell_profiler(void *address, int64_t change, size_t allocated, size_t reserved,
                                        int device) noexcept {
  Report tells = report.load(std::memory_order_relaxed);
  try {
    if (tells) {
      tells(address, change, allocated, reserved, Device{type_cuda, static_cast<int8_t>(device)});
    }
  } catch (...) {
    // A profile with an entry less; the memory is the program's all the same.
  }
}
