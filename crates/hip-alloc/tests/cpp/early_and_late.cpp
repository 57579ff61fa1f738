// Uses libhip_alloc.so when a program usually does not: before main, from destructors of
// thread variables, at exit, and after dlclose. Each time it also forks, as a helper is
// started, and asks for memory in the child. argv: path of the library, also in
// HIP_ALLOC_TEST_LIBRARY for what comes before main.

#include "hip_alloc.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static decltype(&hip_alloc_malloc) allocate;
static decltype(&hip_alloc_free) release;

static bool works() {
  auto *memory = static_cast<char *>(allocate(70000, HIP_ALLOC_HOST, nullptr));
  std::memset(memory, 1, 70000);
  bool intact = memory[69999] == 1;
  release(memory, 70000, HIP_ALLOC_HOST, nullptr);
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
    void *library = dlopen(std::getenv("HIP_ALLOC_TEST_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    allocate = reinterpret_cast<decltype(allocate)>(dlsym(library, "hip_alloc_malloc"));
    release = reinterpret_cast<decltype(release)>(dlsym(library, "hip_alloc_free"));
    use("before main");
    dlclose(library);
  }
  // Runs after all that main registers.
  ~Early() { use("a static destructor"); }
};

struct AtThreadEnd {
  const char *when;
  ~AtThreadEnd() { use(when); }
};

static Early early;

int main() {
  alarm(600); // what waits for a lock that nobody opens would wait for good
  use("after dlclose");
  std::atexit([] { use("at exit"); });
  // Made before the library's first use on that thread, so destroyed after its variables.
  std::thread([] {
    thread_local AtThreadEnd end{"a thread's end"};
    (void)&end;
    use("a thread");
  }).join();
  thread_local AtThreadEnd end{"the main thread's end"};
  (void)&end;
  return 0;
}
