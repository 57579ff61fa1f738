// See context.h. `c10d::ProcessGroupGloo::GlooStore` derives from this class in the header; objects are
// only created inside libtorch, so the real layout does not matter here.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo {
namespace rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) = 0;
};

} // namespace rendezvous
} // namespace gloo
