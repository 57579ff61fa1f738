// What PyTorch passes where it directs requests to a pool, for tests that are not in C++: built as
// a library of its own.

#include <functional>

using Filter = std::function<bool(void *)>;

// A filter that takes the requests for work on one stream. It lives as long as the process.
extern "C" void *filter_of_stream(void *stream) {
  return new Filter([stream](void *asked) { return asked == stream; });
}
