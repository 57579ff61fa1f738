// Distributed training: c10d's store and Gloo process group.
//
// All uses of c10d in the workspace are here, since its C++ interface changes between releases.
// Tensors are on the CPU. Every call blocks until it is done or times out, except the all-reduces that
// a `Reduction` starts in a backward pass. Exceptions of c10d and Gloo about a lost or late process
// become `kPeer`.

#define USE_C10D_GLOO

#include "boundary.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

using surefoot::Refusal;
using surefoot::guarded;

struct surefoot_store {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

struct surefoot_group {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

namespace {

// Runs code that communicates with other processes. Out-of-memory errors are kept; any other
// exception is attributed to a peer.
template <typename Body>
int32_t with_peers(Body&& body) noexcept {
  return guarded([&] {
    try {
      body();
    } catch (const Refusal&) {
      throw;
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const c10::Error& error) {
      throw Refusal{surefoot::kPeer, error.what_without_backtrace()};
    } catch (const std::exception& error) {
      throw Refusal{surefoot::kPeer, error.what()};
    }
  });
}

std::chrono::milliseconds milliseconds(uint64_t count) {
  return std::chrono::milliseconds(static_cast<int64_t>(count));
}

std::vector<std::string> keys_of(const char* const* keys, size_t count) {
  return std::vector<std::string>(keys, keys + count);
}

// Gloo needs dense tensors in host memory; its behaviour for others is undefined.
std::vector<at::Tensor> one(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || !tensor.is_contiguous()) {
    throw Refusal{
        surefoot::kInvalidArgument,
        "only contiguous tensors on the CPU are exchanged, and this one is on " +
            tensor.device().str() + (tensor.is_contiguous() ? "" : " and not contiguous")};
  }
  return {tensor.detach()};
}

surefoot_store* open_store(
    const char* host,
    uint16_t port,
    bool server,
    uint64_t timeout_ms) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = server;
  options.waitWorkers = false;
  options.multiTenant = server;
  options.timeout = milliseconds(timeout_ms);
  return new surefoot_store{c10::make_intrusive<c10d::TCPStore>(std::string(host), options)};
}

// Sums of gradients over all ranks that overlap with the backward pass:
//
//   buffer     | p0   p1   p2 | p3   p4 | p5 |   in the order of the parameters
//   bucket           2             1      0      in the order in which they are started
//
// A bucket is started when its gradients are complete and all earlier buckets have been started, so that all
// ranks start the same sums in the same order. `finish` starts the remaining ones,
// even after a failed pass, so that no other rank waits forever.
//
// A gradient is complete after as many accumulations as the parameter had in an earlier pass: there are several
// if checkpointed functions share the parameter, since each of them is recomputed in a separate backward pass. In
// the first pass they are counted. An accumulation after the start of its bucket makes the sums incomplete,
// which `finish` reports.
//
// This is not c10d::Reducer, because that expects to see every micro-batch, divides by the number of
// ranks, and cannot be used again once a backward pass has failed.
class Reduction : public std::enable_shared_from_this<Reduction> {
 public:
  // `counts` are the numbers of parameters in the buckets, in the order in which they are started.
  static std::shared_ptr<Reduction> make(
      c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo,
      std::vector<at::Tensor> leaves,
      const at::Tensor& buffer,
      const std::vector<size_t>& counts) {
    auto made = std::shared_ptr<Reduction>(new Reduction(std::move(gloo), std::move(leaves), buffer, counts));
    made->register_hooks();
    return made;
  }

  ~Reduction() {
    for (size_t index = 0; index < hooked_; ++index) {
      surefoot::guarded([&] {
        torch::autograd::impl::set_post_acc_grad_hooks(parameters_[index].leaf, nullptr);
      });
    }
  }

  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  // Declares that the next backward pass is the last of a step, whose gradients are to be summed.
  void prepare() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_prepared_ = true;
  }

  // The number of sums started.
  size_t started() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return started_;
  }

  // Starts the remaining sums, and waits for all of them. `gradients` contains the complete gradients of this
  // rank, or is null after a failed pass, when the sums are not used. Returns false if a sum
  // was started before its gradients were complete.
  bool finish(const std::vector<at::Tensor>* gradients) {
    if (gradients != nullptr) {
      expect_places_for(*gradients);
    }
    std::exception_ptr failure;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_prepared_ = false;
      while (started_ < buckets_.size()) {
        const auto& bucket = buckets_[started_];
        try {
          for (size_t index = bucket.begin; gradients != nullptr && index < bucket.end; ++index) {
            copy(index, (*gradients)[index]);
          }
        } catch (...) {
          // The other ranks wait for this sum, whatever its values are.
          failure = std::current_exception();
        }
        start_next();
      }
    }
    // The hooks are not called between two passes, so no lock is needed below.
    for (auto& bucket : buckets_) {
      bucket.work->wait();
    }
    const bool is_complete = !is_late_;
    for (auto& bucket : buckets_) {
      bucket.work.reset();
      bucket.missing = bucket.end - bucket.begin;
    }
    for (auto& parameter : parameters_) {
      parameter.expected = std::max(parameter.expected, parameter.seen);
      parameter.seen = 0;
    }
    started_ = 0;
    is_late_ = false;
    if (failure) {
      std::rethrow_exception(failure);
    }
    return is_complete;
  }

 private:
  struct Parameter {
    at::Tensor leaf;
    at::Tensor place; // in the buffer, in the shape of the leaf
    size_t bucket = 0;
    size_t seen = 0; // accumulations in this pass
    size_t expected = 0; // most accumulations in a pass so far
  };

  struct Bucket {
    size_t begin; // first parameter
    size_t end;
    at::Tensor values; // in the buffer
    size_t missing; // gradients that are not complete
    c10::intrusive_ptr<c10d::Work> work; // once started
  };

  // Called by autograd after a gradient has been accumulated into a leaf.
  struct Hook : torch::autograd::PostAccumulateGradHook {
    std::weak_ptr<Reduction> reduction;
    size_t index;
    Hook(std::weak_ptr<Reduction> reduction_, size_t index_)
        : reduction(std::move(reduction_)), index(index_) {}
    void operator()(const at::Tensor& leaf) override {
      if (const auto owner = reduction.lock()) {
        owner->accumulated(index, leaf.grad());
      }
    }
  };

  Reduction(
      c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo,
      std::vector<at::Tensor> leaves,
      const at::Tensor& buffer,
      const std::vector<size_t>& counts)
      : gloo_(std::move(gloo)) {
    int64_t numbers = 0;
    for (const auto& leaf : leaves) {
      if (!leaf.device().is_cpu() || !leaf.is_leaf() || !leaf.requires_grad()) {
        throw Refusal{surefoot::kInvalidArgument, "only gradients of leaves on the CPU are summed in the backward pass"};
      }
      numbers += leaf.numel();
    }
    if (buffer.dim() != 1 || buffer.numel() != numbers) {
      throw Refusal{
          surefoot::kInvalidArgument,
          "a buffer for " + std::to_string(numbers) + " gradients has " + std::to_string(buffer.numel()) + " numbers"};
    }
    int64_t offset = 0;
    for (auto& leaf : leaves) {
      auto place = buffer.narrow(0, offset, leaf.numel()).view(leaf.sizes());
      offset += leaf.numel();
      parameters_.push_back({std::move(leaf), std::move(place)});
    }
    size_t end = parameters_.size();
    for (const size_t count : counts) {
      if (count == 0 || count > end) {
        throw Refusal{surefoot::kInvalidArgument, "buckets of other numbers of parameters than there are"};
      }
      const size_t begin = end - count;
      int64_t length = 0;
      for (size_t index = begin; index < end; ++index) {
        parameters_[index].bucket = buckets_.size();
        length += parameters_[index].place.numel();
      }
      offset -= length;
      buckets_.push_back({begin, end, buffer.narrow(0, offset, length), count, nullptr});
      end = begin;
    }
    if (end != 0) {
      throw Refusal{surefoot::kInvalidArgument, "buckets of other numbers of parameters than there are"};
    }
  }

  void register_hooks() {
    for (const auto& parameter : parameters_) {
      auto hook = std::make_unique<Hook>(weak_from_this(), hooked_);
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.leaf, std::move(hook));
      ++hooked_;
    }
  }

  void accumulated(size_t index, const at::Tensor& gradient) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& parameter = parameters_[index];
    if (!is_prepared_ || ++parameter.seen < parameter.expected || parameter.expected == 0) {
      return;
    }
    auto& bucket = buckets_[parameter.bucket];
    if (bucket.work) {
      is_late_ = true;
      return;
    }
    copy(index, gradient);
    if (parameter.seen > parameter.expected) {
      return;
    }
    --bucket.missing;
    while (started_ < buckets_.size() && buckets_[started_].missing == 0) {
      start_next();
    }
  }

  void copy(size_t index, const at::Tensor& gradient) {
    const c10::AutoGradMode no_gradient(false);
    parameters_[index].place.copy_(gradient);
  }

  void start_next() {
    auto& bucket = buckets_[started_];
    auto tensors = one(bucket.values);
    bucket.work = gloo_->allreduce(tensors);
    ++started_;
  }

  void expect_places_for(const std::vector<at::Tensor>& gradients) const {
    bool all_fit = gradients.size() == parameters_.size();
    for (size_t index = 0; all_fit && index < gradients.size(); ++index) {
      all_fit = gradients[index].sizes() == parameters_[index].place.sizes();
    }
    if (!all_fit) {
      throw Refusal{surefoot::kInvalidArgument, "gradients of other parameters than those that are summed"};
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  size_t hooked_ = 0; // parameters with a hook
  std::mutex mutex_; // the engine may call hooks from its own threads
  size_t started_ = 0;
  bool is_prepared_ = false;
  bool is_late_ = false;
};

} // namespace

struct surefoot_reduction {
  std::shared_ptr<Reduction> reduction;
};

extern "C" {

// A client of the store at `host`; with `server`, this process also runs the store, on a free port
// if `port` is 0. `bound` is the port in use.
int32_t surefoot_store_open(
    const char* host,
    uint16_t port,
    bool server,
    uint64_t timeout_ms,
    surefoot_store** out,
    uint16_t* bound) {
  return with_peers([&] {
    *out = open_store(host, port, server, timeout_ms);
    *bound = (*out)->store->getPort();
  });
}

void surefoot_store_free(surefoot_store* store) {
  delete store;
}

int32_t surefoot_store_set(
    surefoot_store* store,
    const char* key,
    const uint8_t* value,
    size_t length) {
  return with_peers(
      [&] { store->store->set(key, std::vector<uint8_t>(value, value + length)); });
}

// Waits for the key and returns its value as a tensor of bytes.
int32_t surefoot_store_get(
    surefoot_store* store,
    const char* key,
    uint64_t timeout_ms,
    at::Tensor** out) {
  return with_peers([&] {
    store->store->wait({std::string(key)}, milliseconds(timeout_ms));
    const auto value = store->store->get(key);
    auto tensor = at::empty({static_cast<int64_t>(value.size())}, at::kByte);
    if (!value.empty()) {
      std::memcpy(tensor.mutable_data_ptr(), value.data(), value.size());
    }
    *out = new at::Tensor(std::move(tensor));
  });
}

int32_t surefoot_store_add(surefoot_store* store, const char* key, int64_t amount, int64_t* out) {
  return with_peers([&] { *out = store->store->add(key, amount); });
}

int32_t surefoot_store_has(
    surefoot_store* store,
    const char* const* keys,
    size_t count,
    bool* answer) {
  return with_peers([&] { *answer = store->store->check(keys_of(keys, count)); });
}

int32_t surefoot_store_wait(
    surefoot_store* store,
    const char* const* keys,
    size_t count,
    uint64_t timeout_ms) {
  return with_peers(
      [&] { store->store->wait(keys_of(keys, count), milliseconds(timeout_ms)); });
}

// A group of `size` processes that find each other with the keys below `prefix`. `interface` is the
// name of a network interface or, with `is_address`, an address of this machine.
int32_t surefoot_group_new(
    surefoot_store* store,
    const char* prefix,
    int32_t rank,
    int32_t size,
    const char* interface,
    bool is_address,
    uint64_t timeout_ms,
    surefoot_group** out) {
  return with_peers([&] {
    using Gloo = c10d::ProcessGroupGloo;
    auto options = c10::make_intrusive<Gloo::Options>(milliseconds(timeout_ms));
    options->devices.push_back(
        is_address ? Gloo::createDeviceForHostname(interface)
                   : Gloo::createDeviceForInterface(interface));
    auto keys = c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store->store);
    *out = new surefoot_group{
        c10::make_intrusive<Gloo>(keys, static_cast<int>(rank), static_cast<int>(size), options)};
  });
}

void surefoot_group_free(surefoot_group* group) {
  delete group;
}

// Replaces the tensor by the sum over all ranks.
int32_t surefoot_group_sum(surefoot_group* group, at::Tensor* tensor) {
  return with_peers([&] {
    auto tensors = one(*tensor);
    group->gloo->allreduce(tensors)->wait();
  });
}

// Replaces the tensor by that of the rank `root`.
int32_t surefoot_group_broadcast(surefoot_group* group, at::Tensor* tensor, int32_t root) {
  return with_peers([&] {
    auto tensors = one(*tensor);
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group->gloo->broadcast(tensors, options)->wait();
  });
}

// Sums of the gradients of `leaves` in `buffer`, a vector as long as all of them. `counts` are the numbers of
// leaves in each bucket, from the last leaf on.
int32_t surefoot_reduction_new(
    surefoot_group* group,
    at::Tensor* const* leaves,
    size_t leaf_count,
    at::Tensor* buffer,
    const size_t* counts,
    size_t bucket_count,
    surefoot_reduction** out) {
  return guarded([&] {
    *out = new surefoot_reduction{Reduction::make(
        group->gloo,
        surefoot::tensors_of(leaves, leaf_count),
        one(*buffer)[0],
        std::vector<size_t>(counts, counts + bucket_count))};
  });
}

void surefoot_reduction_free(surefoot_reduction* reduction) {
  delete reduction;
}

int32_t surefoot_reduction_prepare(surefoot_reduction* reduction) {
  return guarded([&] { reduction->reduction->prepare(); });
}

int32_t surefoot_reduction_started(surefoot_reduction* reduction, size_t* out) {
  return guarded([&] { *out = reduction->reduction->started(); });
}

// `gradients` is null after a pass that failed.
int32_t surefoot_reduction_finish(
    surefoot_reduction* reduction,
    at::Tensor* const* gradients,
    size_t count,
    bool* is_complete) {
  return with_peers([&] {
    if (gradients == nullptr) {
      *is_complete = reduction->reduction->finish(nullptr);
      return;
    }
    const auto list = surefoot::tensors_of(gradients, count);
    *is_complete = reduction->reduction->finish(&list);
  });
}
}
