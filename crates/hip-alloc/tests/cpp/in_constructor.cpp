// A library whose constructor calls the program while the loader's lock is held.

extern "C" void in_constructor();

__attribute__((constructor)) static void construct() { in_constructor(); }
