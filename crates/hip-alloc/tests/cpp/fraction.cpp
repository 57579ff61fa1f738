// Allocates device memory under a limit until it is refused. argv: path of the library.
// Prints the memory allocated relative to the limit, and the code for an invalid fraction.

#include "library.h"

#include <cstdio>
#include <new>

int main(int, char **arguments) {
  const Library library = open_library(arguments[1]);
  size_t free = 0, total = 0;
  library.mem_info(0, &free, &total);
  const double fraction = 0.25;
  int set = library.set_memory_fraction(0, fraction);
  size_t left = 0, limit = 0;
  library.mem_info(0, &left, &limit);
  bool quarter = limit == static_cast<size_t>(total * fraction);

  // Nothing is written to it, so no pages are committed.
  const size_t piece = limit / 16;
  int pieces = 0;
  try {
    for (; pieces < 100; ++pieces) library.malloc(piece, 0, nullptr);
  } catch (const std::bad_alloc &) {
  }
  struct hip_alloc_stats stats;
  library.stats(0, &stats, sizeof stats);
  std::printf("codes %d %d, a quarter: %d, within it: %d, pieces: %d\n", set, library.set_memory_fraction(0, 1.5),
              quarter, stats.held_bytes <= limit, pieces);
}
