// All kinds of misuse of libhip_alloc.so. argv: path of the library.
// Prints the statistics afterwards; the messages go to standard error.

#include "library.h"

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <new>

int main(int, char **arguments) {
  const Library library = open_library(arguments[1]);

  char *kept = static_cast<char *>(library.malloc(4096, 0, nullptr));
  void *none[2] = {library.malloc(0, 0, nullptr), library.malloc(0, 0, nullptr)};
  std::printf("two requests of nothing: %s\n",
              none[0] && none[1] && none[0] != none[1] ? "two addresses" : "wrong");

  library.free(none[0], 0, 0, nullptr);
  library.free(none[0], 0, 0, nullptr);                          // twice
  library.free(kept + 64, 64, 0, nullptr);                       // inside an allocation
  library.free(reinterpret_cast<void *>(0x1234), 1, 0, nullptr); // not from this library
  library.free(kept, 4096, 1, nullptr);                          // on another device
  library.free(kept, 4096, 999, nullptr);                        // no such device
  library.free(nullptr, 0, 999, nullptr);                        // NULL is allowed
  library.record_stream(reinterpret_cast<void *>(0x1234), nullptr);
  library.record_stream(nullptr, nullptr);
  size_t free = 1, total = 1;
  std::printf("codes %d %d %d %d %d\n", library.mem_info(999, &free, &total), library.mem_info(0, nullptr, &total),
              library.stats(0, nullptr, 8), library.trim(-2, 0), library.snapshot(nullptr));

  // A program with an older, shorter structure gets only its fields.
  struct hip_alloc_stats stats;
  stats.held_bytes = 42;
  library.stats(0, &stats, 2 * sizeof(uint64_t));
  bool shorter = stats.held_bytes == 42;
  stats.live_bytes = 43;
  bool nothing = library.stats(0, &stats, 0) == 0 && stats.live_bytes == 43;
  // A newer program's structure is longer than that of the library.
  struct {
    struct hip_alloc_stats known;
    uint64_t newer;
  } longer;
  longer.newer = 44;
  bool rest = library.stats(0, &longer.known, sizeof longer) == 0 && longer.newer == 44;
  std::printf("untouched %d %d %d\n", shorter, nothing, rest);

  int refused = 0;
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2 + 1}) {
    try {
      library.malloc(bytes, 0, nullptr);
    } catch (const std::bad_alloc &) {
      refused++;
    }
  }
  std::printf("too much: %d refused\n", refused);
  std::printf("a snapshot with any name: %d\n", library.snapshot("\xe9t\xe9.pickle"));

  kept[4095] = 1; // still valid
  library.free(none[1], 0, 0, nullptr);
  library.free(kept, 12345, 0, nullptr); // the size does not matter
  library.stats(0, &stats, sizeof stats);
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
