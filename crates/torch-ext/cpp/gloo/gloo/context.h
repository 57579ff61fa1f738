// What ProcessGroupGloo.hpp names of Gloo, which a libtorch contains and has no headers of. Only
// pointers to these types are held there, so declarations do; nothing here is defined.
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
