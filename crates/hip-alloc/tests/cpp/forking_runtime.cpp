// A program with its own HIP runtime, which starts a helper process (forks) in each call. argv: path
// of libhip_alloc.so, which finds this runtime in the global scope. It only terminates if no fork waits for
// a lock that its own thread holds.

#include "hip_runtime.h"
#include "library.h"

#include <cstdio>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

static int helpers = 0;

static void start_a_helper() {
  pid_t pid = fork();
  if (pid == 0) {
    _exit(0); // in place of exec
  }
  int status = 1;
  waitpid(pid, &status, 0);
  helpers += status == 0;
}

int main(int, char **arguments) {
  alarm(600); // ends a deadlock of a fork on its own thread
  hip::in_call = start_a_helper;
  hip::busy = true;
  const Library library = open_library(arguments[1]);
  for (int round = 0; round < 3; round++) {
    library.free(library.malloc(8 << 20, 0, nullptr), 8 << 20, 0, nullptr);
  }
  // Memory of another stream, which has to wait for an event; and a pool, which calls the filter.
  void *memory = library.malloc(8 << 20, 0, nullptr);
  library.record_stream(memory, &helpers);
  library.free(memory, 8 << 20, 0, nullptr);
  const std::function<bool(void *)> all = [](void *) { return true; };
  function(library, hip_alloc_begin_allocate_to_pool, "hip_alloc_begin_allocate_to_pool")(0, {1, 2}, &all);
  library.free(library.malloc(1 << 20, 0, &helpers), 1 << 20, 0, &helpers);
  function(library, hip_alloc_end_allocate_to_pool, "hip_alloc_end_allocate_to_pool")(0, {1, 2});
  library.trim(0, 0);
  // The locks are taken again around a fork by the program.
  int before = helpers;
  start_a_helper();
  std::printf("%s, %s\n", before > 0 ? "helpers were started" : "no helper", helpers > before ? "and one more" : "not one more");
  return 0;
}
