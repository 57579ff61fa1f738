// Processes that train together: c10d's store and its Gloo group.
//
// All that the workspace knows of c10d is here, since its C++ interface changes between releases.
// Tensors are on the CPU. Every call blocks until it is done or its time is over; what c10d and
// Gloo throw when another process is gone or late becomes `kPeer`.

#define USE_C10D_GLOO

#include "boundary.h"

#include <chrono>
#include <cstring>
#include <new>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
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

// Runs what talks to other processes. Out of memory stays what it is; anything else that is
// thrown there is about them.
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

// Gloo takes dense tensors in host memory; what it does with others is not ours to find out.
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

} // namespace

extern "C" {

// A client of the store at `host`; with `server`, a store in this process too, on a free port
// where `port` is 0. `bound` is the port in use.
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

// The value as a tensor of bytes; the key is waited for.
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

// A group of `size` processes that find each other by the keys below `prefix`. `interface` is the
// name of a network interface, or an address of this machine with `is_address`.
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

// Fills `rows`, whose first dimension is the ranks, with the tensors of all of them.
int32_t surefoot_group_gather(surefoot_group* group, at::Tensor* tensor, at::Tensor* rows) {
  return with_peers([&] {
    auto inputs = one(*tensor);
    std::vector<std::vector<at::Tensor>> outputs{one(*rows)[0].unbind(0)};
    group->gloo->allgather(outputs, inputs)->wait();
  });
}

int32_t surefoot_group_barrier(surefoot_group* group) {
  return with_peers([&] { group->gloo->barrier()->wait(); });
}
}
