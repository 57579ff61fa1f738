// Misuses the simulator, and prints the results. Crashes
// if the simulator accesses memory that is not its own. argv: path of the library, "hip" or "cuda",
// then the names of scenes.

#include "simulator.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

using Bytes = size_t;

// A function for virtual memory, which in CUDA belongs to the driver API.
template <typename... Arguments> static int call_mem(const char *name, Arguments... arguments) {
  return call_as((prefix == "hip" ? "hip" : "cu") + std::string(name), arguments...);
}

static void configure(const char *text) {
  if (call_as("device_sim_control", text) != 0) {
    _exit(4);
  }
}

static char *device_memory(Bytes size) {
  char *memory = nullptr;
  return call("Malloc", &memory, size) == 0 ? memory : nullptr;
}

static char *pages(Bytes size) {
  return static_cast<char *>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static void *new_stream() {
  void *stream = nullptr;
  call("StreamCreateWithFlags", &stream, 1u);
  return stream;
}

static int first_byte(const char *memory) {
  char byte = -1;
  call("Memcpy", static_cast<void *>(&byte), static_cast<const void *>(memory), Bytes{1}, 2);
  return byte;
}

static Bytes free_mib() {
  Bytes free = 0, total = 0;
  call("MemGetInfo", &free, &total);
  return free >> 20;
}

// Prints what calls returned; the calls of such a list are made in its order.
static void print(const char *scene, std::initializer_list<int> codes) {
  std::printf("%s", scene);
  for (int code : codes) {
    std::printf(" %d", code);
  }
}

static void sleep_ms(int time) { std::this_thread::sleep_for(std::chrono::milliseconds(time)); }

static const char *pinned_alloc() { return prefix == "hip" ? "HostMalloc" : "HostAlloc"; }

// Null output pointers: no resource may be created whose handle cannot be returned.
static void nowhere() {
  Bytes before = free_mib();
  void **none = nullptr;
  int properties[8] = {1, 0, 1, 0, 0, 0, 0, 0};
  print("nowhere", {
      call("Malloc", none, Bytes{1 << 20}),
      call("MallocManaged", none, Bytes{1 << 20}, 1u),
      call("MallocAsync", none, Bytes{1 << 20}, none),
      call(pinned_alloc(), none, Bytes{1 << 20}, 0u),
      call("StreamCreateWithFlags", none, 0u),
      call("EventCreateWithFlags", none, 0u),
      call("GetDeviceCount", none),
      call_mem("MemCreate", none, Bytes{2 << 20}, &properties[0], uint64_t{0}),
      call_mem("MemAddressReserve", none, Bytes{2 << 20}, Bytes{0}, none, uint64_t{0}),
  });
  std::printf(", %zu MiB gone\n", before - free_mib());
}

// Sizes whose product or sum overflows an address.
static void sizes() {
  char *memory = device_memory(4096), *host = pages(4096);
  const Bytes most = SIZE_MAX, half = SIZE_MAX / 2 + 1;
  void *none = nullptr;
  print("sizes", {
      call("Malloc", &none, most),
      call(pinned_alloc(), &none, most - 4095, 0u),
      call("Memset", memory, 0, most),
      call("Memset", memory, 0, Bytes{4097}),
      call("Memcpy", memory, host, most, 1),
      call("Memcpy2DAsync", memory, half, host, half, half, Bytes{4}, 1, none),
      call_as(prefix == "hip" ? "hipMemsetD32Async" : "cuMemsetD32Async", memory, 1, half, none),
      call("HostRegister", host, most, 0u),
      call("HostRegister", host, Bytes{0}, 0u),
      call("HostRegister", none, Bytes{4096}, 0u),
  });
}

// Requests of zero bytes, with other allocations in between.
static void nothing() {
  char *none = device_memory(1);
  print("nothing", {
      call("Malloc", &none, Bytes{0}),
      none == nullptr,
      call("MallocAsync", &none, Bytes{0}, nullptr),
      none == nullptr,
  });
  char *first = device_memory(4096), *second = device_memory(4096);
  std::printf(", %s\n", first == second ? "given twice" : "apart");
}

// Addresses that are not allocated, of the wrong kind, or partly outside an allocation. The first
// allocation is at the start of the simulator's memory.
static void foreign() {
  char *memory = device_memory(4096), *host = pages(8192), local[16] = {};
  void *none = nullptr, *seen = nullptr;
  const char *free_pinned = prefix == "hip" ? "HostFree" : "FreeHost";
  print("foreign", {
      call("Memcpy", none, memory, Bytes{16}, 2),
      call("Memcpy", memory, none, Bytes{16}, 1),
      call("Memcpy", memory - 8, static_cast<void *>(local), Bytes{16}, 1),
      call("Memset", static_cast<void *>(local), 0, Bytes{16}),
      call("Free", memory + 64),
      call("Free", static_cast<void *>(local)),
      call(free_pinned, memory),
      call("HostRegister", memory + (1 << 20), Bytes{4096}, 0u),
      call("HostGetDevicePointer", &seen, memory, 0u),
  });
  print(", registered", {
      call("HostRegister", host, Bytes{4096}, 0u),
      call("HostRegister", host + 2048, Bytes{4096}, 0u),
      call("HostUnregister", host + 64),
      call("HostUnregister", host),
      call("HostUnregister", host),
  });
}

// Virtual memory that was never mapped, or no longer is.
static void mapping() {
  char *range = nullptr;
  void *handle = nullptr, *none = nullptr;
  int properties[8] = {1, 0, 1, 0, 0, 0, 0, 0}, access[3] = {1, 0, 3};
  const Bytes size = 2 << 20;
  call_mem("MemAddressReserve", &range, 2 * size, Bytes{0}, none, uint64_t{0});
  call_mem("MemCreate", &handle, size, &properties[0], uint64_t{0});
  print("mapping", {
      call_mem("MemMap", range, size, Bytes{0}, handle, uint64_t{0}),
      call_mem("MemUnmap", range, Bytes{0}),
      call_mem("MemUnmap", range, SIZE_MAX - 8),
      call_mem("MemSetAccess", none, Bytes{0}, &access[0], Bytes{1}),
      call_mem("MemSetAccess", range, size, none, Bytes{2}),
      call_mem("MemSetAccess", range, size, &access[0], Bytes{0}),
      call_mem("MemRelease", handle),
      call_mem("MemRelease", handle),
      call_mem("MemMap", range + size, size, Bytes{0}, handle, uint64_t{0}),
  });
}

// A block with a pending free on a stream is freed again, in each possible way.
static void freed_twice() {
  void *stream = new_stream();
  char *memory = device_memory(4096), *other = device_memory(4096);
  configure("device_time=copy:30ms");
  call("MemsetAsync", other, 1, Bytes{4096}, stream);
  configure("device_time=copy:0ns");
  print("freed_twice", {
      call("FreeAsync", memory, stream),
      call("FreeAsync", memory, stream),
      call("Free", memory),
      call("FreeAsync", other + 1, stream),
      call("StreamSynchronize", stream),
  });
  std::printf(", %s\n", device_memory(4096) == memory ? "given out again" : "kept");
}

// Handles that were destroyed.
static void destroyed() {
  void *stream = new_stream(), *event = nullptr, *none = nullptr;
  call("EventCreateWithFlags", &event, 2u);
  call("EventDestroy", event);
  print("destroyed", {
      call("EventRecord", event, stream),
      call("EventQuery", event),
      call("StreamWaitEvent", stream, event, 0u),
      call("EventDestroy", event),
  });
  call("StreamDestroy", stream);
  print("", {
      call("StreamQuery", stream),
      call("StreamDestroy", stream),
      call("MallocAsync", &none, Bytes{4096}, stream),
      call("StreamDestroy", none),
      call("FreeAsync", none, none),
  });
}

// Work on a destroyed stream: the device is busy until it is done.
static void orphaned() {
  char *memory = device_memory(4096);
  void *stream = new_stream();
  configure("device_time=copy:100ms");
  call("MemsetAsync", memory, 7, Bytes{4096}, stream);
  configure("device_time=copy:0ns");
  call("StreamDestroy", stream);
  call("DeviceSynchronize");
  std::printf("orphaned %d\n", first_byte(memory));
}

// Host memory with a pending copy is unregistered and then freed.
static void unregistered() {
  char *memory = device_memory(4096), *host = pages(4096);
  call("HostRegister", host, Bytes{4096}, 0u);
  configure("device_time=copy:100ms");
  call("MemcpyAsync", host, memory, Bytes{4096}, 2, new_stream());
  int code = call("HostUnregister", host);
  munmap(host, 4096);
  sleep_ms(120);
  print("unregistered", {code, call("DeviceSynchronize")});
}

// A copy that is configured to be late finds that the program's memory has been freed.
static void late() {
  char *memory = device_memory(4096), *host = pages(4096);
  configure("copy=d2h:late(50ms)");
  int code = call("Memcpy", host, memory, Bytes{4096}, 2);
  munmap(host, 4096);
  sleep_ms(70);
  print("late", {code, call("DeviceSynchronize")});
}

// Only the last bytes of a copy are in memory that is not registered.
static void half_registered() {
  char *memory = device_memory(8192), *host = pages(8192);
  call("HostRegister", host, Bytes{4096}, 0u);
  call("Memset", memory, 5, Bytes{8192});
  configure("device_time=copy:50ms");
  call("MemcpyAsync", host, memory, Bytes{8192}, 2, new_stream());
  std::printf("half_registered %d\n", host[8191]);
}

struct Told {
  std::atomic<bool> started{false}, may_end{true}, finished{false};
  std::atomic<int> code{-1};
  char *pinned = nullptr;
};

static void told(void *data) {
  auto *told = static_cast<Told *>(data);
  told->started = true;
  while (!told->may_end) {
    sleep_ms(1);
  }
  sleep_ms(20);
  told->pinned[0] = 7;
  told->code = call("DeviceSynchronize");
  told->finished = true;
}

// Work after a host function waits for it, also on another thread.
static void in_order() {
  Told data;
  call(pinned_alloc(), &data.pinned, Bytes{4096}, 0u);
  char *memory = device_memory(4096);
  void *stream = new_stream();
  configure("device_time=copy:20ms");
  call("MemsetAsync", memory, 1, Bytes{4096}, stream);
  call("LaunchHostFunc", stream, &told, static_cast<void *>(&data));
  call("MemcpyAsync", memory, data.pinned, Bytes{4096}, 1, stream);
  configure("device_time=copy:0ns");
  sleep_ms(100);
  call("StreamSynchronize", stream);
  std::printf("in_order %d, a call from inside %d\n", first_byte(memory), data.code.load());
}

static void while_called() {
  Told data;
  call(pinned_alloc(), &data.pinned, Bytes{4096}, 0u);
  void *stream = new_stream();
  data.may_end = false;
  std::thread other([&] { call("LaunchHostFunc", stream, &told, static_cast<void *>(&data)); });
  while (!data.started) {
    std::this_thread::yield();
  }
  int busy = call("StreamQuery", stream), made = device_memory(4096) != nullptr;
  data.may_end = true;
  call("StreamSynchronize", stream);
  std::printf("while_called %d %d %d\n", busy, made, data.finished.load());
  other.join();
}

// Forks while threads use the simulator; each child queries the device and exits with its handlers.
static void forks() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  device_memory(1);
  for (int number = 0; number < 3; number++) {
    threads.emplace_back([&] {
      while (!stop) {
        configure("reset_counters;reset_faults;latency=*Nothing:1ns");
        char *memory = device_memory(4096);
        call("Memset", memory, 1, Bytes{4096});
        call("Free", memory);
      }
    });
  }
  int well = 0;
  for (int round = 0; round < 200; round++) {
    std::fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      alarm(600); // ends a deadlock on a thread that the child does not have
      int count = 0;
      bool refused = call("GetDeviceCount", &count) == 3 && call("StreamQuery", nullptr) == 3;
      // The call must not wait, although other threads may have been counting.
      auto calls = reinterpret_cast<uint64_t (*)(const char *)>(find("device_sim_calls"));
      std::exit(refused && calls((prefix + "EventCreate").c_str()) == 0 ? 0 : 1);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    well += status == 0;
  }
  stop = true;
  for (std::thread &thread : threads) {
    thread.join();
  }
  std::printf("forks %d\n", well);
}

// In CUDA 11 the lookup function has no fifth argument; the value in its place must not be used.
static void by_name() {
  uint64_t untouched = 42;
  void *function = nullptr;
  print("by_name", {
      call_as("cuGetProcAddress", "cuMemMap", &function, 11030, uint64_t{0}, &untouched),
      function == find("cuMemMap"),
      untouched == 42,
      call_as("cuGetProcAddress_v2", "cuGetProcAddress", &function, 13000, uint64_t{0}, nullptr),
      function == find("cuGetProcAddress_v2"),
  });
}

// A grid whose number of threads overflows, and an invalid pool.
static void numbers() {
  struct {
    uint32_t x, y, z;
  } one = {1, 1, 1}, most = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
  auto launch = reinterpret_cast<int (*)(void *, decltype(one), decltype(one), void **, Bytes, void *)>(
      find(prefix + "LaunchKernel"));
  int value = 0;
  print("numbers", {
      launch(nullptr, one, one, nullptr, 0, nullptr),
      launch(nullptr, one, most, nullptr, 0, nullptr),
      call("MemPoolGetAttribute", uint64_t{0x80000000}, 4, &value),
      call("MemPoolGetAttribute", uint64_t{1} << 32 | 1, 4, &value),
  });
}

// Times whose sum overflows in nanoseconds.
static void ages() {
  configure("device_time=copy:31000000s,mib:31000000s");
  char *memory = device_memory(4096);
  void *stream = new_stream();
  int codes = 0;
  for (int round = 0; round < 1000; round++) {
    codes |= call("MemsetAsync", memory, 0, Bytes{4096}, stream);
  }
  std::printf("ages %d %d\n", codes, call("StreamQuery", stream));
}

int main(int count, char **arguments) {
  const struct {
    const char *name;
    void (*play)();
  } scenes[] = {
      {"nowhere", nowhere}, {"sizes", sizes}, {"nothing", nothing}, {"foreign", foreign}, {"mapping", mapping},
      {"freed_twice", freed_twice}, {"destroyed", destroyed}, {"orphaned", orphaned},
      {"unregistered", unregistered}, {"late", late}, {"half_registered", half_registered}, {"in_order", in_order},
      {"while_called", while_called}, {"forks", forks}, {"by_name", by_name}, {"numbers", numbers}, {"ages", ages},
  };
  open_simulator(arguments[1], arguments[2]);
  for (int i = 3; i < count; ++i) {
    for (const auto &scene : scenes) {
      if (std::strcmp(scene.name, arguments[i]) == 0) {
        scene.play();
      }
    }
  }
  std::fflush(stdout);
  return 0;
}
