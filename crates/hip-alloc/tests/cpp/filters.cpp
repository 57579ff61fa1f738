// The filters that PyTorch passes to direct requests to a pool, for tests that are not in C++: built as
// a separate library.

#include <functional>

using Filter = std::function<bool(void *)>;

// A filter that accepts the requests for work on one stream. It lives as long as the process.
extern "C" void *filter_of_stream(void *stream) {
  return new Filter([stream](void *asked) { return asked == stream; });
}
