// Everything a program can get wrong, through libhip_alloc.so. argv: path of the library.
// Prints what the statistics say afterwards; the messages go to standard error.

#include "hip_alloc.h"

#include <cstdint>
#include <cstdio>
#include <dlfcn.h>
#include <initializer_list>
#include <new>

int main(int, char **arguments) {
  void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    std::printf("library: %s\n", dlerror());
    return 3;
  }
  auto allocate = reinterpret_cast<decltype(&hip_alloc_malloc)>(dlsym(library, "hip_alloc_malloc"));
  auto release = reinterpret_cast<decltype(&hip_alloc_free)>(dlsym(library, "hip_alloc_free"));
  auto record =
      reinterpret_cast<decltype(&hip_alloc_record_stream)>(dlsym(library, "hip_alloc_record_stream"));
  auto read = reinterpret_cast<decltype(&hip_alloc_stats)>(dlsym(library, "hip_alloc_stats"));
  auto ask = reinterpret_cast<decltype(&hip_alloc_mem_info)>(dlsym(library, "hip_alloc_mem_info"));
  auto trim = reinterpret_cast<decltype(&hip_alloc_trim)>(dlsym(library, "hip_alloc_trim"));
  auto snapshot = reinterpret_cast<decltype(&hip_alloc_snapshot)>(dlsym(library, "hip_alloc_snapshot"));

  char *kept = static_cast<char *>(allocate(4096, 0, nullptr));
  void *none[2] = {allocate(0, 0, nullptr), allocate(0, 0, nullptr)};
  std::printf("two requests of nothing: %s\n",
              none[0] && none[1] && none[0] != none[1] ? "two addresses" : "wrong");

  release(none[0], 0, 0, nullptr);
  release(none[0], 0, 0, nullptr);                          // twice
  release(kept + 64, 64, 0, nullptr);                       // inside an allocation
  release(reinterpret_cast<void *>(0x1234), 1, 0, nullptr); // never ours
  release(kept, 4096, 1, nullptr);                          // another device's
  release(kept, 4096, 999, nullptr);                        // no device
  release(nullptr, 0, 999, nullptr);                        // nothing, which is fine
  record(reinterpret_cast<void *>(0x1234), nullptr);
  record(nullptr, nullptr);
  size_t free = 1, total = 1;
  std::printf("codes %d %d %d %d %d\n", ask(999, &free, &total), ask(0, nullptr, &total),
              read(0, nullptr, 8), trim(-2, 0), snapshot(nullptr));

  // A program that knows an older, shorter structure gets no more than that.
  struct hip_alloc_stats stats;
  stats.held_bytes = 42;
  read(0, &stats, 2 * sizeof(uint64_t));
  bool shorter = stats.held_bytes == 42;
  stats.live_bytes = 43;
  bool nothing = read(0, &stats, 0) == 0 && stats.live_bytes == 43;
  // A newer program's structure is longer than what the library knows.
  struct {
    struct hip_alloc_stats known;
    uint64_t newer;
  } longer;
  longer.newer = 44;
  bool rest = read(0, &longer.known, sizeof longer) == 0 && longer.newer == 44;
  std::printf("untouched %d %d %d\n", shorter, nothing, rest);

  int refused = 0;
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2 + 1}) {
    try {
      allocate(bytes, 0, nullptr);
    } catch (const std::bad_alloc &) {
      refused++;
    }
  }
  std::printf("too much: %d refused\n", refused);
  std::printf("a snapshot with any name: %d\n", snapshot("\xe9t\xe9.pickle"));

  kept[4095] = 1; // still ours
  release(none[1], 0, 0, nullptr);
  release(kept, 12345, 0, nullptr); // the size given back does not matter
  read(0, &stats, sizeof stats);
  std::printf("live %llu, %llu allocated, %llu freed\n",
              static_cast<unsigned long long>(stats.live_bytes),
              static_cast<unsigned long long>(stats.allocations),
              static_cast<unsigned long long>(stats.frees));
  std::printf("ever %llu bytes, at most %llu requests and %llu bytes at once\n",
              static_cast<unsigned long long>(stats.allocated_bytes),
              static_cast<unsigned long long>(stats.live_allocations_peak),
              static_cast<unsigned long long>(stats.active_peak_bytes));
  return 0;
}
