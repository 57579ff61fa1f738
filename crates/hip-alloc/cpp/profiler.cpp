// Reports memory to PyTorch's profiler, as PyTorch's own allocators do: without it
// torch.profiler.profile(profile_memory=True) silently shows no device memory. The functions
// are those of c10/core/Allocator.h, found by their mangled names.

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

// c10::DeviceType::CUDA, which ROCm builds use as well.
constexpr int8_t type_cuda = 1;

using Enabled = bool (*)();
using Report = void (*)(void *address, int64_t change, size_t allocated, size_t reserved, Device);

// Searched from time to time until found: libc10 may be loaded after the first request. Two threads
// that search at the same time get the same result.
std::atomic<uint32_t> asked{0};
// In a forked child: no longer searched.
std::atomic<bool> given_up{false};
std::atomic<Enabled> enabled{nullptr};
std::atomic<Report> report{nullptr};

void look() {
  auto *asks = reinterpret_cast<Enabled>(find_in_libc10("_ZN3c1022memoryProfilingEnabledEv"));
  auto *tells = reinterpret_cast<Report>(find_in_libc10("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"));
  if (asks && tells) {
    report.store(tells, std::memory_order_relaxed);
    enabled.store(asks, std::memory_order_release);
  }
}

// Whether to search at a request if nothing has been found yet: often at first, then once in a
// thousand times, since it takes as long as a hundred requests.
bool to_look() {
  if (given_up.load(std::memory_order_relaxed)) {
    return false;
  }
  uint32_t times = asked.fetch_add(1, std::memory_order_relaxed);
  return times % 1024 == 0 || (times & (times - 1)) == 0;
}

} // namespace

// Whether the memory of this thread is being profiled.
extern "C" bool hip_alloc_profiler_listens() noexcept {
  Enabled asks = enabled.load(std::memory_order_acquire);
  if (!asks && to_look()) {
    look();
    asks = enabled.load(std::memory_order_acquire);
  }
  try {
    return asks && asks();
  } catch (...) {
    return false;
  }
}

// Called in the child of a fork, on its only thread. Another thread of the parent may have been in the
// loader, possibly because of us, and its lock is then never released (glibc before 2.36). If the parent
// has allocated, the child cannot use the device anyway; otherwise the child may search itself.
extern "C" void hip_alloc_profiler_after_fork() noexcept {
  if (!enabled.load(std::memory_order_relaxed) && asked.load(std::memory_order_relaxed) != 0) {
    given_up.store(true, std::memory_order_relaxed);
  }
}

// Reports `change` bytes at `address`, negative for a free, and the totals allocated and held afterwards. Only
// called if hip_alloc_profiler_listens returned true.
extern "C" void hip_alloc_tell_profiler(void *address, int64_t change, size_t allocated, size_t reserved,
                                        int device) noexcept {
  Report tells = report.load(std::memory_order_relaxed);
  try {
    if (tells) {
      tells(address, change, allocated, reserved, Device{type_cuda, static_cast<int8_t>(device)});
    }
  } catch (...) {
    // The profile lacks an entry, but the memory is valid.
  }
}
