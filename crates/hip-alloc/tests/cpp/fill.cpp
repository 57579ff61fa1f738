// Allocates host memory until it is refused, and touches all of it: immediately, or at the end.
// argv: path of the library, "at-once" or "at-the-end". Prints the message, the memory allocated, and
// the peak resident memory.

#include "library.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <sys/resource.h>
#include <vector>

int main(int, char **arguments) {
  const Library library = open_library(arguments[1]);
  bool at_once = std::strcmp(arguments[2], "at-once") == 0;

  constexpr size_t piece = size_t{8} << 20;
  std::vector<void *> pieces;
  try {
    // Far more than the limit, so a request must be refused earlier.
    while (pieces.size() * piece < size_t{4} << 30) {
      pieces.push_back(library.malloc(piece, HIP_ALLOC_HOST, nullptr));
      if (at_once) {
        std::memset(pieces.back(), 1, piece);
      }
    }
    std::printf("nothing was refused\n");
  } catch (const std::exception &error) {
    std::printf("refused: %s\n", error.what());
  }
  for (void *memory : pieces) {
    std::memset(memory, 2, piece);
  }
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf("got %zu\nmost %zu\n", pieces.size() * piece,
              static_cast<size_t>(usage.ru_maxrss) * 1024);
  return 0;
}
