// A device is opened during a capture on another one, which must not be invalidated. argv:
// path of libhip_alloc.so.

#include "hip_runtime.h"
#include "library.h"

#include <cstdio>
#include <functional>
#include <unistd.h>

int main(int, char **arguments) {
  alarm(600);
  const Library library = open_library(arguments[1]);
  auto begin = function(library, hip_alloc_begin_allocate_to_pool, "hip_alloc_begin_allocate_to_pool");
  auto end = function(library, hip_alloc_end_allocate_to_pool, "hip_alloc_end_allocate_to_pool");
  const hip_alloc_pool_id pool{1, 2};
  const std::function<bool(void *)> all = [](void *) { return true; };

  library.free(library.malloc(1 << 20, 0, nullptr), 0, 0, nullptr);
  hip::captures = true;
  begin(0, pool, &all);
  void *captured = library.malloc(1 << 20, 0, nullptr);
  void *memory = library.malloc(100 << 20, 1, nullptr);
  library.free(memory, 0, 1, nullptr);
  library.trim(1, 0);
  std::printf("during the capture: ended %d times\n", hip::ended.load());
  hip::captures = false;
  end(0, pool);
  struct hip_alloc_stats before = {}, after = {};
  library.stats(1, &before, sizeof before);
  library.trim(1, 0);
  library.stats(1, &after, sizeof after);
  std::printf("after it, memory goes back: %d\n", after.held_bytes < before.held_bytes);
  library.free(captured, 0, 0, nullptr);
  return 0;
}
