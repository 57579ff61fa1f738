// Fake tensors, to measure what a piece of work allocates before anything is allocated: they have a device, a type and a
// size, and no memory. While a thread is in fake mode, tensors that are made on a device are fake, operators with a fake
// argument only find out the size of their result, and the bytes of all fake tensors are counted.
//
//   operators above    autograd, and all that libtorch composes of others: as in a real run, whatever the device
//   Fake               the fallback here: what libtorch composes of others only now goes on with fake tensors, too; of other
//                      operators, sizes from the `Meta` kernel, or from `sizes_of` below
//   operators below    never reached, so that no kernel is launched
//
// Tensors that exist already, and those made without a device (as from a list of numbers), are real, and so is what is
// computed of them alone if it is small or made of integers: the code around may look at it.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "boundary.h"

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using Stack = torch::jit::Stack;

// The most numbers that are computed of real ones.
constexpr int64_t kComputed = 1024;

// Smaller tensors are not counted: numbers of a row, or of a batch.
constexpr int64_t kSmallest = 512;

// Bytes of fake tensors on one device.
struct Count {
  c10::Device device;
  std::atomic<int64_t> live{0}, peak{0};

  explicit Count(c10::Device device_) : device(device_) {}

  void add(int64_t bytes) {
    const auto now = live.fetch_add(bytes) + bytes;
    auto most = peak.load();
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
  }
};

std::mutex mutex;
std::shared_ptr<Count> counting; // that of the thread that is in fake mode; its backward pass may run on others

std::shared_ptr<Count> current() {
  const std::lock_guard<std::mutex> lock(mutex);
  return counting;
}

// What a fake storage counts for, until it is freed.
struct Counted {
  std::shared_ptr<Count> count;
  int64_t bytes;

  static void release(void* context) {
    const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
    counted->count->add(-counted->bytes);
  }
};

// A tensor on `device` whose sizes and storage are those of a meta tensor.
struct FakeTensor : c10::TensorImpl {
  Tensor meta;

  FakeTensor(Tensor meta_, c10::Device device)
      : TensorImpl(DispatchKeySet({at::computeDispatchKey(c10::typeMetaToScalarType(meta_.dtype()), c10::kStrided, device), DispatchKey::Fake}), meta_.dtype(), device),
        meta(std::move(meta_)) {
    set_storage_access_should_throw();
    resize();
  }

  void resize() {
    set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version, bool may_change)
      const override {
    auto copy = c10::make_intrusive<FakeTensor>(meta, device());
    copy_tensor_metadata(this, copy.get(), version, may_change);
    return copy;
  }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version, bool may_change)
      const override {
    auto copy = c10::make_intrusive<FakeTensor>(meta, device());
    copy_tensor_metadata(this, copy.get(), std::move(version), may_change);
    return copy;
  }

  const char* tensorimpl_type_name() const override {
    return "FakeTensor";
  }
};

FakeTensor* fake(const Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(DispatchKey::Fake)
      ? static_cast<FakeTensor*>(tensor.unsafeGetTensorImpl())
      : nullptr;
}

// The arguments of a call, as meta tensors.
struct Call {
  std::vector<std::pair<Tensor, Tensor>> tensors; // meta, given
  bool any_fake = false;
  std::optional<c10::Device> named; // by an argument

  c10::Device device() const {
    const auto better = [](const Tensor& tensor) { return 2 * (fake(tensor) != nullptr) + (tensor.dim() > 0); };
    const Tensor* best = nullptr;
    for (const auto& [_, given] : tensors) {
      if (best == nullptr || better(given) > better(*best)) {
        best = &given;
      }
    }
    return named ? *named : best != nullptr ? best->device() : c10::Device(c10::kCPU);
  }

  Tensor meta(const Tensor& given) {
    if (!given.defined()) {
      return given;
    }
    const c10::impl::ExcludeDispatchKeyGuard below(DispatchKey::Fake);
    Tensor meta;
    if (const auto* known = fake(given)) {
      any_fake = true;
      meta = known->meta;
    } else {
      meta = at::empty_strided(given.sizes(), given.strides(), given.options().device(c10::kMeta).pinned_memory(false));
      if (given.unsafeGetTensorImpl()->is_wrapped_number()) {
        meta.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
    }
    tensors.emplace_back(meta, given);
    return meta;
  }

  IValue translated(const IValue& value, const std::string& name) {
    if (value.isTensor()) {
      return meta(value.toTensor());
    }
    if (value.isDevice()) {
      named = value.toDevice();
      if (named->type() == c10::kCUDA && !named->has_index()) {
        named = c10::Device(c10::kCUDA, 0);
      }
      return c10::Device(c10::kMeta);
    }
    if (name == "pin_memory") {
      return IValue();
    }
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& tensor : value.toTensorVector()) {
        list.push_back(meta(tensor));
      }
      return list;
    }
    if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<Tensor>> list;
      for (const IValue& entry : value.toListRef()) {
        list.push_back(entry.isTensor() ? std::make_optional(meta(entry.toTensor())) : std::nullopt);
      }
      return list;
    }
    return value;
  }

  // The tensor that stands for a result of the meta kernel.
  Tensor given(const Tensor& meta) const {
    if (!meta.defined()) {
      return meta;
    }
    for (const auto& [own, tensor] : tensors) {
      if (own.is_same(meta)) {
        if (auto* known = fake(tensor)) {
          known->resize();
          recount(meta);
        }
        return tensor;
      }
    }
    return made(meta, device());
  }

  // After a result that was passed in may have been enlarged.
  static void recount(const Tensor& meta) {
    auto* storage = meta.storage().unsafeGetStorageImpl();
    if (auto* counted = static_cast<Counted*>(storage->data_ptr().get_context())) {
      const auto bytes = size_of(*storage);
      counted->count->add(bytes - counted->bytes);
      counted->bytes = bytes;
    }
  }

  static int64_t size_of(const c10::StorageImpl& storage) {
    const auto size = static_cast<int64_t>(storage.nbytes());
    return size < kSmallest ? 0 : size;
  }

  // A fake tensor of a meta tensor, whose storage is counted if it is new.
  static Tensor made(const Tensor& meta, c10::Device device) {
    auto* storage = meta.storage().unsafeGetStorageImpl();
    const auto count = current();
    if (count && device == count->device && storage->data_ptr().get_context() == nullptr) {
      const auto bytes = size_of(*storage);
      storage->set_data_ptr_noswap(
          c10::DataPtr(nullptr, new Counted{count, bytes}, &Counted::release, c10::Device(c10::kMeta)));
      count->add(bytes);
    }
    return Tensor(c10::make_intrusive<FakeTensor>(meta, device));
  }
};

// --- operators for which only Python knows the sizes ------------------------------

Tensor like(const IValue& value) {
  return at::empty_like(value.toTensor());
}

Tensor sized(c10::IntArrayRef sizes, const Tensor& as, std::optional<at::ScalarType> type = std::nullopt) {
  return at::empty(sizes, type ? as.options().dtype(*type) : as.options());
}

// As attention kernels lay out gradients, and some their results: `[batch, heads, rows, width]` whose heads lie next to each
// other. The results of others lie as the queries do.
Tensor of_heads(const IValue& value) {
  const auto& rows = value.toTensor();
  return sized({rows.size(0), rows.size(2), rows.size(1), rows.size(3)}, rows).transpose(1, 2);
}

// The gradients that `mask` asks for of these.
std::vector<IValue> masked(const std::vector<Tensor>& all, const IValue& mask) {
  std::vector<IValue> results;
  for (size_t i = 0; i < all.size(); ++i) {
    results.emplace_back(mask.toBoolList().get(i) ? all[i] : Tensor());
  }
  return results;
}

using Arguments = c10::ArrayRef<IValue>;
using Sizes = std::vector<IValue> (*)(Arguments);

std::vector<int64_t> repeated(const IValue& value, size_t count) {
  auto list = value.toIntVector();
  return list.size() == count ? list : std::vector<int64_t>(count, list.front());
}

std::vector<IValue> convolution(Arguments a) {
  const auto &input = a[0].toTensor(), &weight = a[1].toTensor();
  const size_t axes = input.dim() - 2;
  const auto stride = repeated(a[3], axes), padding = repeated(a[4], axes), dilation = repeated(a[5], axes);
  std::vector<int64_t> sizes{input.size(0), weight.size(0)};
  for (size_t i = 0; i < axes; ++i) {
    const auto reach = dilation[i] * (weight.size(i + 2) - 1) + 1;
    sizes.push_back((input.size(i + 2) + 2 * padding[i] - reach) / stride[i] + 1);
  }
  return {sized(sizes, input)};
}

const std::unordered_map<std::string, Sizes>& sizes_of() {
  static const auto* const table = new std::unordered_map<std::string, Sizes>{
      {"aten::native_layer_norm",
       [](Arguments a) -> std::vector<IValue> {
         const auto& input = a[0].toTensor();
         auto rows = input.sizes().vec();
         std::fill(rows.end() - static_cast<ptrdiff_t>(a[1].toIntVector().size()), rows.end(), 1);
         return {like(a[0]), sized(rows, input, at::kFloat), sized(rows, input, at::kFloat)};
       }},
      {"aten::native_layer_norm_backward",
       [](Arguments a) {
         const auto shape = a[2].toIntVector();
         const auto& input = a[1].toTensor();
         return masked({like(a[1]), sized(shape, input), sized(shape, input)}, a[7]);
       }},
      {"aten::native_group_norm",
       [](Arguments a) -> std::vector<IValue> {
         const std::vector<int64_t> groups{a[3].toInt(), a[6].toInt()};
         return {like(a[0]), sized(groups, a[0].toTensor()), sized(groups, a[0].toTensor())};
       }},
      {"aten::native_group_norm_backward",
       [](Arguments a) {
         const auto& input = a[1].toTensor();
         return masked({like(a[1]), sized({a[6].toInt()}, input), sized({a[6].toInt()}, input)}, a[9]);
       }},
      {"aten::_fused_rms_norm_backward",
       [](Arguments a) {
         const auto& input = a[1].toTensor();
         return masked({like(a[1]), sized(a[2].toIntVector(), input)}, a[5]);
       }},
      {"aten::embedding_dense_backward",
       [](Arguments a) -> std::vector<IValue> {
         return {sized({a[2].toInt(), a[0].toTensor().size(-1)}, a[0].toTensor())};
       }},
      {"aten::native_dropout",
       [](Arguments a) -> std::vector<IValue> {
         return {like(a[0]), sized(a[0].toTensor().sizes(), a[0].toTensor(), at::kBool)};
       }},
      {"aten::_fused_rms_norm",
       [](Arguments a) -> std::vector<IValue> {
         const auto& input = a[0].toTensor();
         auto rows = input.sizes().vec();
         std::fill(rows.end() - static_cast<ptrdiff_t>(a[1].toIntVector().size()), rows.end(), 1);
         return {like(a[0]), sized(rows, input, at::kFloat)};
       }},
      {"aten::log_sigmoid_forward", [](Arguments a) -> std::vector<IValue> { return {like(a[0]), like(a[0])}; }},
      {"aten::log_sigmoid_backward", [](Arguments a) -> std::vector<IValue> { return {like(a[1])}; }},
      {"aten::roll", [](Arguments a) -> std::vector<IValue> { return {like(a[0])}; }},
      {"aten::flip", [](Arguments a) -> std::vector<IValue> { return {like(a[0])}; }},
      {"aten::native_dropout_backward", [](Arguments a) -> std::vector<IValue> { return {like(a[0])}; }},
      {"aten::index_select",
       [](Arguments a) -> std::vector<IValue> {
         auto sizes = a[0].toTensor().sizes().vec();
         sizes[(a[1].toInt() + sizes.size()) % sizes.size()] = a[2].toTensor().numel();
         return {sized(sizes, a[0].toTensor())};
       }},
      {"aten::where",
       [](Arguments a) -> std::vector<IValue> {
         const auto &yes = a[1].toTensor(), &no = a[2].toTensor();
         const auto sizes = at::infer_size(a[0].toTensor().sizes(), at::infer_size(yes.sizes(), no.sizes()));
         return {sized(sizes, a[0].toTensor(), at::result_type(yes, no))};
       }},
      {"aten::searchsorted",
       [](Arguments a) -> std::vector<IValue> {
         const auto& values = a[1].toTensor();
         return {sized(values.sizes(), values, a[2].toBool() ? at::kInt : at::kLong)};
       }},
      {"aten::bucketize",
       [](Arguments a) -> std::vector<IValue> {
         const auto& values = a[0].toTensor();
         return {sized(values.sizes(), values, a[2].toBool() ? at::kInt : at::kLong)};
       }},
      {"aten::linalg_solve_triangular", [](Arguments a) -> std::vector<IValue> { return {like(a[1])}; }},
      {"aten::convolution", convolution},
      {"aten::convolution_backward",
       [](Arguments a) {
         const auto& weight = a[2].toTensor();
         return masked({like(a[1]), like(a[2]), sized({weight.size(0)}, weight)}, a[10]);
       }},
      {"aten::_scaled_dot_product_flash_attention_for_cpu",
       [](Arguments a) -> std::vector<IValue> {
         const auto& query = a[0].toTensor();
         const auto sums = sized({query.size(0), query.size(2), query.size(1)}, query, at::kFloat);
         return {like(a[0]), sums.transpose(1, 2)};
       }},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       [](Arguments a) -> std::vector<IValue> { return {of_heads(a[1]), of_heads(a[2]), of_heads(a[3])}; }},
      {"aten::_scaled_dot_product_flash_attention",
       [](Arguments a) -> std::vector<IValue> {
         const auto &query = a[0].toTensor(), &key = a[1].toTensor();
         const auto sums = sized({query.size(0), query.size(1), query.size(2)}, query, at::kFloat);
         const auto state = sized({2}, query, at::kLong);
         return {like(a[0]), sums, Tensor(), Tensor(), query.size(2), key.size(2), state,
                 sized({}, query, at::kLong), sized({0}, query)};
       }},
      {"aten::_scaled_dot_product_flash_attention_backward",
       [](Arguments a) -> std::vector<IValue> { return {of_heads(a[1]), of_heads(a[2]), of_heads(a[3])}; }},
      {"aten::_flash_attention_forward",
       [](Arguments a) -> std::vector<IValue> {
         // The rows of several texts, one after the other: [tokens, heads, width].
         const auto& query = a[0].toTensor();
         return {like(a[0]), sized({query.size(1), query.size(0)}, query, at::kFloat), sized({2}, query, at::kLong),
                 sized({}, query, at::kLong), sized({0}, query)};
       }},
      {"aten::_flash_attention_backward",
       [](Arguments a) -> std::vector<IValue> { return {like(a[1]), like(a[2]), like(a[3])}; }},
      {"aten::unfold_backward",
       [](Arguments a) -> std::vector<IValue> { return {sized(a[1].toIntVector(), a[0].toTensor())}; }},
      {"aten::_scaled_dot_product_efficient_attention",
       [](Arguments a) -> std::vector<IValue> {
         const auto& query = a[0].toTensor();
         const auto rows = a[4].toBool() ? (query.size(2) + 31) / 32 * 32 : 0;
         return {of_heads(a[0]),
                 sized({query.size(0), query.size(1), rows}, query, at::kFloat), sized({}, query, at::kLong),
                 sized({}, query, at::kLong)};
       }},
      {"aten::_scaled_dot_product_efficient_attention_backward",
       [](Arguments a) -> std::vector<IValue> {
         auto mask = a[10].toBoolList();
         return {of_heads(a[1]), of_heads(a[2]), of_heads(a[3]),
                 mask.get(3) && a[4].isTensor() && a[4].toTensor().defined() ? like(a[4]) : Tensor()};
       }},
  };
  return *table;
}

// The result of an operator on numbers at the same place.
Tensor at_each_place(const std::string& name, const Stack& metas) {
  const Tensor* first = nullptr;
  std::vector<int64_t> sizes;
  auto type = at::kBool;
  for (const auto& value : metas) {
    if (value.isTensor() && value.toTensor().defined()) {
      const auto& tensor = value.toTensor();
      sizes = first == nullptr ? tensor.sizes().vec() : at::infer_size(sizes, tensor.sizes());
      first = first == nullptr ? &tensor : first;
      type = c10::promoteTypes(type, tensor.scalar_type());
    }
  }
  const bool answers = name.rfind("aten::logical_", 0) == 0 || name.rfind("aten::is", 0) == 0;
  return sized(sizes, *first, answers ? at::kBool : type);
}

// --- the fallback -------------------------------------------------------------------

// Whether a result of the operator is an argument, or a view of one.
bool aliases(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return schema.name() == "aten::_unsafe_view" || std::any_of(returns.begin(), returns.end(), [](const auto& result) { return result.alias_info() != nullptr; });
}

bool writes(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

bool is_meant_to_be_fake(const IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    return false;
  }
  const auto& tensor = value.toTensor();
  return tensor.is_floating_point() && tensor.numel() > kComputed;
}

void fallback(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const auto count = schema.arguments().size();
  const DispatchKeySet after = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::Fake);
  if (name == "aten::_fused_sdp_choice") {
    // Which kernel of the device's attention: it looks at sizes, and at what the device has.
    const c10::impl::ExcludeDispatchKeyGuard below(DispatchKey::Fake);
    op.redispatchBoxed(after, stack);
    if (torch::jit::peek(*stack, 0, 1).toInt() > 2) {
      torch::jit::drop(*stack, 1);
      stack->emplace_back(static_cast<int64_t>(2)); // another vendor's, which keeps the same
    }
    return;
  }
  Call call;
  Stack metas;
  for (size_t i = 0; i < count; ++i) {
    metas.push_back(call.translated(torch::jit::peek(*stack, i, count), schema.arguments()[i].name()));
  }
  if (!call.any_fake && (!call.tensors.empty() || !call.named)) {
    const c10::impl::ExcludeDispatchKeyGuard below(DispatchKey::Fake);
    op.redispatchBoxed(after, stack);
    // What has no arguments is made of a list of numbers, which its maker writes to it.
    if (!aliases(schema) && !call.tensors.empty()) {
      for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
        if (is_meant_to_be_fake((*stack)[i])) {
          const auto real = (*stack)[i].toTensor();
          (*stack)[i] = Call::made(at::empty_like(real, real.options().device(c10::kMeta)), real.device());
        }
      }
    }
    return;
  }
  if (name.back() == '_' && writes(schema)) {
    // In place: nothing is computed.
    const auto self = torch::jit::peek(*stack, 0, count);
    torch::jit::drop(*stack, count);
    if (!schema.returns().empty()) {
      stack->push_back(self);
    }
    return;
  }
  const auto known = schema.overload_name() == "out" ? sizes_of().end() : sizes_of().find(name);
  const auto backend = call.device().is_cpu() ? DispatchKey::CPU : DispatchKey::CUDA;
  const bool composed =
      !op.hasKernelForDispatchKey(backend) && op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
  // Of some, libtorch composes the form with a result from the one that writes to a result, which has no sizes.
  const bool of_places = known == sizes_of().end() && !aliases(schema) && op.hasTag(at::Tag::pointwise) &&
      !op.hasKernelForDispatchKey(DispatchKey::Meta) &&
      (!composed || name == "aten::abs" || name.rfind("aten::logical_", 0) == 0);
  if (known == sizes_of().end() && !aliases(schema) && composed && !of_places) {
    // Made of others, which come here in their turn.
    op.redispatchBoxed(DispatchKeySet(backend), stack);
    return;
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard below(DispatchKey::Fake);
    if (known != sizes_of().end()) {
      metas = known->second(metas);
    } else if (of_places) {
      metas = {at_each_place(name, metas)};
    } else {
      op.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &metas);
    }
  }
  torch::jit::drop(*stack, count);
  for (const auto& result : metas) {
    if (result.isTensor()) {
      stack->emplace_back(call.given(result.toTensor()));
    } else if (result.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& tensor : result.toTensorVector()) {
        list.push_back(call.given(tensor));
      }
      stack->emplace_back(std::move(list));
    } else {
      stack->push_back(result);
    }
  }
}

} // namespace

extern "C" {

// Puts this thread into fake mode, and counts what is on `device`: -1 for the CPU, or the accelerator's index. No other
// thread is in it.
int32_t surefoot_fake_begin(int32_t device) {
  return surefoot::guarded([&] {
    const auto of = device < 0 ? c10::Device(c10::kCPU) : surefoot::accelerator_of(device);
    const std::lock_guard<std::mutex> lock(mutex);
    static torch::Library* library = nullptr; // never destroyed
    if (library == nullptr) {
      auto fresh = std::make_unique<torch::Library>(
          torch::Library::IMPL, "_", std::make_optional(DispatchKey::Fake), __FILE__, __LINE__);
      fresh->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
      library = fresh.release();
    }
    counting = std::make_shared<Count>(of);
    c10::impl::tls_set_dispatch_key_included(DispatchKey::Fake, true);
  });
}

// Ends it.
void surefoot_fake_end() {
  c10::impl::tls_set_dispatch_key_included(DispatchKey::Fake, false);
  const std::lock_guard<std::mutex> lock(mutex);
  counting.reset();
}

// Bytes of fake tensors now, and the most since the last call of this function.
void surefoot_fake_bytes(uint64_t* live, uint64_t* peak) {
  if (const auto count = current()) {
    *live = static_cast<uint64_t>(count->live.load());
    *peak = static_cast<uint64_t>(count->peak.exchange(count->live.load()));
  }
}

// Whether this thread is in fake mode.
bool surefoot_is_faking() {
  return c10::impl::tls_is_dispatch_key_included(DispatchKey::Fake);
}
}
