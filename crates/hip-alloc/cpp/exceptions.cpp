// Throws the exceptions that PyTorch expects: c10::OutOfMemoryError when memory runs out,
// c10::Error when the device fails (asking for less would not help then, and a program that
// tries smaller batches must not be told that it would).
//
// PyTorch takes NULL from a pluggable allocator as a valid address, so both must be thrown.
// Rust cannot throw a C++ exception, and this library may link neither libtorch nor its
// headers: the classes are looked up in whatever libc10 the process has. Where they are
// missing, a std::bad_alloc or a std::runtime_error carries the message.

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

// c10::Error is 136 bytes in torch 2.13; the runtime frees what it was given, so
// a generous size is safe for other versions.
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
    // Since 2.13 the class has a constructor of its own; before, it inherited c10::Error's.
    {"_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationE" STRING_ABI,
     "_ZN3c105ErrorC2ENS_14SourceLocationE" STRING_ABI},
};

constexpr Class error{
    "_ZTIN3c105ErrorE",
    "_ZTVN3c105ErrorE",
    {"_ZN3c105ErrorC1ENS_14SourceLocationE" STRING_ABI,
     "_ZN3c105ErrorC2ENS_14SourceLocationE" STRING_ABI},
};

// What a program without libtorch catches: std::bad_alloc itself has no message.
class OutOfMemory : public std::bad_alloc {
public:
  explicit OutOfMemory(const char *message) noexcept {
    std::strncpy(message_, message, sizeof message_ - 1);
  }
  const char *what() const noexcept override { return message_; }

private:
  // Memory has just run out: no string that allocates.
  char message_[1024] = {};
};

// Throws an object of a class of libc10; returns where that cannot be done.
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
  // 2.5.2); objects point behind these two. The destructors come first.
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
