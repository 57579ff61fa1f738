// PyTorch says which requests a memory pool is for with a std::function, which only C++ can copy
// and call.

#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>

namespace {

// PyTorch's is std::function<bool(cudaStream_t)>, or of hipStream_t: for every pointer that it
// takes, a std::function has the same layout and the same calls (two words for what it holds, one
// function that copies and destroys it and one that calls it), and pointers are passed alike.
using Filter = std::function<bool(void *)>;

void tell(char *message, std::size_t size, const char *what) {
  if (size > 0) {
    std::strncpy(message, what, size - 1);
    message[size - 1] = 0;
  }
}

} // namespace

// A copy of the filter at this address; NULL where there is no memory for one, or it is empty.
extern "C" void *hip_alloc_copy_filter(const void *filter) noexcept {
  try {
    const auto &original = *static_cast<const Filter *>(filter);
    return original ? new Filter(original) : nullptr;
  } catch (...) {
    return nullptr;
  }
}

extern "C" void hip_alloc_drop_filter(void *filter) noexcept { delete static_cast<Filter *>(filter); }

// 1 if the filter takes a request for work on the stream, 0 if not, and -1 where asking failed, for
// the reason that is in the first `size` bytes of `message` then.
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
