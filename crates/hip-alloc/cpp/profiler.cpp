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

// Looked for until found, now and then: libc10 may be loaded after the first request. Two threads
// that look at once find the same.
std::atomic<uint32_t> asked{0};
// In a forked child: not looked for any more.
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

// Whether to look, at a request where nothing was found yet: soon at first, and then once in a
// thousand times, since it takes as long as a hundred requests.
bool to_look() {
  if (given_up.load(std::memory_order_relaxed)) {
    return false;
  }
  uint32_t times = asked.fetch_add(1, std::memory_order_relaxed);
  return times % 1024 == 0 || (times & (times - 1)) == 0;
}

} // namespace

// Whether somebody profiles the memory of this thread.
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

// In the child of a fork, on its only thread. Another thread of the parent may have been inside the
// loader, whose lock nobody gives back then (glibc before 2.36), or was sent there by us. A parent
// that allocated has given the child no device to profile; one that did not leaves it to the child.
extern "C" void hip_alloc_profiler_after_fork() noexcept {
  if (!enabled.load(std::memory_order_relaxed) && asked.load(std::memory_order_relaxed) != 0) {
    given_up.store(true, std::memory_order_relaxed);
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
