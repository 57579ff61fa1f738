// Uses libhip_alloc.so at unusual times: before main, in destructors of
// thread-local variables, at exit, and after dlclose. Each time it also forks, as to start a helper
// process, and allocates memory in the child. argv: path of the library, which is also in
// HIP_ALLOC_TEST_LIBRARY for the code that runs before main.

#include "library.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static Library library;

static bool works() {
  auto *memory = static_cast<char *>(library.malloc(70000, HIP_ALLOC_HOST, nullptr));
  std::memset(memory, 1, 70000);
  bool intact = memory[69999] == 1;
  library.free(memory, 70000, HIP_ALLOC_HOST, nullptr);
  return intact;
}

static void use(const char *when) {
  bool ours = works();
  std::fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    _exit(works() ? 0 : 1);
  }
  int status = 1;
  waitpid(pid, &status, 0);
  std::printf("%s: %s\n", when, ours && status == 0 ? "works" : "fails");
}

struct Early {
  Early() {
    library = open_library(std::getenv("HIP_ALLOC_TEST_LIBRARY"));
    use("before main");
    dlclose(library.handle);
  }
  // Runs after all handlers that main registers.
  ~Early() { use("a static destructor"); }
};

struct AtThreadEnd {
  const char *when;
  ~AtThreadEnd() { use(when); }
};

static Early early;

int main() {
  alarm(600); // ends a deadlock
  use("after dlclose");
  std::atexit([] { use("at exit"); });
  // Created before the library's first use on that thread, so destroyed after its variables.
  std::thread([] {
    thread_local AtThreadEnd end{"a thread's end"};
    (void)&end;
    use("a thread");
  }).join();
  thread_local AtThreadEnd end{"the main thread's end"};
  (void)&end;
  return 0;
}
