// Everything but c10d as one unit: reading libtorch's headers takes the compiler longer than all of our code.

#include "accelerator.cpp"
#include "allocator.cpp"
#include "boundary.cpp"
#include "checkpoint.cpp"
#include "differentiable.cpp"
#include "fake.cpp"
#include "linear.cpp"
#include "operations.cpp"
#include "operators.cpp"
#include "products.cpp"
