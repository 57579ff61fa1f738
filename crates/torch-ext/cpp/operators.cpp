// Counts the operators that run on this thread, with a callback of the dispatcher.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/record_function.h>

#include "boundary.h"

using surefoot::guarded;

namespace {

thread_local std::map<std::string, uint64_t> counts;
thread_local std::optional<at::CallbackHandle> handle;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
  ++counts[function.name()];
  return nullptr;
}

void stop() {
  if (handle) {
    at::removeCallback(*handle);
    handle.reset();
  }
}

} // namespace

extern "C" {

// Starts counting from zero.
int32_t surefoot_operators_start() {
  return guarded([] {
    stop();
    counts.clear();
    at::RecordFunctionCallback callback(count);
    callback.scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
    handle = at::addThreadLocalCallback(std::move(callback));
  });
}

// Stops counting.
int32_t surefoot_operators_stop() {
  return guarded([] { stop(); });
}

// Calls `visit` with each name and its count, sorted by name.
int32_t surefoot_operators_counted(void (*visit)(const char*, uint64_t, void*), void* context) {
  return guarded([&] {
    for (const auto& [name, times] : counts) {
      visit(name.c_str(), times, context);
    }
  });
}
}
