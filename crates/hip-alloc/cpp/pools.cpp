// PyTorch passes the filter for the requests of a memory pool as a std::function, which only C++ can copy
// and call.

#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>

namespace {

// PyTorch's type is std::function<bool(cudaStream_t)>, or with hipStream_t. For every pointer
// argument, a std::function has the same layout and calling convention (two words of storage, one
// function that copies and destroys it, and one that calls it).
using Filter = std::function<bool(void *)>;

void tell(char *message, std::size_t size, const char *what) {
  if (size > 0) {
    std::strncpy(message, what, size - 1);
    message[size - 1] = 0;
  }
}

} // namespace

// A copy of the filter at this address; NULL if there is no memory for it, or if it is empty.
extern "C" void *hip_alloc_copy_filter(const void *filter) noexcept {
  try {
    const auto &original = *static_cast<const Filter *>(filter);
    return original ? new Filter(original) : nullptr;
  } catch (...) {
    return nullptr;
  }
}

extern "C" void hip_alloc_drop_filter(void *filter) noexcept { delete static_cast<Filter *>(filter); }

// 1 if the filter accepts a request for work on the stream, 0 if not, and -1 if the call failed; then
// the reason is in the first `size` bytes of `message`.
extern "C" int hip_alloc_ask_filter(const void *filter, void *stream, char *message,
                                    std::size_t size) noexcept {
  try {
    return (*static_cast<const Filter *>(filter))(stream) ? 1 : 0;
  } catch (const std::exception &problem) {
    tell(message, size, problem.what());
  } catch (...) {
    tell(message, size, "an exception of an unknown kind");
  }
  return -1;
}
