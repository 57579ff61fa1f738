// Throws the exceptions that PyTorch expects: c10::OutOfMemoryError if memory runs out,
// c10::Error if the device fails (so that a program does not retry with smaller batches, which
// would not help).
//
// PyTorch treats NULL from a pluggable allocator as a valid address, so both must be thrown.
// Rust cannot throw C++ exceptions, and this library must not depend on libtorch or its
// headers, so the classes are looked up in the libc10 of the process. If they are
// missing, a std::bad_alloc or a std::runtime_error with the message is thrown.

#include "libc10.h"

#include <cstdint>
#include <cstring>
#include <cxxabi.h>
#include <new>
#include <stdexcept>
#include <string>
#include <typeinfo>

namespace {

// c10::SourceLocation (c10/util/StringUtil.h): passed by value, in memory.
struct SourceLocation {
  const char *function;
  const char *file;
  uint32_t line;
};

using Constructor = void (*)(void *self, SourceLocation, std::string);
using Destructor = void (*)(void *self);

// c10::Error has 136 bytes in torch 2.13; the C++ runtime frees the whole allocation, so
// a larger size is safe for other versions.
constexpr std::size_t object_bytes = 1024;

#define STRING_ABI "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

// One of c10's exception classes, by its mangled names.
struct Class {
  const char *type;
  const char *table;
  // The first that exists is called.
  const char *constructors[2];
};

constexpr Class out_of_memory_error{
    "_ZTIN3c1016OutOfMemoryErrorE",
    "_ZTVN3c1016OutOfMemoryErrorE",
    // Since 2.13 the class has its own constructor; before, it inherited that of c10::Error.
    {"_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationE" STRING_ABI,
     "_ZN3c105ErrorC2ENS_14SourceLocationE" STRING_ABI},
};

constexpr Class error{
    "_ZTIN3c105ErrorE",
    "_ZTVN3c105ErrorE",
    {"_ZN3c105ErrorC1ENS_14SourceLocationE" STRING_ABI,
     "_ZN3c105ErrorC2ENS_14SourceLocationE" STRING_ABI},
};

// The exception for programs without libtorch: std::bad_alloc itself has no message.
class OutOfMemory : public std::bad_alloc {
public:
  explicit OutOfMemory(const char *message) noexcept {
    std::strncpy(message_, message, sizeof message_ - 1);
  }
  const char *what() const noexcept override { return message_; }

private:
  // Memory has just run out, so the message must not be allocated.
  char message_[1024] = {};
};

// Throws an object of a class of libc10; returns if that is not possible.
void throw_as(const Class &wanted, const char *message) {
  auto *type = static_cast<std::type_info *>(find_in_libc10(wanted.type));
  auto *table = static_cast<char *>(find_in_libc10(wanted.table));
  void *constructor = find_in_libc10(wanted.constructors[0]);
  if (!constructor) {
    constructor = find_in_libc10(wanted.constructors[1]);
  }
  if (!type || !table || !constructor) {
    return;
  }
  // A virtual table begins with the offset to top and the type (Itanium C++ ABI,
  // 2.5.2); the pointer in an object points after these two. The destructors come first.
  char *entries = table + 2 * sizeof(void *);
  Destructor destroy;
  std::memcpy(&destroy, entries, sizeof destroy);

  void *object = abi::__cxa_allocate_exception(object_bytes);
  try {
    reinterpret_cast<Constructor>(constructor)(
        object, SourceLocation{"hip_alloc_malloc", "hip-alloc", 0}, std::string(message));
  } catch (...) {
    abi::__cxa_free_exception(object);
    return;
  }
  std::memcpy(object, &entries, sizeof entries);
  abi::__cxa_throw(object, type, destroy);
}

} // namespace

extern "C" [[noreturn]] void hip_alloc_throw_out_of_memory(const char *message) {
  throw_as(out_of_memory_error, message);
  throw OutOfMemory(message);
}

extern "C" [[noreturn]] void hip_alloc_throw_failure(const char *message) {
  throw_as(error, message);
  throw std::runtime_error(message);
}
