// A library whose constructor, which runs while the loader's lock is held, calls the program.

extern "C" void in_constructor();

__attribute__((constructor)) static void construct() { in_constructor(); }
