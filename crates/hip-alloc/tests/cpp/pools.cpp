// Directs requests to a private pool as PyTorch does: with a pair and a std::function by value,
// although the library declares its functions differently.

#include "library.h"

#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

using Id = std::pair<unsigned long long, unsigned long long>;
struct ihipStream_t;
using Filter = std::function<bool(ihipStream_t *)>;
using Begin = void (*)(int, Id, Filter);
using Tell = void (*)(int, Id);

template <typename Function>
void find(const Library &library, Function &function, const char *name) {
  function = reinterpret_cast<Function>(dlsym(library.handle, name));
}

int main(int, char **arguments) {
  const Library library = open_library(arguments[1]);
  Begin begin;
  Tell end, release;
  int (*users)(int, Id);
  find(library, begin, "hip_alloc_begin_allocate_to_pool");
  find(library, end, "hip_alloc_end_allocate_to_pool");
  find(library, release, "hip_alloc_release_pool");
  find(library, users, "hip_alloc_pool_users");
  const Id pool{3, 4};
  constexpr size_t bytes = 4 << 20;

  // Too large to be stored in the std::function itself; counts its copies.
  auto alive = std::make_shared<int>(7);
  std::thread::id here = std::this_thread::get_id();
  begin(0, pool, [alive, here, more = std::array<long, 8>{}](ihipStream_t *stream) {
    if (stream == reinterpret_cast<ihipStream_t *>(9)) {
      throw std::runtime_error("no such stream");
    }
    return *alive == 7 && more[7] == 0 && std::this_thread::get_id() == here;
  });
  std::printf("%d of the filter and %d of the pool\n", int(alive.use_count()), users(0, pool));

  void *inside = library.malloc(bytes, 0, nullptr);
  void *outside = nullptr;
  std::thread([&] { outside = library.malloc(bytes, 0, nullptr); }).join();
  library.free(inside, bytes, 0, nullptr);
  void *other = nullptr;
  std::thread([&] { other = library.malloc(bytes, 0, nullptr); }).join();
  void *again = library.malloc(bytes, 0, nullptr);
  std::printf("again %d other %d\n", again == inside, other == inside);
  try {
    library.malloc(bytes, 0, reinterpret_cast<void *>(9));
  } catch (const std::exception &problem) {
    std::printf("%s\n", problem.what());
  }
  try {
    begin(0, pool, [](ihipStream_t *) { return true; });
  } catch (const std::exception &problem) {
    std::printf("%s\n", problem.what());
  }
  end(0, pool);
  std::printf("%d of the filter and %d of the pool\n", int(alive.use_count()), users(0, pool));
  library.free(again, bytes, 0, nullptr);
  library.free(outside, bytes, 0, nullptr);
  library.free(other, bytes, 0, nullptr);
  release(0, pool);
  std::printf("%d\n", users(0, pool));
  end(0, pool);
}
