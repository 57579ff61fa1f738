// A forked child of a process that uses a GPU: none of its calls reaches the runtime. argv: path of
// libhip_alloc.so.

#include "hip_runtime.h"
#include "library.h"

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

static void ask(const char *what, int code) { std::printf("%s: %d, %d calls\n", what, code, hip::calls.load()); }

int main(int, char **arguments) {
  alarm(600);
  const Library library = open_library(arguments[1]);
  auto retain = function(library, hip_alloc_retain_pool, "hip_alloc_retain_pool");
  auto release = function(library, hip_alloc_release_pool, "hip_alloc_release_pool");
  auto begin = function(library, hip_alloc_begin_allocate_to_pool, "hip_alloc_begin_allocate_to_pool");
  auto end = function(library, hip_alloc_end_allocate_to_pool, "hip_alloc_end_allocate_to_pool");
  const hip_alloc_pool_id used{1, 2}, other{3, 4}, begun{5, 6};
  const std::function<bool(void *)> none = [](void *) { return false; };

  void *kept = library.malloc(1 << 20, 0, nullptr);
  library.free(library.malloc(1 << 20, 0, nullptr), 0, 0, nullptr);
  retain(0, used, 0);
  begin(0, begun, &none);
  std::fflush(stdout);
  if (fork() == 0) {
    hip::calls = 0;
    size_t free = 0, total = 0;
    ask("memory", library.mem_info(0, &free, &total));
    ask("a fraction", library.set_memory_fraction(0, 0.5));
    ask("a user more", retain(0, other, 1));
    release(0, used);
    end(0, begun);
    library.free(kept, 0, 0, nullptr);
    ask("frees and trim", library.trim(0, 0));
    for (int device = 0; device < 2; device++) {
      try {
        library.malloc(1 << 20, device, nullptr);
      } catch (const std::runtime_error &) {
        ask("refused", device);
      }
    }
    try {
      begin(0, other, &none);
    } catch (const std::runtime_error &) {
      ask("no pool begun", 0);
    }
    std::fflush(stdout);
    _exit(0);
  }
  int status = 1;
  wait(&status);
  std::printf("ended with %d\n", status);
  // The parent is not affected.
  end(0, begun);
  library.free(kept, 0, 0, nullptr);
  return 0;
}
