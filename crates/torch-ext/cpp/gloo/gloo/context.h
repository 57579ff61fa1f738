// Declarations of the Gloo types that ProcessGroupGloo.hpp uses: libtorch contains Gloo but not its headers. Only
// pointers to these types are used there, so declarations are sufficient.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gloo/transport/device.h>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
