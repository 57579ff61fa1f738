// Gradient checkpointing: run a function without keeping its activations, and
// run it again in the backward pass.
//
//   forward   outputs = f(inputs)      no graph; inputs and generator state are kept
//             (with `offload` the inputs are kept in host memory)
//   backward  outputs' = f(inputs')    under the same generator and autocast state
//             outputs'.backward(grads) reaches inputs' and all leaves that f has captured
//             returns the gradients of inputs'
//
// `f` is a Rust closure behind a pointer and a trampoline (src/checkpoint.rs).
// It lives as long as the node of the graph. The engine may call it on one of its
// own threads (it has one per accelerator), so the closure is `Send`.

#include <algorithm>
#include <mutex>
#include <optional>

#include <ATen/Context.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "boundary.h"
#include "closure.h"

extern "C" {
int32_t surefoot_results_push(void* results, const at::Tensor* tensor) {
  return surefoot::guarded([&] { static_cast<std::vector<at::Tensor>*>(results)->push_back(*tensor); });
}
}

namespace {

using surefoot::Closure;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// State of the default generators, restored for a recomputation.
struct GeneratorState {
  at::Tensor cpu;
  std::vector<std::pair<c10::Device, at::Tensor>> accelerators;

  static at::Tensor read(at::Generator generator) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    return generator.get_state();
  }

  static void write(at::Generator generator, const at::Tensor& state) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }

  // That of the CPU, and of every accelerator that holds one of the inputs.
  static GeneratorState capture(const variable_list& inputs) {
    GeneratorState state;
    state.cpu = read(at::detail::getDefaultCPUGenerator());
    for (const auto& input : inputs) {
      const auto device = input.device();
      const auto known = [&](const auto& entry) { return entry.first == device; };
      if (!device.is_cpu() && std::none_of(state.accelerators.begin(), state.accelerators.end(), known)) {
        state.accelerators.emplace_back(device, read(at::globalContext().defaultGenerator(device)));
      }
    }
    return state;
  }

  void restore() const {
    write(at::detail::getDefaultCPUGenerator(), cpu);
    for (const auto& [device, state] : accelerators) {
      write(at::globalContext().defaultGenerator(device), state);
    }
  }
};

// Restores the state that the generators had when the recomputation began.
struct GeneratorGuard {
  GeneratorState outside;
  explicit GeneratorGuard(const variable_list& inputs, const GeneratorState& inside)
      : outside(GeneratorState::capture(inputs)) {
    inside.restore();
  }
  ~GeneratorGuard() {
    surefoot::guarded([&] { outside.restore(); });
  }
};

// The autocast state of the forward pass, for the CPU and the accelerator.
struct AutocastState {
  struct OfDevice {
    c10::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<OfDevice> devices;

  static AutocastState capture() {
    AutocastState state;
    const auto add = [&](c10::DeviceType type) {
      state.devices.push_back({type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
    };
    add(c10::kCPU);
    if (const auto type = at::accelerator::getAccelerator(false)) {
      add(*type);
    }
    return state;
  }

  void restore() const {
    for (const auto& device : devices) {
      at::autocast::set_autocast_enabled(device.type, device.enabled);
      at::autocast::set_autocast_dtype(device.type, device.dtype);
    }
  }
};

struct AutocastGuard {
  AutocastState outside = AutocastState::capture();
  explicit AutocastGuard(const AutocastState& inside) {
    inside.restore();
    at::autocast::increment_nesting();
  }
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    outside.restore();
  }
};

// Inputs that are offloaded to host memory until the backward pass, to pinned memory if they came
// from an accelerator. Both copies are ordered by the compute stream.
struct Offloaded {
  struct One {
    at::Tensor host;
    c10::Device home;
    bool requires_grad;
  };
  std::vector<One> list;

  static Offloaded take(const variable_list& inputs) {
    const c10::AutoGradMode no_gradient(false);
    Offloaded offloaded;
    for (const auto& input : inputs) {
      const bool far = !input.is_cpu();
      auto host = at::empty(input.sizes(), input.options().device(at::kCPU).pinned_memory(far));
      host.copy_(input, /*non_blocking=*/far);
      offloaded.list.push_back({std::move(host), input.device(), input.requires_grad()});
    }
    return offloaded;
  }

  variable_list bring_back() const {
    variable_list inputs;
    for (const auto& [host, home, requires_grad] : list) {
      auto input = home.is_cpu() ? host : host.to(home, /*non_blocking=*/true);
      inputs.push_back(input.detach().set_requires_grad(requires_grad));
    }
    return inputs;
  }
};

// The data that the backward pass needs besides the inputs; stored in `saved_data`.
struct Recipe : torch::CustomClassHolder {
  c10::intrusive_ptr<Closure> closure;
  std::optional<GeneratorState> generators;
  AutocastState autocast;
  bool offload = false;
  Offloaded offloaded;
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  // A TensorList instead of a vector: `apply` finds tensors only in arguments of type Tensor or
  // TensorList, and treats everything else as a constant.
  static variable_list forward(AutogradContext* context, at::TensorList list, c10::intrusive_ptr<Recipe> recipe) {
    const auto inputs = list.vec();
    // Custom functions run their forward pass without grad mode: no graph is built.
    auto outputs = (*recipe->closure)(inputs);
    if (recipe->offload) {
      recipe->offloaded = Offloaded::take(inputs);
    } else {
      context->save_for_backward(inputs);
    }
    context->saved_data["recipe"] = c10::IValue::make_capsule(std::move(recipe));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto recipe = c10::static_intrusive_pointer_cast<Recipe>(context->saved_data["recipe"].toCapsule());
    variable_list inputs;
    if (recipe->offload) {
      inputs = recipe->offloaded.bring_back();
    } else {
      for (const auto& input : context->get_saved_variables()) {
        inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
      }
    }

    variable_list outputs;
    {
      const c10::AutoGradMode with_gradient(true);
      const AutocastGuard autocast(recipe->autocast);
      std::optional<GeneratorGuard> generators;
      if (recipe->generators) {
        generators.emplace(inputs, *recipe->generators);
      }
      outputs = (*recipe->closure)(inputs);
    }
    if (outputs.size() != gradients.size()) {
      throw surefoot::Refusal{
          surefoot::kInvalidArgument,
          "a checkpointed function returned " + std::to_string(outputs.size()) + " tensors when it was run again, and " +
              std::to_string(gradients.size()) + " the first time"};
    }

    variable_list roots, seeds;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        seeds.push_back(gradients[i]);
      }
    }
    if (!roots.empty()) {
      torch::autograd::backward(roots, seeds);
    }

    variable_list result;
    result.reserve(inputs.size() + 1);
    for (const auto& input : inputs) {
      result.push_back(input.requires_grad() ? input.grad() : Variable());
    }
    result.emplace_back(); // the closure has no gradient
    return result;
  }
};

} // namespace

extern "C" {

// Takes ownership of the closure, even on failure.
int32_t surefoot_checkpoint(
    const surefoot_closure* closure,
    at::Tensor* const* inputs,
    size_t input_count,
    bool preserve_generators,
    bool offload,
    surefoot_take take,
    void* context) {
  return surefoot::guarded([&] {
    const auto owner = c10::make_intrusive<Closure>(*closure);
    const auto list = surefoot::tensors_of(inputs, input_count);
    const auto wants_gradient = [](const at::Tensor& input) { return input.requires_grad(); };
    if (c10::GradMode::is_enabled() && std::none_of(list.begin(), list.end(), wants_gradient)) {
      throw surefoot::Refusal{
          surefoot::kInvalidArgument,
          "none of the inputs of a checkpointed function requires a gradient, so that backward would never reach it"};
    }
    auto recipe = c10::make_intrusive<Recipe>();
    recipe->closure = owner;
    recipe->autocast = AutocastState::capture();
    // Without a later backward pass, nothing needs to be kept.
    recipe->offload = offload && c10::GradMode::is_enabled();
    if (preserve_generators) {
      recipe->generators = GeneratorState::capture(list);
    }
    for (const auto& output : Checkpoint::apply(at::TensorList(list), recipe)) {
      take(context, new at::Tensor(output));
    }
  });
}
}
