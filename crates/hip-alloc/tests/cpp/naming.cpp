// The recording of stacks is stopped while a thread is in the recording function. argv: path of
// libhip_alloc.so.

#include "library.h"

#include <atomic>
#include <cstdio>
#include <thread>
#include <unistd.h>

static std::atomic<bool> inside{false}, left{false};

extern "C" uint64_t name_stack() {
  inside = true;
  usleep(200000); // as if it waited for a lock
  left = true;
  return 7;
}

extern "C" void nothing() {}

int main(int, char **arguments) {
  alarm(600);
  const Library library = open_library(arguments[1]);
  auto record = function(library, hip_alloc_record_stacks, "hip_alloc_record_stacks");
  auto record_python = function(library, hip_alloc_record_python_stacks, "hip_alloc_record_python_stacks");
  auto stack = function(library, hip_alloc_python_stack, "hip_alloc_python_stack");
  record(&name_stack);
  std::thread naming([&] { library.free(library.malloc(100, HIP_ALLOC_HOST, nullptr), 0, HIP_ALLOC_HOST, nullptr); });
  while (!inside) {
    usleep(1000);
  }
  int code = record(nullptr);
  std::printf("ended with %d when the thread had left: %d\n", code, left.load());
  naming.join();

  void (*functions[9])() = {nothing, nothing, nothing, nothing, nothing, nothing, nothing, nullptr, nothing};
  code = record_python(reinterpret_cast<const hip_alloc_python *>(functions), sizeof functions, 1, 0);
  std::printf("without a function: %d\n", code);
  std::printf("no such stack: %zu\n", stack(1234, nullptr, nullptr, nullptr, 5));
  return 0;
}
