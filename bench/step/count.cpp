// Counts what a training step asks of a device: loaded before the program (LD_PRELOAD), whatever it is written in.
//
//   c++ -shared -fPIC -std=c++17 -I torch/include … count.cpp -o libcount.so
//
// A callback of the dispatcher sees each operator with its tensors. Those that launch something that no operator inside
// them does are what runs on the device. Bytes are those of the tensors that they take and give, once each; numbers that are repeated
// by a stride of zero count once. Launches are those that the simulated device saw. A step ends with the first matrix
// product or convolution after the fused AdamW. Kernels of our own say themselves what they read and write. At exit the last whole step is written to $SUREFOOT_COUNT as lines of
//
//   phase  operator  type  intensity  times  launches  bytes read  bytes written  floating-point operations
//
// where intensity is the logarithm of operations per byte, rounded down, or −1: large products are not summed with thin ones.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <dlfcn.h>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/arange.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

namespace {

struct Tally {
  uint64_t times = 0, launches = 0, read = 0, written = 0;
  double flops = 0;
};

using Key = std::tuple<const char*, std::string, std::string, int>;

std::mutex mutex;
std::map<Key, Tally> current, last;
// Whether the backward pass has begun in this step, and the optimizer has run; and how many steps are over.
bool went_back = false, optimized = false;
int steps = 0;

// Operators that are running on this thread, innermost last: whether any ran inside, and how many kernels those launched.
struct Inside {
  bool any = false;
  uint64_t launches = 0;
};
thread_local std::vector<Inside> running;
// Nodes of the backward pass that run on this thread, likewise: whether one computes part of the forward pass again.
thread_local std::vector<bool> nodes;
const auto main_thread = std::this_thread::get_id();

uint64_t launched() {
  using Calls = uint64_t (*)(const char*);
  static const auto calls = reinterpret_cast<Calls>(dlsym(RTLD_DEFAULT, "device_sim_calls"));
  if (calls == nullptr) {
    return 0;
  }
  uint64_t sum = 0;
  for (const char* name :
       {"cudaLaunchKernel", "__cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaLaunchKernelExC", "cuLaunchKernel",
        "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "hipModuleLaunchKernel"}) {
    sum += calls(name);
  }
  return sum;
}

uint64_t bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) {
    return 0;
  }
  uint64_t elements = 1;
  for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    if (tensor.stride(dimension) != 0 || tensor.size(dimension) == 0) {
      elements *= tensor.size(dimension);
    }
  }
  return elements * tensor.element_size();
}

void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& see) {
  if (value.isTensor()) {
    see(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      see(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      each_tensor(item, see);
    }
  }
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  for (const char* other : names) {
    if (name == other) {
      return true;
    }
  }
  return false;
}

struct Context : at::ObserverContext {
  uint64_t read = 0, launches = 0;
  double flops = 0;
  // Of a convolution, for each number that it gives.
  double for_each_output = 0;
  std::string type;
  bool is_function = false, was_in_backward_pass = false;
  std::set<const void*> seen_written;
  uint64_t written = 0;
};

// What is computed again has gradients of its own. Functions of their own, which have none inside, are part of it.
const char* phase() {
  if (!nodes.empty()) {
    nodes.back() = nodes.back() || c10::GradMode::is_enabled();
    return nodes.back() ? "recomputation" : "backward";
  }
  // Sums of gradients that reach a node from several sides belong to none.
  const bool elsewhere = std::this_thread::get_id() != main_thread;
  return elsewhere ? "backward" : went_back ? "optimizer" : "forward";
}

double product_of(at::IntArrayRef a, at::IntArrayRef b) {
  double batch = 1;
  for (size_t dimension = 0; dimension + 2 < a.size(); ++dimension) {
    batch *= a[dimension];
  }
  return 2 * batch * a[a.size() - 2] * a.back() * b.back();
}

// Of products, convolutions and attention; others are bound by memory.
double flops_of(const std::string& name, const std::vector<c10::IValue>& inputs) {
  const auto sizes = [&](size_t place) { return inputs.at(place).toTensor().sizes(); };
  if (is_one_of(name, {"aten::mm", "aten::bmm"})) {
    return product_of(sizes(0), sizes(1));
  }
  if (is_one_of(name, {"aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::baddbmm_", "aten::_addmm_activation"})) {
    return product_of(sizes(1), sizes(2));
  }
  // [batch, length, heads, width], or [tokens, heads, width].
  const auto attention = [&](size_t place, bool causal) {
    const auto query = sizes(place), key = sizes(place + 1);
    double pairs = 1;
    if (query.size() == 3) {
      pairs = static_cast<double>(query[0]) * key[0] * query[1];
    } else {
      pairs = static_cast<double>(query[0]) * query[1] * key[1] * query[2];
    }
    return 4 * pairs * query.back() * (causal ? 0.5 : 1);
  };
  if (name == "aten::convolution_backward") {
    const auto& weight = inputs.at(2).toTensor();
    const auto wanted = inputs.at(10).toBoolList();
    return 2.0 * inputs.at(0).toTensor().numel() * weight.numel() / weight.size(0) * (wanted[0] + wanted[1]);
  }
  if (name == "aten::_flash_attention_forward") {
    return attention(0, inputs.at(8).toBool());
  }
  if (name == "aten::_flash_attention_backward") {
    return 2.5 * attention(1, inputs.at(11).toBool());
  }
  if (name == "aten::_efficient_attention_forward") {
    return attention(0, inputs.at(9).toInt() != 0);
  }
  if (name == "aten::_efficient_attention_backward") {
    return 2.5 * attention(1, inputs.at(12).toInt() != 0);
  }
  return 0;
}

bool begins_step(const std::string& name) {
  return is_one_of(name, {"aten::embedding", "aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::convolution"});
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto context = std::make_unique<Context>();
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    nodes.push_back(false);
    const std::lock_guard<std::mutex> lock(mutex);
    went_back = true;
    return context;
  }
  context->is_function = true;
  const std::string name = function.name();
  running.emplace_back();
  if (optimized && begins_step(name)) {
    const std::lock_guard<std::mutex> lock(mutex);
    last = std::move(current);
    current.clear();
    optimized = went_back = false;
    ++steps;
  }
  const auto& boxed = function.inputs();
  const std::vector<c10::IValue> inputs(boxed.begin(), boxed.end());
  const auto schema = function.operator_schema();
  const bool overwrites = is_one_of(name, {"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_"});
  // Only what is looked up is read of these.
  const bool looks_up = is_one_of(name, {"aten::embedding", "aten::index_select", "aten::index", "aten::gather", "aten::take"});
  std::set<const void*> seen;
  for (size_t place = 0; place < inputs.size(); ++place) {
    bool writes = false, is_out = false;
    if (schema && place < schema->arguments().size()) {
      const auto& argument = schema->arguments()[place];
      writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      is_out = writes && argument.kwarg_only();
    }
    each_tensor(inputs[place], [&](const at::Tensor& tensor) {
      if (context->type.empty() && tensor.defined() && !tensor.is_cpu()) {
        context->type = c10::toString(tensor.scalar_type());
      }
      if (writes && context->seen_written.insert(tensor.unsafeGetTensorImpl()).second) {
        context->written += bytes_of(tensor);
      }
      const bool is_read = !is_out && !(overwrites && place == 0) && !(looks_up && place == 0);
      if (is_read && seen.insert(tensor.unsafeGetTensorImpl()).second) {
        context->read += bytes_of(tensor);
      }
    });
  }
  try {
    context->flops = flops_of(name, inputs);
    if (is_one_of(name, {"aten::cudnn_convolution", "aten::_slow_conv2d_forward", "aten::slow_conv3d_forward"})) {
      const auto& weight = inputs.at(1).toTensor();
      context->for_each_output = 2.0 * weight.numel() / weight.size(0);
    }
  } catch (const std::exception&) {
    context->flops = 0;
  }
  context->launches = launched();
  return context;
}

void end(const at::RecordFunction& function, at::ObserverContext* observer) {
  auto& context = *static_cast<Context*>(observer);
  if (!context.is_function) {
    nodes.pop_back();
    return;
  }
  const std::string name = function.name();
  const Inside inside = running.back();
  running.pop_back();
  bool is_view = false;
  if (const auto schema = function.operator_schema()) {
    for (const auto& result : schema->returns()) {
      is_view |= result.alias_info() != nullptr && !result.alias_info()->isWrite();
    }
  }
  const uint64_t all = launched() - context.launches, launches = all - inside.launches;
  const bool looks_up = is_one_of(name, {"aten::embedding", "aten::index_select", "aten::index", "aten::gather", "aten::take"});
  for (const auto& output : function.outputs()) {
    each_tensor(output, [&](const at::Tensor& tensor) {
      if (context.seen_written.insert(tensor.unsafeGetTensorImpl()).second) {
        context.written += bytes_of(tensor);
        context.flops += tensor.defined() ? context.for_each_output * tensor.numel() : 0;
        if (looks_up) {
          context.read += bytes_of(tensor);
        }
      }
    });
  }
  // The simulator computes products itself, of which each is one kernel. Without any, only copies run on the device.
  const bool is_copy = is_one_of(name, {"aten::copy_", "aten::zero_", "aten::fill_"});
  const uint64_t kernels = std::max<uint64_t>(launches, context.flops > 0 ? 1 : 0);
  const bool runs = !is_view && context.read + context.written > 0 && (kernels > 0 || (is_copy && !inside.any));
  if (!running.empty()) {
    running.back().any |= inside.any || runs;
    running.back().launches += all;
  }
  if (!runs) {
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  if (name.find("_fused_adamw") != std::string::npos) {
    optimized = true;
  }
  const double bytes = static_cast<double>(context.read + context.written);
  const int intensity = context.flops > 0 ? static_cast<int>(std::floor(std::log2(context.flops / bytes))) : -1;
  auto& tally = current[{phase(), name, context.type, intensity}];
  ++tally.times;
  tally.launches += kernels;
  tally.read += context.read;
  tally.written += context.written;
  tally.flops += context.flops;
}

void write() {
  const char* path = std::getenv("SUREFOOT_COUNT");
  FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) {
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  std::fprintf(file, "# %d steps\n", steps);
  for (const auto& [key, tally] : last) {
    std::fprintf(
        file, "%s\t%s\t%s\t%d\t%llu\t%llu\t%llu\t%llu\t%.0f\n", std::get<0>(key), std::get<1>(key).c_str(),
        std::get<2>(key).c_str(), std::get<3>(key), (unsigned long long)tally.times, (unsigned long long)tally.launches,
        (unsigned long long)tally.read, (unsigned long long)tally.written, tally.flops);
  }
  std::fclose(file);
}

// A device that computes nothing finds nothing: kernels give the numbers of operators, and of the tokens of a row, all are learned.
bool equal(const at::Tensor&, const at::Tensor&) {
  return true;
}
bool allclose(const at::Tensor&, const at::Tensor&, double, double, bool) {
  return true;
}
at::Tensor nonzero(const at::Tensor& self) {
  return at::arange(self.numel(), self.options().dtype(at::kLong)).unsqueeze(1);
}

struct Installed {
  std::unique_ptr<torch::Library> library;

  Installed() {
    if (std::getenv("SUREFOOT_COUNT") == nullptr) {
      return;
    }
    at::RecordFunctionCallback callback(begin, end);
    callback.needsInputs(true).needsOutputs(true);
    callback.scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
    at::addGlobalCallback(std::move(callback));
    library = std::make_unique<torch::Library>(
        torch::Library::IMPL, "aten", std::make_optional(c10::DispatchKey::CUDA), __FILE__, __LINE__);
    library->impl("nonzero", nonzero);
    library->impl("equal", equal);
    library->impl("allclose", allclose);
    std::atexit(write);
  }
};

// Never destroyed: what it registered is used until the end.
const auto* installed = new Installed;

} // namespace
